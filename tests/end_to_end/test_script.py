"""run SCRIPT.py: a user's own script, with his output, his exit code, and the cluster in its environment."""

from __future__ import annotations

import hashlib
import shlex

import pytest
from click.testing import CliRunner

from tests.conftest import COMMAND, SCRIPTS, Sandbox, files_of
from tfcluster.cli.main import cli


def test_the_output_and_exit_code_of_a_script(demo: Sandbox) -> None:
    demo.spec("import sys\nprint('out')\nprint('err', file=sys.stderr)\nsys.exit(int(sys.argv[1]))\n", "exits.py")
    *earlier, result = demo.json_lines("run", "exits.py", "0")
    assert [event.get("line") for event in earlier] == [None, "out", "err"]
    assert (result["program"], result["state"], result["result"]) == ("script", "succeeded", {"exit_code": 0})
    failed = demo("run", "exits.py", "3", code=3)
    assert (failed.stdout, failed.stderr) == ("out\n", "err\n"), "as with python, which adds nothing either"
    last = demo.last_run()
    assert (last["state"], last["result"]) == ("failed", {"exit_code": 3})
    assert last["error"]["message"] == "exits.py ended with exit code 3"
    attached = demo("attach", last["run"], code=3)
    assert (attached.stdout, attached.stderr) == ("out\n", "err\n")


@pytest.mark.parametrize("command", ["run", "launch --each ps"])
def test_a_script_that_calls_commands_is_told_of_no_variable_that_tfcluster_has_set(
    demo: Sandbox, command: str
) -> None:
    result = demo(*command.split(), SCRIPTS / "notes.py")
    assert (result.stdout.rpartition(" | ")[2], result.stderr) == ("asked\n", "")


@pytest.mark.slow
def test_a_script_of_20_mb_comes_through_a_pipe_as_it_is(demo: Sandbox) -> None:
    script = "import hashlib\nprint(hashlib.sha256(open(__file__, 'rb').read()).hexdigest())\n" + "# x\n" * (5 << 20)
    result = demo.execute(*COMMAND, "run", "script", "-", input=script)
    assert result.stdout == hashlib.sha256(script.encode()).hexdigest() + "\n", result.stderr
    assert not files_of(demo.folder, "state/tfcluster/*/*/runs/*/upload"), "it is removed when the run has ended"


@pytest.mark.parametrize(
    "line",
    [
        "run <(cat args.py) a",
        "launch --each ps /dev/stdin a < args.py",
        *(pytest.param(line, marks=pytest.mark.slow) for line in ("run script <(cat args.py) a", "run - a < args.py")),
    ],
)
def test_a_script_from_a_descriptor_is_run_as_a_copy(demo: Sandbox, line: str) -> None:
    demo.spec("import os, sys\nprint(os.path.exists(__file__), sys.argv[1:])\n", "args.py")
    result = demo.execute("bash", "-c", f"{shlex.join(COMMAND)} {line}")
    assert (result.stdout.rpartition(" | ")[2], result.stderr, result.returncode) == ("True ['a']\n", "", 0)
    assert "cannot be read again" in demo("rerun", demo.last_run()["run"], code=2).stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("none.py",), "'none.py': no such file or directory"),
        (("./none",), "'./none': no such file or directory"),
        (("none",), "No such command 'none'"),
        (("--timeout", "none.py"), "Invalid value for '--timeout'"),
    ],
)
def test_a_missing_script(words: tuple[str, ...], message: str) -> None:
    result = CliRunner().invoke(cli, ["run", *words])
    assert result.exception
    assert message in f"{result.output} {result.exception}"
