"""run SCRIPT.py: a user's own script, with his output, his exit code, and the cluster in its environment."""

from __future__ import annotations

import hashlib
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.conftest import COMMAND, Sandbox

TRAINING = """
import sys
import helper
import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
strategy = tf.distribute.experimental.ParameterServerStrategy(resolver)
with strategy.scope():
    weight = tf.Variable(helper.START)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

@tf.function
def step():
    def replica(): weight.assign_add(1.0)
    strategy.run(replica)

for _ in range(int(sys.argv[2])):
    coordinator.schedule(step)
coordinator.join()
print("weight", float(weight.numpy()), weight.device)
"""


@pytest.mark.slow
def test_a_training_script_finds_the_cluster(demo: Sandbox, tmp_path: Path) -> None:
    """With a module beside it, arguments that look like ours, and the folder that the user is in."""
    (tmp_path / "train.py").write_text(TRAINING)
    (tmp_path / "helper.py").write_text("import os\nprint('in', os.getcwd())\nSTART = 100.0\n")
    result = demo("run", f"{tmp_path}/train.py", "--timeout", "20")
    own = [line for line in result.stdout.splitlines() if line.startswith(("in ", "weight "))]  # not TensorFlow's
    assert own == [
        f"in {demo.folder}",
        "weight 120.0 /job:ps/replica:0/task:0/device:CPU:0",
    ]


def test_the_output_and_exit_code_of_a_script(demo: Sandbox) -> None:
    demo.spec("import sys\nprint('out')\nprint('err', file=sys.stderr)\nsys.exit(int(sys.argv[1]))\n", "exits.py")
    *earlier, result = demo.json_lines("run", "exits.py", "0")
    assert [event.get("line") for event in earlier] == [None, "out", "err"]
    assert (result["program"], result["state"], result["result"]) == ("script", "succeeded", {"exit_code": 0})
    failed = demo("run", "exits.py", "3", code=3)
    assert (failed.stdout, failed.stderr) == ("out\n", "err\n"), "as with python, which adds nothing either"
    last = demo.json("runs", "-n", "1")[0]
    assert (last["state"], last["result"]) == ("failed", {"exit_code": 3})
    assert last["error"]["message"] == "exits.py ended with exit code 3"
    attached = demo("attach", last["run"], code=3)
    assert (attached.stdout, attached.stderr) == ("out\n", "err\n")


def test_a_scripts_traceback_is_shown_once(demo: Sandbox) -> None:
    script = demo.spec("def inner():\n    raise ValueError('no data')\n\n\ninner()\n", "raises.py")
    result = subprocess.run(
        [*COMMAND, "run", script], env=demo.environment, capture_output=True, text=True, timeout=90, check=False
    )
    assert result.returncode == 1
    assert result.stdout == ""
    assert demo.json("runs")[-1]["error"]["message"] == "raises.py failed: ValueError: no data"
    lines = result.stderr.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert [line.split(", ", 1)[1] for line in lines if "File " in line] == ["line 5, in <module>", "line 2, in inner"]
    assert lines[-1] == "ValueError: no data"


@pytest.mark.slow
def test_a_script_of_20_mb_comes_through_a_pipe_as_it_is(demo: Sandbox) -> None:
    script = "import hashlib\nprint(hashlib.sha256(open(__file__, 'rb').read()).hexdigest())\n" + "# x\n" * (5 << 20)
    result = subprocess.run(
        [*COMMAND, "run", "script", "-"],
        input=script,
        env=demo.environment,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert result.stdout == hashlib.sha256(script.encode()).hexdigest() + "\n", result.stderr
    assert not list(demo.folder.glob("state/**/upload")), "it is removed when the run has ended"


@pytest.mark.parametrize(
    "line",
    [
        "run <(cat args.py) a",
        "launch --each ps /dev/stdin a < args.py",
        *(
            pytest.param(line, marks=pytest.mark.slow)
            for line in ("run script <(cat args.py) a", "run /dev/stdin a < args.py", "run - a < args.py")
        ),
    ],
)
def test_a_script_from_a_descriptor_is_run_as_a_copy(demo: Sandbox, line: str) -> None:
    demo.spec("import os, sys\nprint(os.path.exists(__file__), sys.argv[1:])\n", "args.py")
    command = f"{shlex.join(COMMAND)} {line}"
    result = subprocess.run(
        ["bash", "-c", command],
        cwd=demo.folder,
        env=demo.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert (result.stdout.rpartition(" | ")[2], result.stderr, result.returncode) == ("True ['a']\n", "", 0)
    assert "cannot be read again" in demo("rerun", demo.json("runs")[-1]["run"], code=2).stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("none.py",), "'none.py': no such file or directory"),
        (("./none",), "'./none': no such file or directory"),
        (("none",), "No such command 'none'"),
        (("--timeout", "none.py"), "Invalid value for '--timeout'"),
        (("--samples", "5", "pi"), "A program's options come after its name: tfcluster run pi ..."),
    ],
)
def test_a_missing_script(demo: Sandbox, words: tuple[str, ...], message: str) -> None:
    assert message in demo("run", *words, code=2).stderr
