"""What runs print cannot command the terminal of the one who looks at it; tests/cli/ has tasks, agents and hosts."""

from __future__ import annotations

import re
import subprocess

import pexpect
import pytest

from tests.conftest import COMMAND, Sandbox

#: A title, a cleared screen, a clipboard that is written, a C1 sequence, DEL, and text from right to left.
EVIL = "\x1b]0;title\x07\x1b[2J\x1b[H\x1b]52;c;ZXZpbA==\x07\x9b31m\x7f\u202etxt"
SHOWN = r"\x1b]0;title\x07\x1b[2J\x1b[H\x1b]52;c;ZXZpbA==\x07\x9b31m\x7f\u202etxt"

_PRINTS = f"print({EVIL!r})\nprint('windows\\r')\nprint('10%\\r20%')\n"
_FAILS = f"{_PRINTS}raise ValueError({EVIL!r})\n"

# What rich and click send by themselves: styles, a hidden or moved cursor, a cleared line.
_OURS = re.compile(r"\x1b\[(?:[0-9;]*m|\?25[lh]|2K|1A)|\r(?=\n|\x1b)|\r$")
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def at_a_terminal(sandbox: Sandbox, *arguments: str, code: int = 0) -> str:
    """What a command writes to a terminal, until it ends."""
    child = sandbox.at_terminal(*COMMAND, *arguments, dimensions=(40, 250))
    child.expect(pexpect.EOF)
    child.close()
    shown = str(child.before)
    assert child.exitstatus == code, shown
    return shown


def into_a_pipe(sandbox: Sandbox, *arguments: str, code: int = 0) -> str:
    """What a command writes to a pipe, byte for byte; a script's traceback may be in it."""
    result = subprocess.run(
        [*COMMAND, *arguments],
        cwd=sandbox.folder,
        env=sandbox.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=90,
        check=False,
    )
    assert result.returncode == code, result
    return result.stdout.decode()


def harmless(shown: str) -> str:
    """What is left on the screen, after a check that nothing has commanded the terminal but rich and click."""
    left = _OURS.sub("", shown)
    assert not _CONTROL.search(left), ascii(shown)
    return left


@pytest.fixture(scope="module")
def visited(demo: Sandbox) -> Sandbox:
    """The example cluster, with a script that prints EVIL and one that fails with it too."""
    demo.spec(_PRINTS, "prints.py")
    demo.spec(_FAILS, "fails.py")
    return demo


@pytest.fixture(scope="module")
def failed_run(visited: Sandbox) -> str:
    """A run that has printed EVIL and failed with it."""
    into_a_pipe(visited, "run", "fails.py", code=1)
    return str(visited.json("runs", "-n", "1")[0]["run"])


def test_a_run_is_shown_to_others_and_not_obeyed(visited: Sandbox, failed_run: str) -> None:
    assert SHOWN in harmless(at_a_terminal(visited, "logs", failed_run, "--no-prefix")).splitlines()
    attached = harmless(at_a_terminal(visited, "attach", failed_run, code=1)).splitlines()
    assert {SHOWN, "windows", r"10%\r20%"} <= {*attached}
    assert f"ValueError: {SHOWN}" in attached
    assert into_a_pipe(visited, "attach", failed_run, code=1).startswith(f"{SHOWN}\nwindows\n")
    assert SHOWN in harmless(at_a_terminal(visited, "runs"))


def test_the_one_who_started_a_run_gets_what_it_prints_as_it_is(visited: Sandbox) -> None:
    shown = at_a_terminal(visited, "run", "fails.py", code=1)
    assert shown.count(EVIL) == 2, "the line, and the last of the traceback"
    assert into_a_pipe(visited, "run", "prints.py") == f"{EVIL}\nwindows\r\n10%\r20%\n"
