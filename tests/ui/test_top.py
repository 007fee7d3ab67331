"""The screen of `top` on a pseudo-terminal, with a cluster that is made up: sizes, colours, keys, and how it ends.

What it does with a real cluster is in tests/end_to_end/test_top.py.
"""

from __future__ import annotations

import os
import signal
import sys
import termios
from pathlib import Path

import pytest
from textual.binding import Binding

from tests.conftest import ROOT, mostly_slow, wait_for
from tests.screens import DOWN, END, ENTER, ESCAPE, SUSPEND, TAB, Terminal
from tfcluster.ui.top.app import TopApp
from tfcluster.ui.top.screens import KEYS, DetailScreen

# Two hosts and 60 tasks; the arguments change what is there.
_PROGRAM = """
import dataclasses, os, sys, time
from tfcluster.client.cluster import Cluster
from tfcluster.client.live.live_cluster import LiveCluster
from tfcluster.client.live.view import Link, LiveRun
from tfcluster.client.status import ClusterSnapshot
from tfcluster.core.hosts import Host
from tfcluster.core.states import ClusterState, HostState, RunState, TaskState
from tfcluster.core.status import ClusterStatus, GpuLoad, HostLoad, HostStatus, TaskStatus
from tfcluster.errors import ClusterError
from tfcluster.protocol.api.runs import RunSummary
from tfcluster.ui.top import app
words = set(sys.argv[1:])
gpus = tuple(GpuLoad(str(number), "H100", 50.0, 10 << 30, 80 << 30) for number in range(2))
load = HostLoad(12.0, 16, 3 << 30, 64 << 30, gpus)
hosts = (HostStatus("alpha", HostState.UP, 7, "2.21.0", load), HostStatus("beta", HostState.UNREACHABLE, None, None))
def task(number):
    host = "alpha" if number < 58 else "beta"
    state = TaskState.FAILED if number == 57 else TaskState.READY if host == "alpha" else TaskState.UNRESPONSIVE
    pid = 1000 + number if host == "alpha" else None
    return TaskStatus(f"/job:worker/task:{number}", "worker", number, host, f"{host}:{2222 + number}", state, pid,
        number % 7, 100.0, float(number), (number + 1) << 20, (), None)
tasks = tuple(task(number) for number in range(60))
def run(name, state, **more):
    record = RunSummary(name, "linear", {"steps": 100}, state, 12.0, time.time() - 20, {"loss": 0.5}, None, None, None)
    return LiveRun("alpha", record, **more)
runs = (
    run("linear-1111", RunState.SUCCEEDED),
    run("[b]linear-2222", RunState.RUNNING, progress={"done": 25, "total": 100, "unit": "steps", "seconds": 1.0},
        metrics={"loss": 0.25}, step=25),
)
event = {"time": time.time(), "task": "worker:57", "event": "died", "detail": "SIGKILL [bold]\\x1b[2J", "host": "alpha"}
status = ClusterStatus("many", ClusterState.DEGRADED, "many.yaml", hosts, tasks, ())
class Live(LiveCluster):
    version = 1
    def __init__(self, cluster, snapshot):
        pass
    def start(self):
        pass
    def close(self):
        pass
    def view(self):
        from tfcluster.client.live.view import LiveView
        if "breaks" in words and os.path.exists("now"):
            raise ValueError("of the test")
        down = ClusterError("cluster 'many' went down", exit_code=3) if os.path.exists("down") else None
        links = {"alpha": Link(), "beta": Link(time.time(), "connection lost")}
        return LiveView(status, links, runs, (event,), down)
    def follow_log(self, name, host, level, show, on_hidden):
        if level == "info" and "silent" not in words:
            show({"line": "dump", "time": 0.0, "task": name})
        elif level != "info":
            on_hidden(7)
        if "silent" in words:
            return lambda: None
        for number in range(100):
            show({"line": f"line {number} of {name}\\x1b[2J [red]", "time": 0.0, "task": name})
        return lambda: None
app.LiveCluster = Live
sys.argv[:] = ["tfcluster", "top", "-c", "many"]
from tfcluster.cli import main, top
from tfcluster.client import resolve, status as of_status
resolve.resolve_cluster = lambda name: Cluster("many", (Host("alpha", "alpha"), Host("beta", "beta")))
of_status.take_snapshot = lambda cluster: None
main.main()
"""

_ENTERED, _LEFT = b"\x1b[?1049h", b"\x1b[?1049l"  # the alternate screen
_CURSOR_HIDDEN, _CURSOR_SHOWN = b"\x1b[?25l", b"\x1b[?25h"
_NOT_INHERITED = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES")


def open_top(folder: Path, *words: str, columns: int = 80, lines: int = 24, **environment: str) -> Terminal:
    inherited = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
    return Terminal(
        [sys.executable, "-c", _PROGRAM, *words],
        {**inherited, "PYTHONPATH": str(ROOT), **environment},
        folder,
        columns,
        lines,
    )


def test_80_columns_show_everything_that_matters(tmp_path: Path) -> None:
    with open_top(tmp_path) as top:
        text = top.wait_for(r"q Quit", r"^worker:0 ", r"linear-1111")
        lines = text.splitlines()
        assert lines[0] == " many  degraded  57 of 60 tasks ready on 2 hosts"
        assert lines[1].startswith(" alpha  up    CPU  12% of 16  memory 3.0 of 64.0 GiB  2 GPUs 50% 20.0 of 16")
        assert lines[2].startswith(" beta   unreachable since ")
        assert lines[2].endswith("connection lost")
        assert lines[3].split() == ["TASK", "HOST", "ADDRESS", "STATE", "UPTIME", "RESTARTS", "CPU", "MEMORY"]
        assert "[b]linear-2222  running" in text  # names are no markup
        assert "████░░░░░░░░░░  25%  step=25 loss=0.25" in text
        assert "loss=0.5" in text
        assert r"SIGKILL [bold]\x1b[2J" in text
        assert " r  tfcluster restart worker:0 -c many" in lines
        assert len(lines) == 24
        top.resize(140, 40)
        # The frame arrives in parts, and the footer of the smaller screen is still there: wait for the last task too.
        top.wait_for("ADDRESS +STATE +PID", r"alpha:2222", "^worker:20 ", r"q Quit")
        top.resize(80, 24)
        top.wait_until(lambda text: " PID " not in text and "q Quit" in text and "worker:20" not in text)
        top.send("q")
        assert top.wait_for_end() == 0
        assert _LEFT in top.raw
        assert top.raw.rindex(_CURSOR_SHOWN) > top.raw.index(_LEFT) - 100


@pytest.mark.slow
def test_sixty_tasks_are_reached_sorted_and_filtered(tmp_path: Path) -> None:
    with open_top(tmp_path) as top:
        top.wait_for(r"^worker:0 ", "q Quit")
        top.send(DOWN)
        top.wait_for(r"^ r  tfcluster restart worker:1 -c many")
        top.send(END)
        text = top.wait_for(r"^ r  tfcluster restart worker:59 -c many", r"^worker:59 +beta +\S+ +unresponsive")
        assert "worker:0 " not in text
        top.send("s")  # by state
        top.wait_for("sorted by state", r"^ r  tfcluster restart worker:59 ")  # the cursor stays on its task
        top.send("s")
        top.wait_for("sorted by CPU")
        top.send("f")
        top.wait_for("filter tasks, runs and events")
        top.send("failed")
        top.wait_until(lambda text: "worker:57 " in text and "filter: failed" in text and "worker:56 " not in text)
        top.wait_until(lambda text: "SIGKILL" not in text and "RUN " not in text)  # events and runs are filtered too
        top.send("-nowhere")
        top.wait_for("^ nothing matches 'failed-nowhere': Esc shows everything")
        top.send("\x7f" * len("-nowhere") + ENTER)
        top.wait_for(r"^ r  tfcluster restart worker:57 -c many")
        top.send(ESCAPE)
        top.wait_until(lambda text: "filter:" not in text and "worker:56 " in text)
        top.send("?")
        top.wait_for("Esc goes back", "restart the task")
        top.send(ESCAPE)
        top.wait_for(r"^TASK ", r"s Sort f Filter")
        top.send("q")
        assert top.wait_for_end() == 0


def test_a_log_is_followed_searched_and_cannot_draw(tmp_path: Path) -> None:
    with open_top(tmp_path) as top:
        top.wait_for(r"^worker:0 ", "q Quit")
        top.send(ENTER)
        text = top.wait_for(r"line 99 of worker:0\\x1b\[2J \[red\]", "following")
        assert " $ tfcluster logs worker:0 -f -c many   following, 7 hidden" in text.splitlines()
        assert "line 70 " not in text
        top.send("/")
        top.wait_for("^search")
        top.send("LINE 4")
        top.wait_for("^LINE 4")
        top.send(ENTER)
        top.wait_for("line 49 ", "End follows")  # the last one
        top.send("N")
        top.wait_for("line 41 ")
        top.send("/")
        top.wait_for("^search")
        top.send("nowhere" + ENTER)
        top.wait_for("not found: nowhere")
        top.send(END)
        top.wait_for("line 99 ", "following")
        top.send("l")
        top.wait_for("line 99 ", "--level error   following, 7 hidden")
        top.send("l")
        top.wait_for("line 99 ", "--level info   following$")
        top.send("/")
        top.wait_for("^search")
        top.send("dump" + ENTER)
        top.wait_for("^dump$")
        top.send(END)
        top.wait_for("line 99 ", "following")
        top.send(ESCAPE)
        top.wait_for(r"^TASK ", r"s Sort f Filter")
        top.send(TAB)
        top.wait_for(r"^ c  tfcluster cancel \[b\]linear-2222 -c many")
        top.send(ENTER)
        top.wait_for(r"inputs +steps=100", r"line 99 of \[b\]linear-2222", "following")
        top.send(ESCAPE)
        top.wait_for(r"^TASK ", r"s Sort f Filter")
        top.send(DOWN)
        top.wait_for(r"^ c  tfcluster cancel linear-1111 -c many")
        top.send(ENTER)
        top.wait_for(r"line 99 of linear-1111", "   ended")
        top.send("q")
        assert top.wait_for_end() == 0


def test_a_log_without_lines_says_why(tmp_path: Path) -> None:
    with open_top(tmp_path, "silent") as top:
        top.wait_for(r"^worker:0 ", "q Quit")
        top.send(ENTER)
        top.wait_for("^ no entries at this level$", "following, 7 hidden$")
        top.send("ll")
        top.wait_for("^ no output yet$", "--level info   following$")
        top.send("q")
        assert top.wait_for_end() == 0


def test_the_help_has_every_key_that_a_screen_shows() -> None:
    shown = [binding for each in (TopApp, DetailScreen) for binding in each.BINDINGS if isinstance(binding, Binding)]
    keys = {binding.key_display or binding.key for binding in shown if binding.show} - {"?"}  # it opens the help
    named = {part for key, _ in KEYS for part in key.split(", ")}
    assert keys <= named


@pytest.mark.parametrize("number", mostly_slow([signal.SIGTERM, signal.SIGHUP, signal.SIGINT], fast=[signal.SIGTERM]))
def test_a_signal_leaves_the_terminal_as_it_was(tmp_path: Path, number: signal.Signals) -> None:
    with open_top(tmp_path) as top:
        top.wait_for(r"^worker:0 ", "q Quit")
        top.child.kill(number)
        assert top.wait_for_end() == (-number if number is signal.SIGINT else 143)
    assert _LEFT in top.raw


def test_it_ends_when_its_terminal_is_closed(tmp_path: Path) -> None:
    with open_top(tmp_path) as top:
        top.wait_for(r"^worker:0 ", "q Quit")
        with open(os.devnull) as nothing:
            os.dup2(nothing.fileno(), top.child.child_fd)
        wait_for(lambda: not top.child.isalive())
        assert top.child.exitstatus == 143


def test_ctrl_c_ends_it_as_it_ends_other_commands(tmp_path: Path) -> None:
    with open_top(tmp_path) as top:
        top.wait_for(r"^worker:0 ", "q Quit")
        top.send("\x03")
        assert top.wait_for_end() == -signal.SIGINT  # a shell shows 130
    assert _LEFT in top.raw


def test_a_cluster_that_goes_down_ends_it_with_one_line_also_without_colour(tmp_path: Path) -> None:
    with open_top(tmp_path, NO_COLOR="1") as top:
        text = top.wait_for(r"^worker:0 +alpha +\S+ +ready", r"unreachable since", "q Quit")
        assert "████░░░░░░░░░░  25%" in text
        (tmp_path / "down").touch()
        assert top.wait_for_end() == 3
    assert b"\x1b[32m" not in top.raw
    assert _LEFT in top.raw
    assert top.raw.rpartition(_LEFT)[2].count(b"error: cluster 'many' went down") == 1


def test_a_bug_leaves_the_terminal_as_it_was_and_is_one_error(tmp_path: Path) -> None:
    with open_top(tmp_path, "breaks", NO_COLOR="1") as top:
        top.wait_for(r"^worker:0 ", "q Quit")
        (tmp_path / "now").touch()
        assert top.wait_for_end() == 1
    after = top.raw.rpartition(_LEFT)[2]
    assert b"error: tfcluster failed: ValueError: of the test" in after
    assert b"Traceback" not in after


@pytest.mark.parametrize("words", mostly_slow(["", "sh -c"], fast=[""]))
def test_ctrl_z_gives_the_terminal_back_to_the_shell_until_fg(tmp_path: Path, words: str) -> None:
    """Alone, and as a part of a script, which is stopped with it. The prompt clears what the emulator has kept."""
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM)
    top = f"{sys.executable} program.py"
    command = f"sh -c '{top}; touch ended'" if words else top
    shell = {**os.environ, "PYTHONPATH": str(ROOT), "PS1": "prompt> ", "PROMPT_COMMAND": "printf '\\e[J'"}
    with Terminal(["bash", "--norc", "--noprofile", "-i"], shell, tmp_path) as bash:
        bash.wait_for("^ ?prompt>$")
        bash.send(f"stty -a > before; {command}\r")
        bash.wait_for(r"^worker:0 ", "q Quit")
        bash.send("?")
        bash.wait_for("Esc goes back")
        for key in (ESCAPE, DOWN):  # it works with a dialog, and twice
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
            bash.wait_for("restart the task" if key == ESCAPE else r"^worker:0 ")  # all of it is drawn
            bash.send(key)
            bash.wait_for(rf"^ r  tfcluster restart worker:{'0' if key == ESCAPE else '1'} -c many", "q Quit")
        bash.send("q")
        bash.wait_for("^ ?prompt>$")
        bash.send("stty -a > after; touch done\r")
        wait_for(lambda: bash._read() and (tmp_path / "done").exists())
        assert (tmp_path / "before").read_text() == (tmp_path / "after").read_text()
        assert (tmp_path / "ended").exists() == bool(words)


@pytest.mark.slow
def test_without_a_shell_ctrl_z_does_nothing_and_who_is_continued_draws_again(tmp_path: Path) -> None:
    with open_top(tmp_path) as top:
        top.wait_for(r"^worker:0 ", "q Quit")
        modes = termios.tcgetattr(top.child.child_fd)
        top.send(SUSPEND)
        top.wait_until(lambda text: top.raw.count(_ENTERED) == 2)
        top.send(DOWN)
        top.wait_for(r"^ r  tfcluster restart worker:1 -c many")
        top.child.kill(signal.SIGSTOP)
        top.child.kill(signal.SIGCONT)
        top.wait_until(lambda text: top.raw.count(_ENTERED) == 3)
        top.send(DOWN)
        top.wait_for(r"^ r  tfcluster restart worker:2 -c many")
        assert termios.tcgetattr(top.child.child_fd) == modes
        top.send("q")
        assert top.wait_for_end() == 0
