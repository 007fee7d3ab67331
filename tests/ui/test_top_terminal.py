"""`top` of the cast on a pseudo-terminal: how it ends, and that it leaves the terminal to the shell as it was."""

from __future__ import annotations

import os
import signal
import sys
import termios
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ROOT, wait_for
from tests.screens import DOWN, ESCAPE, SUSPEND, Terminal

# The command with the cast, which goes down, or has a bug, as soon as there is a file of that name.
_PROGRAM = """
import os, sys
from tests.cast import CastAgent, CastCluster
from tfcluster.client import resolve
from tfcluster.transport.errors import not_running
from tfcluster.ui.top.app import TopApp
call, show = CastAgent.call, TopApp._show
def call_until_down(agent, request, **options):
    agent.down = agent.down or (not_running("cast") if os.path.exists("down") else None)
    return call(agent, request, **options)
def show_until_bug(top):
    if os.path.exists("bug"):
        raise ValueError("of the test")
    show(top)
CastAgent.call, TopApp._show = call_until_down, show_until_bug
cluster = CastCluster()
resolve.resolve_cluster = lambda name: cluster
sys.argv[:] = ["tfcluster", "top", "-c", "cast"]
from tfcluster.cli.main import main
main()
"""
_ENTERED, _LEFT = b"\x1b[?1049h", b"\x1b[?1049l"  # the alternate screen
_CURSOR_HIDDEN, _CURSOR_SHOWN = b"\x1b[?25l", b"\x1b[?25h"
_NOT_INHERITED = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES")
_TASK = r"^ps:0 "


def open_top(folder: Path, **environment: str) -> Terminal:
    inherited = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
    return Terminal([sys.executable, "-c", _PROGRAM], {**inherited, "PYTHONPATH": str(ROOT), **environment}, folder)


@pytest.mark.parametrize(
    ("end", "code", "said"),
    [
        pytest.param(lambda top, folder: top.send("\x03"), -signal.SIGINT, b"", id="ctrl-c"),  # a shell shows 130
        pytest.param(lambda top, folder: top.child.kill(signal.SIGTERM), 143, b"", id="sigterm"),
        pytest.param(
            lambda top, folder: (folder / "down").touch(), 3, b"error: cluster 'cast' went down\r\nhint: ", id="down"
        ),
        pytest.param(
            lambda top, folder: (folder / "bug").touch(),
            1,
            b"error: tfcluster failed: ValueError: of the test",
            id="bug",
        ),
    ],
)
def test_its_end_leaves_the_terminal_as_it_was(
    tmp_path: Path, end: Callable[[Terminal, Path], None], code: int, said: bytes
) -> None:
    with open_top(tmp_path, NO_COLOR="1") as top:
        top.wait_for(_TASK, "q Quit")
        end(top, tmp_path)
        assert top.wait_for_end() == code
    assert top.raw.rindex(_CURSOR_SHOWN) > top.raw.rindex(_LEFT) - 100
    assert b"\x1b[32m" not in top.raw, "it has no colour"
    after = top.raw.rpartition(_LEFT)[2]
    assert after.count(b"error: ") == bool(said)
    assert said in after
    assert b"Traceback" not in after


def test_it_ends_when_its_terminal_is_closed(tmp_path: Path) -> None:
    with open_top(tmp_path) as top:
        top.wait_for(_TASK, "q Quit")
        with open(os.devnull) as nothing:
            os.dup2(nothing.fileno(), top.child.child_fd)
        wait_for(lambda: not top.child.isalive())
        assert top.child.exitstatus == 143


def test_ctrl_z_gives_the_terminal_back_to_the_shell_until_fg(tmp_path: Path) -> None:
    """A script that has started it is stopped with it. The prompt clears what the emulator has kept."""
    (tmp_path / "program.py").write_text(_PROGRAM)
    shell = {**os.environ, "PYTHONPATH": str(ROOT), "PS1": "prompt> ", "PROMPT_COMMAND": "printf '\\e[J'"}
    with Terminal(["bash", "--norc", "--noprofile", "-i"], shell, tmp_path) as bash:
        bash.wait_for("^ ?prompt>$")
        bash.send(f"stty -a > before; sh -c '{sys.executable} program.py; echo $? > ended'\r")
        bash.wait_for(_TASK, "q Quit")
        bash.send("?")
        bash.wait_for("Esc goes back")
        for key, task in ((ESCAPE, "ps:0"), (DOWN, "worker:0")):  # it works with a dialog, and twice
            bash.send(SUSPEND)
            bash.wait_for(r"Stopped .*", r"^ ?prompt>$")
            assert bash.raw.rindex(_LEFT) > bash.raw.rindex(_ENTERED)
            assert bash.raw.rindex(_CURSOR_SHOWN) > bash.raw.rindex(_CURSOR_HIDDEN)
            bash.send("stty -a > during; clear\r")
            bash.wait_until(lambda text: text.split() == ["prompt>"])
            assert (tmp_path / "before").read_text() == (tmp_path / "during").read_text()
            bash.send("fg\r")
            # It hides the cursor when it gets the keys again; it can have drawn something before.
            bash.wait_until(lambda text: bash.raw.rindex(_CURSOR_HIDDEN) > bash.raw.rindex(_CURSOR_SHOWN))
            bash.wait_for("restart the task" if key == ESCAPE else _TASK)  # all of it is drawn
            bash.send(key)
            bash.wait_for(rf"^ r  tfcluster restart {task} -c cast", "q Quit")
        bash.send("q")
        bash.wait_for("^ ?prompt>$")
        bash.send("stty -a > after; touch done\r")
        wait_for(lambda: bash._read() and (tmp_path / "done").exists())
        assert (tmp_path / "before").read_text() == (tmp_path / "after").read_text()
        assert (tmp_path / "ended").read_text() == "0\n"
        assert bash.raw.rindex(_LEFT) > bash.raw.rindex(_ENTERED)
        assert bash.raw.rindex(_CURSOR_SHOWN) > bash.raw.rindex(_CURSOR_HIDDEN)
        assert b"error: " not in bash.raw


@pytest.mark.slow
def test_without_a_shell_ctrl_z_does_nothing_and_who_is_continued_draws_again(tmp_path: Path) -> None:
    with open_top(tmp_path) as top:
        top.wait_for(_TASK, "q Quit")
        modes = termios.tcgetattr(top.child.child_fd)
        top.send(SUSPEND)
        top.wait_until(lambda text: top.raw.count(_ENTERED) == 2)
        top.send(DOWN)
        top.wait_for(r"^ r  tfcluster restart worker:0 -c cast")
        top.child.kill(signal.SIGSTOP)
        top.child.kill(signal.SIGCONT)
        top.wait_until(lambda text: top.raw.count(_ENTERED) == 3)
        top.send(DOWN)
        top.wait_for(r"^ r  tfcluster restart worker:1 -c cast")
        assert termios.tcgetattr(top.child.child_fd) == modes
        top.send("q")
        assert top.wait_for_end() == 0
