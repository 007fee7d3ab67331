"""tfcluster.metric: what it refuses, what it does outside of a run, and which points of a long series it keeps."""

from __future__ import annotations

import itertools
import math
import os
import signal
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

import tfcluster
from tfcluster import reporting, settings
from tfcluster.reporting import Event, MetricReporter


@pytest.mark.parametrize(
    ("name", "value", "step", "problem"),
    [
        (3, 1.0, 0, "the name must be a string, not 3"),
        ("", 1.0, 0, "'' is not a name"),
        (" loss", 1.0, 0, "no space before or after"),
        ("lo\nss", 1.0, 0, "printable"),
        ("x" * 81, 1.0, 0, "1 to 80"),
        ("loss", "0.5", 0, "the value of 'loss' must be one number, not '0.5'"),
        ("loss", None, 0, "one number, not None"),
        ("loss", True, 0, "one number, not True"),
        ("loss", np.zeros(3), 0, "one number"),
        ("loss", 1.0, 0.5, "the step of 'loss' must be an integer, not 0.5"),
        ("loss", 1.0, True, "an integer, not True"),
        ("loss", 1.0, -1, "at least 0"),
        ("loss", 1.0, 2**53, "below 2"),
        ("loss", 1.0, 10**400, "below 2"),
    ],
)
def test_a_wrong_argument_is_refused_also_outside_of_a_run(name: Any, value: Any, step: Any, problem: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^tfcluster.metric: .*{problem}"):
        tfcluster.metric(name, value, step)


def test_outside_of_a_run_it_does_nothing_and_imports_little() -> None:
    code = (
        "import sys, tfcluster; tfcluster.metric('loss', 0.5, 3)\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('tensorflow', 'click', 'rich', 'asyncio')])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (result.stdout, result.stderr) == ("[]\n", "")


def make_reporter(refused: set[int] | None = None) -> tuple[MetricReporter, list[Event]]:
    sent: list[Event] = []

    def send(event: Event, may_wait: bool) -> bool:
        if event["step"] in (refused or ()):
            return False
        sent.append(event)
        return True

    return MetricReporter(send), sent


def test_what_an_event_says_and_a_point_that_could_not_be_sent_is_sent_with_the_flush() -> None:
    reporter, sent = make_reporter()
    reporter.report("loss", 0.5, 3)
    assert 0 <= sent[0].pop("seconds") < 100
    assert sent == [{"event": "metric", "name": "loss", "value": 0.5, "step": 3}]
    refused = {7}
    reporter, sent = make_reporter(refused)
    reporter.report("loss", 0.5, 7)
    assert sent == []
    refused.clear()
    reporter.flush()
    assert [event["step"] for event in sent] == [7]


def test_a_signal_handler_reports_while_it_interrupts_a_report() -> None:
    sent: list[int] = []

    def send(event: Event, may_wait: bool) -> bool:
        sent.append(event["step"])
        if event["step"] == 1:
            signal.raise_signal(signal.SIGUSR1)
        return True

    reporter = MetricReporter(send)

    def handle(number: int, frame: object) -> None:
        reporter.report("loss", 0.5, 2)
        reporter.report("other", 0.5, 3)

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        reporter.report("loss", 1.0, 1)
        reporter.flush()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert sent == [1, 2, 3]


def test_a_child_that_is_forked_while_another_thread_reports_can_report() -> None:
    sends, may_go_on = threading.Event(), threading.Event()
    reader, writer = os.pipe()

    def send(event: Event, may_wait: bool) -> bool:
        if event["step"] == 1:
            sends.set()
            return may_go_on.wait()
        os.write(writer, b"%d\n" % event["step"])
        return True

    reporter = MetricReporter(send)
    thread = threading.Thread(target=reporter.report, args=("loss", 0.5, 1), daemon=True)
    thread.start()
    sends.wait()
    if not (child := os.fork()):
        try:
            reporter.report("other", 0.5, 2)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    may_go_on.set()
    thread.join()
    os.close(writer)
    with open(reader) as reading:
        assert reading.read() == "2\n"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, np.float32("nan"), 10**400])
def test_what_json_cannot_say_is_null(monkeypatch: pytest.MonkeyPatch, value: Any) -> None:
    reporter, sent = make_reporter()
    monkeypatch.setattr(reporting, "_reporters", [reporter])
    tfcluster.metric("loss", value, 0)
    assert [event["value"] for event in sent] == [None]


def test_a_long_series_is_thinned_out_and_has_its_last_point(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    reporter, sent = make_reporter()
    for step in range(1_000_00):
        reporter.report("loss", float(step), step)
        now += 0.01
    reporter.flush()
    assert [event["step"] for event in sent[: settings.METRIC_POINTS]] == list(range(settings.METRIC_POINTS))
    assert len(sent) < 10 * settings.METRIC_POINTS
    gaps = [later["step"] - event["step"] for event, later in itertools.pairwise(sent)]
    assert max(gaps) <= 1 + 99_999 / settings.METRIC_POINTS
    assert (sent[-1]["step"], sent[-1]["value"]) == (99_999, 99_999.0)
    reporter.flush()
    assert sent[-2]["step"] != 99_999, "the last point is sent once"


def test_a_name_for_each_step_is_refused() -> None:
    reporter, _ = make_reporter()
    for number in range(settings.METRIC_NAMES_MAX):
        reporter.report(f"loss {number}", 0.0, 0)
    reporter.report("loss 0", 1.0, 1)
    with pytest.raises(ValueError, match="one name too many"):
        reporter.report("another", 0.0, 0)


def test_series_of_one_name_are_kept_apart_and_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "METRIC_SERIES_MAX", 9)
    reporter, sent = make_reporter()
    series = [f"worker:{number}" for number in range(9)]
    for each in series:
        reporter.report("loss", 0.5, 3, each)
    assert [event["series"] for event in sent] == series
    with pytest.raises(ValueError, match="one series too many"):
        reporter.report("loss", 0.5, 3, "another")
    with pytest.raises(TypeError, match="the series must be a string"):
        tfcluster.metric("loss", 0.5, 3, series=7)  # type: ignore[arg-type]
