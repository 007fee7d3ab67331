"""A script at a terminal: it reads what is typed, Ctrl-C and Ctrl-Z are its, and its terminal has the window's size.

And commands whose standard streams are closed, full, or cannot encode text, or whose limits are too low.
"""

from __future__ import annotations

import os
import shlex
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest

from tests.conftest import SCRIPTS, Result, Sandbox, mostly_slow


@pytest.fixture
def shell(demo: Sandbox) -> Iterator[pexpect.spawn[str]]:
    """A shell with job control at a terminal of 40 lines and 100 columns, whose prompt is `shell> `."""
    env = {"TERM": "xterm", "PS1": "shell> ", "INPUTRC": "/dev/null"}
    child = demo.at_terminal("bash", "--norc", "--noprofile", "-i", env=env)
    child.expect_exact("shell> ")
    yield child
    child.close(force=True)


def run(shell: pexpect.spawn[str], demo: Sandbox, script: Path) -> None:
    shell.sendline(shlex.join([*demo.command, "run", str(script)]))


def test_a_script_has_the_commands_terminal(demo: Sandbox, shell: pexpect.spawn[str]) -> None:
    run(shell, demo, SCRIPTS / "asks.py")
    shell.expect_exact("size 100 40\r\n")
    shell.expect_exact("name? ")
    shell.sendline("Ada")
    shell.expect_exact("Ada\r\n[name] Ada\r\n")
    shell.expect_exact("password? ")
    shell.sendline("s3cret")
    shell.expect_exact("[password] s3cret\r\n")
    assert "s3cret" not in str(shell.before), "what is typed is not echoed"
    shell.expect_exact("line? ")
    shell.setwinsize(30, 90)
    shell.expect_exact("size 90 30\r\n")

    shell.sendcontrol("z")  # the script stops too, and does not take what is typed into the shell
    shell.expect_exact("Stopped")
    shell.expect_exact("shell> ")
    shell.sendline("echo typed in the $((1 + 1))nd shell")
    shell.expect_exact("typed in the 2nd shell\r\n")
    shell.expect_exact("shell> ")
    shell.setwinsize(20, 80)
    shell.sendline("fg")
    shell.expect_exact("continued\r\n")
    shell.expect_exact("size 80 20\r\n")
    shell.sendline("later")
    shell.expect_exact("[line] later\r\n")

    shell.expect_exact("interrupt me: ")
    shell.sendcontrol("c")
    shell.expect("KeyboardInterrupt(\x1b\\[0m)?\r\n")  # in colour since Python 3.13
    shell.expect_exact("shell> ")
    shell.sendline("echo code $?")
    shell.expect_exact("code 130\r\n")
    # A shell ends a loop if the command has ended by SIGINT itself.
    shell.sendline(
        f"for number in 1 2; do {shlex.join([*demo.command, 'run', str(SCRIPTS / 'asks.py')])}; done; echo over"
    )
    shell.expect_exact("name? ")
    shell.sendcontrol("c")
    shell.expect("KeyboardInterrupt(\x1b\\[0m)?\r\n")  # in colour since Python 3.13
    shell.expect_exact("shell> ")
    assert "over" not in str(shell.before)


def test_files_in_the_folder_of_a_run_are_for_this_user_alone(demo: Sandbox, shell: pexpect.spawn[str]) -> None:
    """Those of an agent too, which has the umask of the shell that started it."""
    run(shell, demo, SCRIPTS / "asks.py")
    shell.expect_exact("name? ")
    shell.setwinsize(30, 90)
    shell.expect_exact("size 90 30\r\n")
    shell.sendcontrol("c")
    shell.expect_exact("shell> ")
    modes = {
        path.name: stat.S_IMODE(path.lstat().st_mode)
        for folder in demo.folder.glob("state/tfcluster/*/*/runs/*")
        for path in folder.iterdir()
        if path.is_file() and not path.is_symlink()
    }
    assert {"terminal", "events.jsonl", "stacks.txt"} <= modes.keys()
    assert set(modes.values()) == {0o600}, modes


BAR = """
import os, shutil, sys, time
print(sys.stdin.isatty(), sys.stdout.isatty(), sys.stderr.isatty(), shutil.get_terminal_size(), os.ttyname(0) != "")
for step in range(1, 21):
    print(f"\\r{step:2}/20 [{'=' * step}{' ' * (20 - step)}]", end="", flush=step % 2 == 0)
    sys.stderr.write("\\x1b[2K" if step == 20 else ".")
print("\\n\\tdone", "\\x1b[32mgreen\\x1b[0m", "é", end="")
"""


def test_what_a_script_writes_to_a_terminal_is_what_python_writes(demo: Sandbox) -> None:
    script = demo.spec(BAR, "bar.py")
    shown = []
    for command in ((sys.executable,), (*demo.command, "run")):
        child = demo.at_terminal(*command, script, encoding=None)
        child.expect(pexpect.EOF)
        child.close()
        assert child.exitstatus == 0
        shown.append(child.before)
    assert shown[0] == shown[1]


def test_a_script_that_is_stopped_is_cancelled_with_its_command(demo: Sandbox, shell: pexpect.spawn[str]) -> None:
    run(shell, demo, demo.spec("import time\nprint('on', flush=True)\ntime.sleep(600)\n", "waits.py"))
    shell.expect_exact("on\r\n")
    shell.sendcontrol("z")
    shell.expect_exact("Stopped")
    shell.sendline("kill %1")
    shell.expect_exact(" was cancelled after ")
    assert demo.last_run()["state"] == "cancelled"


def test_a_terminal_of_another_session_is_read_like_a_pipe(demo: Sandbox) -> None:
    script = demo.spec("print(f'[{input()}]')", "asks.py")
    master, terminal = os.openpty()
    try:
        # As after `setsid`: the terminal does not control the session.
        command = [*demo.command, "run", str(script)]
        os.write(master, b"typed\n")
        result = demo.execute(*command, stdin=terminal, start_new_session=True)
        assert (result.stdout, result.stderr, result.returncode) == ("[typed]\n", "", 0)
    finally:
        os.close(master)
        os.close(terminal)


SPEC = "jobs: {worker: {tasks: 1}}\n"


def execute(sandbox: Sandbox, arguments: str, before: str = "") -> Result:
    """Run a command by a shell, which closes its streams or lowers its limits."""
    return sandbox.execute("bash", "-c", f"{before}exec {shlex.join(sandbox.command)} {arguments}")


@pytest.mark.parametrize("closed", mostly_slow([">&-", "<&- >&- 2>&-"], fast=[">&-"]))
def test_closed_streams_are_no_error(sandbox: Sandbox, closed: str) -> None:
    (sandbox.folder / "cluster.yaml").write_text(SPEC)
    for command in ("validate", "up", "status", "logs", "--help", "down"):
        result = execute(sandbox, f"{command} {closed}")
        assert result.returncode == 0, (command, result.stderr)
        assert "AttributeError" not in result.stderr
    assert (sandbox.folder / "cluster.yaml").read_text() == SPEC


def test_a_result_that_a_stream_cannot_encode_is_escaped(demo: Sandbox) -> None:
    result = demo("run", "pi", "--samples", "1e4", "--seed", "1", env={"PYTHONIOENCODING": "ascii"})
    assert result.stdout.startswith("pi = 3.121 \\xb1 0.017 (standard error)")


def test_output_that_cannot_be_written_is_no_mistake_of_ours(demo: Sandbox) -> None:
    result = execute(demo, "logs > /dev/full")
    assert (result.returncode, result.stderr) == (1, "error: No space left on device\n")


def test_a_limit_that_is_too_low_is_named(sandbox: Sandbox) -> None:
    (sandbox.folder / "cluster.yaml").write_text(SPEC)
    result = execute(sandbox, "up", before="ulimit -n 10; ")
    assert (result.returncode, result.stderr.splitlines()[-2:]) == (
        1,
        ["error: Too many open files", "hint: The limit on open files is too low: raise it with `ulimit -n 1024`."],
    )
    result = execute(sandbox, "up", before="ulimit -v 400000; ")
    assert result.returncode == 1
    assert "hint: The limit on memory (`ulimit -v`) is too low." in result.stderr
