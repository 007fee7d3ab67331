"""What commands print into a pipe, whole."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import Any

import pytest
from rich.console import Console

from tests.cast import status_of
from tfcluster import settings
from tfcluster.cli.up import preflight_progress
from tfcluster.client.preflight.checks import CheckResult, Severity
from tfcluster.core.plan import ActionKind, PlannedAction, plan
from tfcluster.core.states import ClusterState, TaskState
from tfcluster.core.status import ClusterStatus, TaskStatus
from tfcluster.core.topology import ClusterTopology, RestartPolicy, Task
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.ui.console import console, error_console, is_interactive
from tfcluster.ui.listings import show_checks, show_status
from tfcluster.ui.log_view import LogView
from tfcluster.ui.progress_views import DownView, RestartView, UpView
from tfcluster.ui.run_view import RunView


@pytest.fixture(autouse=True)
def fresh_consoles(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Consoles are made once a process; each test needs those of its own captured output."""
    for variable in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(variable, raising=False)
    console.cache_clear()
    error_console.cache_clear()
    yield
    console.cache_clear()
    error_console.cache_clear()


def printed(capsys: pytest.CaptureFixture[str]) -> str:
    """What stands on standard output, without the blanks that end its lines."""
    return _without_end_blanks(capsys.readouterr().out)


def _without_end_blanks(text: str) -> str:
    return "".join(line.rstrip() + "\n" for line in text.splitlines())


def task(job: str, index: int, state: TaskState, **other: Any) -> TaskStatus:
    values: dict[str, Any] = dict.fromkeys(("pid", "uptime_s", "cpu_percent", "rss_bytes", "last_exit"))
    values |= {"address": f"localhost:{2222 + index}", "restarts": 0, "devices": (), **other}
    return TaskStatus(f"/job:{job}/task:{index}", job, index, "localhost", state=state, **values)


def test_checks_in_a_pipe_are_no_wider_than_what_they_say_also_without_a_text(
    capsys: pytest.CaptureFixture[str],
) -> None:
    long_advice = "Type `" + "x" * 150 + "`."
    hint = f"{long_advice}\nThen try again."
    show_checks(
        [
            CheckResult("alpha", "reach", Severity.OK, "ssh answers"),
            CheckResult("b", "tensorflow", Severity.ERROR, "no TensorFlow", hint=hint),
            CheckResult("gamma", "agent", Severity.ERROR, ""),  # as of one that has died
        ]
    )
    assert printed(capsys) == (
        "alpha  reach       ok       ssh answers\n"
        f"b      tensorflow  problem  no TensorFlow\n    {long_advice}\n    Then try again.\n"
        "gamma  agent       problem\n"
    )


PI: dict[str, Any] = {
    "event": "result",
    "run": "pi-3f9a",
    "program": "pi",
    "state": "succeeded",
    "seconds": 0.41,
    "result": {
        "pi": 3.1414528,
        "stderr": 0.00051929,
        "interval": [3.14043486, 3.14247051],
        "samples": 10_000_000,
        "inside": 7_853_632,
        "samples_per_s": 507_000_000,
        "seed": 7,
    },
    "devices": {
        "/job:worker/task:1/device:CPU:0": {"ops": 12, "samples": 5_805_696},
        "/job:worker/task:0/device:CPU:0": {"ops": 12, "samples": 4_194_304},
    },
    "notes": ["4 GPU devices asked for, the cluster has 0: running on 2 CPU devices"],
}


def test_a_result_of_pi(capsys: pytest.CaptureFixture[str]) -> None:
    RunView(silent=False).finish(PI)
    expected = """\
pi = 3.14145 ± 0.00052 (standard error), 95% interval 3.14043 to 3.14247
7,853,632 of 10,000,000 random points in the unit square are inside the quarter circle
0.4s, 507 M samples/s, seed 7

DEVICE                           OPS    SAMPLES
/job:worker/task:0/device:CPU:0   12  4,194,304
/job:worker/task:1/device:CPU:0   12  5,805,696
note: 4 GPU devices asked for, the cluster has 0: running on 2 CPU devices
"""
    assert printed(capsys) == expected


@pytest.mark.parametrize(
    ("pi", "stderr", "interval", "line"),
    [
        (4.0, 0.0, [3.2, 4.0], "pi = 4.000000 ± 0.000000 (standard error), 95% interval 3.200000 to 4.000000"),
        (3.2, 0.5, [2.2, 3.8], "pi = 3.20 ± 0.50 (standard error), 95% interval 2.20 to 3.80"),
        (2.0, 1.4, [0.4, 3.6], "pi = 2.00 ± 1.40 (standard error), 95% interval 0.40 to 3.60"),
    ],
)
def test_pi_has_the_digits_that_its_error_leaves_it(
    capsys: pytest.CaptureFixture[str], pi: float, stderr: float, interval: list[float], line: str
) -> None:
    result = {**PI["result"], "pi": pi, "stderr": stderr, "interval": interval}
    RunView(silent=False).finish({**PI, "result": result})
    assert printed(capsys).splitlines()[0] == line


def test_a_result_of_another_version_is_its_values_and_a_run_that_failed_is_its_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    RunView(silent=False).finish({**PI, "result": {"estimate": 3.5}})
    assert printed(capsys).splitlines()[:2] == ["estimate = 3.5", "0.4s"]
    error = ClusterError("pi-3f9a timed out after 1 s", exit_code=ExitCode.TIMED_OUT)
    with pytest.raises(ClusterError) as caught:
        RunView(silent=False).finish({**PI, "state": "failed", "result": None, "error": error.to_json()})
    assert (caught.value.message, caught.value.exit_code) == (error.message, ExitCode.TIMED_OUT)
    assert printed(capsys) == ""


def test_the_result_of_a_cancelled_run_is_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    view = RunView(silent=False)
    with view:
        view.update({"event": "run", "run": "pi-3f9a", "program": "pi", "devices": []})
        view.update({**PI, "state": "cancelled", "result": None})
        view.finish({**PI, "state": "cancelled", "result": None})
    out, err = capsys.readouterr()
    assert (out, err) == ("", "pi-3f9a was cancelled after 0.4s\n")


@pytest.mark.parametrize(("others", "is_repeated"), [(0, False), (settings.GROUP_LINES_IN_VIEW, True)])
def test_the_error_of_a_launch_repeats_only_lines_that_are_out_of_view(
    capsys: pytest.CaptureFixture[str], others: int, is_repeated: bool
) -> None:
    view = RunView(silent=False)
    with view:
        for task, text in [("worker:0", "Traceback\n  File x\nValueError: no\n"), ("worker:1", "trains\n" * others)]:
            view.update({"event": "output", "stream": "stdout", "task": task, "data": text})
    message = "worker:0 on localhost failed: ValueError: no\nits last lines:\n  Traceback\n    File x\n  ValueError: no"
    error = ClusterError(message, hint="The whole output: `tfcluster logs x`.")
    with pytest.raises(ClusterError) as caught:
        view.finish({**PI, "state": "failed", "result": None, "error": error.to_json()})
    assert caught.value.message == (message if is_repeated else "worker:0 on localhost failed: ValueError: no")
    assert caught.value.hint == error.hint
    assert capsys.readouterr().out.startswith("worker:0 | Traceback\n")


@pytest.mark.parametrize(("left", "said"), [(0, "0 restarts left"), (1, "1 restart left"), (2, "2 restarts left")])
def test_a_note_says_how_many_restarts_are_left(capsys: pytest.CaptureFixture[str], left: int, said: str) -> None:
    view = RunView(silent=False)
    with view:
        view.update({"event": "restart", "problem": "worker:0 failed: OSError\nmore", "seconds": 1.0, "left": left})
    assert capsys.readouterr().err == f"note: worker:0 failed: OSError: restarting all ({said})\n"


def test_progress_is_a_line_on_standard_error_when_one_is_due(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("tfcluster.ui.run_view.time.monotonic", lambda: now[0])
    for silent in (False, True):
        view = RunView(silent=silent)
        with view:
            view.update({"event": "run", "run": "pi-3f9a", "program": "pi", "devices": []})
            for done, seconds in ((10, 0.5), (25_000_000, 1.0), (26_000_000, 1.5), (75_000_000, 2.0)):
                now[0] += 0.5
                view.update(
                    {"event": "progress", "done": done, "total": 100_000_000, "unit": "samples", "seconds": seconds}
                )
    out, err = capsys.readouterr()
    assert out == ""
    assert err == (
        "pi-3f9a: 25%, 25,000,000 of 100,000,000 samples, 25 M samples/s, 3.0s left\n"
        "pi-3f9a: 75%, 75,000,000 of 100,000,000 samples, 37.5 M samples/s, 0.7s left\n"
    )


def test_how_long_a_run_takes_is_estimated_when_its_speed_says_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("tfcluster.ui.run_view.time.monotonic", lambda: now[0])
    view = RunView(silent=False)
    with view:
        view.update({"event": "run", "run": "pi-3f9a", "program": "pi", "devices": []})
        for done, seconds in ((1, 1.0), (49, 9.0), (51, 9.5), (20, 11.0)):
            now[0] += 5.0
            view.update({"event": "progress", "done": done, "total": 1000, "unit": "samples", "seconds": seconds})
        now[0] += 5.0
        view.update({"event": "progress", "done": 0, "total": 0, "unit": "samples", "seconds": 12.0})
    lines = capsys.readouterr().err.splitlines()
    assert [line.endswith(" left") for line in lines] == [False, False, True, True, False]
    assert lines[-1] == "pi-3f9a: 100%, 0 of 0 samples, 0 samples/s"


RESTART = RestartPolicy("on-failure", 0.1, 30.0, 5, 60.0)
LAYOUT = ClusterTopology(
    "demo",
    "cluster.yaml",
    "closed",
    (
        Task("ps", 0, "localhost", "localhost", 2222, 1, 0, {}, RESTART),
        Task("worker", 0, "localhost", "::1", 2223, 1, 0, {}, RESTART),
    ),
)


def test_a_plan(capsys: pytest.CaptureFixture[str]) -> None:
    view = UpView("demo", silent=False)
    view.show_plan(plan(LAYOUT, None))
    view.show_plan(())
    expected = """\
OPERATION  TASK      HOST       ADDRESS         CAUSE
start      ps:0      localhost  localhost:2222  new
start      worker:0  localhost  [::1]:2223      new
demo is up already: nothing to do
"""
    assert printed(capsys) == expected


def cluster(*tasks: TaskStatus) -> ClusterStatus:
    return ClusterStatus("demo", ClusterState.DEGRADED, "cluster.yaml", (), tasks, ())


def test_the_way_up(capsys: pytest.CaptureFixture[str]) -> None:
    view = UpView("demo", silent=False)
    ready = [task("worker", index, TaskState.READY) for index in range(6)]
    with view:
        view.update(cluster(*(task("worker", index, TaskState.STARTING) for index in range(6))))
        view.update(cluster(*(task("worker", index, TaskState.STARTING) for index in range(6))))
        view.update(cluster(*ready[:5], task("worker", 5, TaskState.BACKING_OFF)))
        view.update(cluster(*ready))
    view.finish(cluster(*ready[:2]), plan(LAYOUT, None), 0.4567)
    view.finish(cluster(*ready[:2]), (), 0.4567)
    view.finish(cluster(*ready[:2]), [PlannedAction(ActionKind.UPDATE, None, "restart policy changed")], 0.4567)
    out, err = capsys.readouterr()
    assert err == (
        "demo: 0 of 6 tasks ready, waiting for worker:0, worker:1, worker:2, worker:3 and 2 more\n"
        "demo: 5 of 6 tasks ready, waiting for worker:5\n"
    )
    expected = """\
TASK      ADDRESS         STATE
worker:0  localhost:2222  ready
worker:1  localhost:2223  ready
demo is up: 2 tasks started in 0.46 s
demo is up already: nothing changed
demo is up already: no task was changed
"""
    assert _without_end_blanks(out) == expected


def test_the_way_through_a_restart_leaves_other_tasks_out(capsys: pytest.CaptureFixture[str]) -> None:
    view = RestartView("demo", ("worker:0", "worker:1"), silent=False)
    failed, ready = task("ps", 0, TaskState.FAILED), task("worker", 1, TaskState.READY)
    with view:
        view.update(cluster(failed, task("worker", 0, TaskState.STOPPING), ready))
        view.update(cluster(failed, task("worker", 0, TaskState.STARTING), ready))
    view.finish_restart(cluster(failed, task("worker", 0, TaskState.READY), ready), 0.4567)
    out, err = capsys.readouterr()
    assert err == "demo: 1 of 2 tasks ready, waiting for worker:0\n"
    expected = """\
TASK      ADDRESS         STATE
worker:0  localhost:2222  ready
worker:1  localhost:2223  ready
demo: 2 tasks restarted in 0.46 s
"""
    assert _without_end_blanks(out) == expected


def test_a_plan_that_loses_something(capsys: pytest.CaptureFixture[str]) -> None:
    view = UpView("demo", silent=False)
    ps, worker = LAYOUT.tasks
    operations = [
        PlannedAction(ActionKind.STOP, worker, "removed", ("run pi-3f9a",)),
        PlannedAction(ActionKind.RESTART, ps, "cpus 1 -> 2", ("the variables of ps:0", "run pi-3f9a")),
        PlannedAction(ActionKind.UPDATE, None, "restart policy changed"),
    ]
    view.show_plan(operations)
    with view:
        view.stopping(cluster(task("ps", 0, TaskState.STOPPING), task("worker", 0, TaskState.STOPPING)), operations)
        view.stopping(cluster(task("ps", 0, TaskState.STOPPED), task("worker", 0, TaskState.STOPPING)), operations)
        view.stopping(cluster(task("ps", 0, TaskState.STOPPED), task("worker", 0, TaskState.STOPPED)), operations)
    out, err = capsys.readouterr()
    expected = """\
OPERATION  TASK      HOST       ADDRESS         CAUSE
stop       worker:0  localhost  [::1]:2223      removed
restart    ps:0      localhost  localhost:2222  cpus 1 -> 2
update     -         -          -               restart policy changed
LOST: run pi-3f9a
LOST: the variables of ps:0
"""
    assert _without_end_blanks(out) == expected
    assert err == "demo: stopping ps:0, worker:0\ndemo: stopping worker:0\n"


def test_the_way_down_and_a_silent_view(capsys: pytest.CaptureFixture[str]) -> None:
    view = DownView("demo", silent=False)
    with view:
        view.update(cluster(task("ps", 0, TaskState.READY), task("worker", 0, TaskState.STOPPING)))
        view.update(cluster(task("ps", 0, TaskState.STOPPING), task("worker", 0, TaskState.STOPPED)))
        view.update(cluster(task("ps", 0, TaskState.STOPPED), task("worker", 0, TaskState.FAILED)))
    view.finish()
    out, err = capsys.readouterr()
    assert err == "demo: stopping ps:0, worker:0\ndemo: stopping ps:0\n"
    assert out == "demo is down: 2 tasks stopped\n"
    for silent in (UpView("demo", silent=True), DownView("demo", silent=True)):
        with silent:
            silent.update(cluster(task("ps", 0, TaskState.STARTING)))
    assert capsys.readouterr() == ("", "")


def test_many_tasks_come_up_and_stop_in_few_lines_that_end_with_the_last(capsys: pytest.CaptureFixture[str]) -> None:
    def statuses(before: TaskState, after: TaskState) -> Iterator[ClusterStatus]:
        for done in range(len(names) + 1):
            states = [after] * done + [before] * (len(names) - done)
            yield cluster(*(task("worker", index, state) for index, state in enumerate(states)))

    names = range(100)
    up, restart = UpView("demo", silent=False), RestartView("demo", [f"worker:{n}" for n in names], silent=False)
    for view in (up, restart):
        with view:
            for status in statuses(TaskState.STARTING, TaskState.READY):
                view.update(status)
        assert capsys.readouterr().err.splitlines() == [
            "demo: 0 of 100 tasks ready, waiting for worker:0, worker:1, worker:2, worker:3 and 96 more",
            "demo: 87 of 100 tasks ready, waiting for worker:87, worker:88, worker:89, worker:90 and 9 more",
            "demo: 98 of 100 tasks ready, waiting for worker:98, worker:99",
            "demo: 99 of 100 tasks ready, waiting for worker:99",
        ]
    down = DownView("demo", silent=False)
    with down:
        for status in statuses(TaskState.STOPPING, TaskState.STOPPED):
            down.update(status)
    shown = capsys.readouterr().err.splitlines()
    assert len(shown) == 4
    assert shown[-1] == "demo: stopping worker:99"


def test_a_rolling_restart_of_many_tasks_is_shown_until_the_last(capsys: pytest.CaptureFixture[str]) -> None:
    view = RestartView("demo", [f"worker:{number}" for number in range(48)], silent=False)
    with view:
        for current in range(48):
            for now in (TaskState.STARTING, TaskState.READY):
                states = [now if number == current else TaskState.READY for number in range(48)]
                view.update(cluster(*(task("worker", index, state) for index, state in enumerate(states))))
    assert [line.rpartition(" ")[2] for line in capsys.readouterr().err.splitlines()] == [
        *("worker:0", "worker:42", "worker:47")
    ]


def test_many_hosts_are_checked_in_few_lines_and_few_in_one_each(capsys: pytest.CaptureFixture[str]) -> None:
    for count, shown in ((48, [0, 42, 47, 48]), (4, [0, 1, 2, 3, 4])):
        with preflight_progress("demo", "text") as progress:
            for done in range(count + 1):
                progress(done, count)
        expected = [f"demo: checked {done} of {count} hosts" for done in shown]
        assert capsys.readouterr().err.splitlines() == expected


def test_log_lines_are_whole_and_literal_with_their_time_and_without_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    view = LogView()
    view.show("ps:0", 0.0, "[bold]no markup[/bold] :smile: \\[x]")
    view.show("worker:0", 0.0, "x" * 5000)
    view.show("ps:0", 0.0, "")
    expected = f"""\
ps:0 | [bold]no markup[/bold] :smile: \\[x]
worker:0 | {"x" * 5000}
ps:0     |
"""
    assert printed(capsys) == expected
    LogView(timestamps=True).show("ps:0", 1795291028.25, "a line")
    LogView(timestamps=True, prefix=False).show("ps:0", 0.001, "another")
    assert printed(capsys) == "ps:0 | 2026-11-21T19:57:08.250Z a line\n1970-01-01T00:00:00.001Z another\n"


def test_a_task_has_the_same_colour_in_every_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    console.cache_clear()
    shown = {}
    for tasks in (["worker:0", "ps:0", "worker:1"], ["worker:1", "worker:0", "ps:0"]):
        view = LogView()
        for task in tasks:
            view.show(task, 0.0, "a line")
        lines = capsys.readouterr().out.splitlines()
        shown[tasks[0]] = {task: line[: line.index("m") + 1] for task, line in zip(tasks, lines, strict=True)}
    assert shown["worker:0"] == shown["worker:1"]
    assert shown["worker:0"]["worker:0"] != shown["worker:0"]["worker:1"]
    console.cache_clear()


def test_a_pipe_has_colours_only_when_they_are_forced(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    show_status(status_of("alpha"))
    plain = capsys.readouterr().out
    assert "\x1b" not in plain
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    console.cache_clear()
    show_status(status_of("alpha"))
    coloured = capsys.readouterr().out
    assert re.search(r"\x1b\[32mready *\x1b\[0m", coloured)
    assert not is_interactive(console())


def test_only_a_terminal_that_can_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    assert not is_interactive(Console(file=Terminal())), "standard output is no terminal"
    monkeypatch.setattr("sys.stdout", Terminal())
    assert is_interactive(Console(file=Terminal()))
    assert not is_interactive(Console(file=io.StringIO(), force_terminal=True))
    monkeypatch.setenv("TERM", "dumb")
    assert not is_interactive(Console(file=Terminal()))
