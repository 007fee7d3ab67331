"""What a person at a terminal sees: colour and movement there, and neither where it was not asked for."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

import pexpect
import pytest

from tests.conftest import COMMAND, EXAMPLE, Sandbox

_GREEN = "\x1b[32m"
_CURSOR_UP_OR_HIDE = re.compile(r"\x1b\[(?:1A|\?25l)")


def at_a_terminal(sandbox: Sandbox, arguments: str, columns: int = 100, env: Mapping[str, str] | None = None) -> str:
    child = sandbox.at_terminal(*COMMAND, *shlex.split(arguments), env=env, dimensions=(40, columns))
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0
    return str(child.before)


def test_states_are_coloured_unless_that_is_refused(demo: Sandbox) -> None:
    assert f"{_GREEN}ready" in at_a_terminal(demo, "status")
    assert "\x1b[" not in at_a_terminal(demo, "status", env={"NO_COLOR": "1"}), "nor is anything bold"
    assert "\x1b" not in demo("status").stdout
    assert f"{_GREEN}ready" in demo("status", env={"FORCE_COLOR": "1"}).stdout


@pytest.mark.slow
def test_a_run_shows_its_rate_and_remaining_time(demo: Sandbox) -> None:
    shown = at_a_terminal(demo, "run pi --samples 1e9")
    assert _CURSOR_UP_OR_HIDE.search(shown)
    assert re.search(r"pi-[0-9a-f]+ .*━.*\d+%", shown)
    assert re.search(r"[MG] samples/s", shown)
    assert "pi = " in re.sub(r"\x1b\[[0-9;]*m", "", shown)


@pytest.mark.parametrize("columns", [80, 120])
def test_status_fits_the_terminal(demo: Sandbox, columns: int) -> None:
    lines = at_a_terminal(demo, "status", columns, {"NO_COLOR": "1"}).splitlines()
    plain = [re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", line) for line in lines]
    table = [line for line in plain if re.match(r"(TASK|ps:0|worker:\d) (?!last ended)", line)]
    assert len(table) == 4
    assert all(len(line) <= columns for line in table)
    assert ("HOST" in table[0]) is (columns == 120)
    assert all("localhost:" in line and "ready" in line and line.rstrip().endswith("CPU:0") for line in table[1:])


def test_nothing_moves_when_output_goes_to_a_file(demo: Sandbox, sandbox: Sandbox) -> None:
    shown = at_a_terminal(sandbox, f"up {EXAMPLE} --dry-run")
    assert "OPERATION" in shown
    child = demo.at_terminal("sh", "-c", f"{shlex.join(COMMAND)} restart worker:1 --yes > printed")
    child.expect(pexpect.EOF)
    child.close()
    assert not _CURSOR_UP_OR_HIDE.search(str(child.before))
    assert "1 task restarted" in (demo.folder / "printed").read_text()


@pytest.mark.slow
def test_a_question_is_asked_before_something_is_lost(sandbox: Sandbox) -> None:
    spec = "name: asks\njobs:\n  ps: {tasks: 1%s}\n"
    sandbox("up", sandbox.spec(spec % ""))
    before = sandbox.task("ps:0")["pid"]
    sandbox.spec(spec % ", cpus: 2")
    for answer, code in (("", 1), ("y", 0)):
        child = sandbox.at_terminal(*COMMAND, "up")
        child.expect_exact("lose that? [y/N]")
        assert "\x1b[33mrestart" in str(child.before)
        child.sendline(answer)
        child.expect(pexpect.EOF)
        child.close()
        assert child.exitstatus == code
        assert (sandbox.task("ps:0")["pid"] == before) is (code == 1)
