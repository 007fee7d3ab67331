"""`top` of the cast through Textual's pilot: what each screen shows, whole, and what the keys do.

How it ends, and what it does to a terminal, is in test_top_terminal.py; a real cluster is in
tests/end_to_end/test_top.py.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import pytest
from textual.binding import Binding
from textual.pilot import Pilot

from tests.cast import CastCluster
from tests.cast import cast as cast
from tests.goldens import Update, golden, is_golden
from tfcluster.client.status import take_snapshot
from tfcluster.protocol.api.runs import CancelRequest
from tfcluster.ui.top import app
from tfcluster.ui.top.app import TopApp
from tfcluster.ui.top.rows import event_lines, share_lines
from tfcluster.ui.top.screens import KEYS, DetailScreen


class NoTerminal:
    """In place of the signals of a terminal: the test has none, and keeps its own handlers."""

    def __init__(self, top: TopApp) -> None: ...

    def start(self) -> None: ...

    def handle(self) -> None: ...


@dataclass
class Top:
    """What a test does with `top`, and sees of it."""

    pilot: Pilot[Any]

    @property
    def text(self) -> str:
        """The screen as text, without the blanks at the ends of its lines."""
        lines = self.pilot.app.screen._compositor.render_strips()
        return "\n".join(strip.text.rstrip() for strip in lines)

    async def wait_until(self, is_shown: Callable[[str], object]) -> None:
        deadline = time.monotonic() + 60.0
        while not is_shown(self.text):
            assert time.monotonic() < deadline, f"not shown:\n{self.text}"
            await self.pilot.pause(0.02)

    async def press(self, *keys: str, shows: str) -> None:
        """Press keys, and wait until the screen has some words."""
        await self.pilot.press(*keys)
        await self.wait_until(lambda text: shows in text)

    async def check(self, file: str) -> None:
        """Compare the screen with a golden file, when all of it has been drawn."""
        await self.pilot.pause(0.5 if Update.is_on else 0.0)
        with contextlib.suppress(AssertionError):
            await self.wait_until(lambda text: is_golden(file, text))
        golden(file, self.text)


@pytest.fixture
async def opened(
    cast: CastCluster, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> AsyncIterator[Top]:
    """`top` with the cast, on a screen of 100 columns and 40 lines, or of the size that a test names."""
    monkeypatch.setattr(app, "TerminalSignals", NoTerminal)
    top = TopApp(cast, take_snapshot(cast))
    async with top.run_test(size=getattr(request, "param", (100, 40))) as pilot:
        opened = Top(pilot)
        for host in ("CPU  97% of 16", "CPU    - of 8", "unreachable since"):
            await opened.press(shows=host)
        yield opened
    top.live.close()


def sized(columns: int, lines: int) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("opened", [(columns, lines)], indirect=True)


async def test_the_first_screen_at_several_sizes(opened: Top) -> None:
    await opened.check("top.txt")
    for columns, lines, file in ((60, 24, "top-narrow.txt"), (200, 24, "top-wide.txt"), (100, 40, "top.txt")):
        await opened.pilot.resize_terminal(columns, lines)
        await opened.check(file)


@sized(60, 24)
async def test_the_name_of_a_task_is_shortened_and_its_index_is_not(opened: Top) -> None:
    await opened.check("top-narrow.txt")
    await opened.press("end", shows=" r  tfcluster restart evaluator:0 -c cast")
    await opened.wait_until(
        lambda text: re.search(r"^preprocessing_of_la\w*…:0  +\S+ .*iB$", text, re.MULTILINE) is not None
    )


async def test_the_help(opened: Top) -> None:
    await opened.press("question_mark", shows="Esc goes back")
    await opened.check("top-help.txt")
    await opened.press("escape", shows="q Quit")


def test_the_help_has_every_key_that_a_screen_shows() -> None:
    shown = [binding for each in (TopApp, DetailScreen) for binding in each.BINDINGS if isinstance(binding, Binding)]
    keys = {binding.key_display or binding.key for binding in shown if binding.show} - {"?"}  # it opens the help
    named = {part for key, _ in KEYS for part in key.split(", ")}
    assert keys <= named


@sized(100, 24)
async def test_tasks_are_chosen_and_sorted(opened: Top) -> None:
    await opened.press("down", shows=" r  tfcluster restart worker:0 -c cast")
    await opened.press("end", shows=" r  tfcluster restart evaluator:0 -c cast")
    await opened.wait_until(lambda text: "\nps:0 " not in text and "\nevaluator:0 " in text)
    await opened.press("home", "down", "down", "down", shows=" r  tfcluster restart worker:2 -c cast")
    for order in ("state", "CPU", "memory", "restarts"):
        await opened.press("s", shows=f"sorted by {order}")
        await opened.wait_until(lambda text: " r  tfcluster restart worker:2 -c cast" in text)  # it stays chosen
    await opened.press("home", shows=" r  tfcluster restart worker:2 -c cast")  # with the most restarts
    await opened.press("s", "s", shows="tasks ready on 4 hosts\n")


async def test_tasks_runs_and_events_are_filtered(opened: Top) -> None:
    await opened.press("f", shows="filter tasks, runs and events")
    await opened.press(*"FAIL", shows="filter: FAIL")
    await opened.check("top-filtered.txt")
    await opened.press(*"nowhere", shows=" nothing matches 'FAILnowhere': Esc shows everything")
    await opened.press(*["backspace"] * 7, "enter", shows=" r  tfcluster restart worker:2 -c cast")
    await opened.press("escape", shows="\nworker:3 ")
    assert "filter:" not in opened.text


async def test_a_task_and_its_log_which_is_searched(opened: Top) -> None:
    await opened.press("down", "enter", shows="line 99 of worker:0")
    await opened.check("top-task.txt")
    await opened.press("slash", *"0 OF", "enter", "N", "N", shows="line 55 ")  # 90, 80, 70
    assert "End follows" in opened.text
    await opened.pilot.press("n")
    await opened.wait_until(lambda text: "line 55 " not in text)
    await opened.press("slash", *"nowhere", "enter", shows="not found: nowhere")
    await opened.press("end", shows="   following")
    await opened.wait_until(lambda text: "line 99 " in text)
    await opened.press("l", shows="--level error   following, 7 hidden")
    await opened.press("l", shows="--level info   following\n")
    await opened.press("pageup", shows="End follows")
    await opened.press("escape", shows="s Sort f Filter")


async def test_a_log_without_lines_says_why(opened: Top) -> None:
    await opened.press("down", "down", "enter", shows="\n no entries at this level\n")
    await opened.press("l", "l", shows="\n no output yet\n")
    assert "worker:1 -f -c cast --level info   following\n" in opened.text


async def test_a_run_is_cancelled_after_a_question_and_followed(opened: Top, cast: CastCluster) -> None:
    await opened.press("tab", "down", "down", "down", "down", shows=" c  tfcluster cancel train-0007 -c cast")
    await opened.press("r", shows="r restarts a task: choose one with Tab and the arrows")
    await opened.press("c", shows="LOST: everything that run train-0007 has not saved yet")
    await opened.check("top-question.txt")
    await opened.press("n", shows="nothing was done")
    assert cast.agents["alpha"].sent == []
    await opened.press("c", shows="Run it? yes, no")
    await opened.press("y", shows="done: tfcluster cancel train-0007 -c cast")
    assert cast.agents["alpha"].sent == [CancelRequest("train-0007")]
    await opened.press("enter", shows="line 99 of train-0007")
    await opened.check("top-run.txt")
    await opened.press("escape", "down", shows=" c  tfcluster cancel mean-0006 -c cast")
    await opened.press("c", shows="mean-0006 has already ended")
    await opened.press("down", "enter", shows="   ended")
    await opened.check("top-failed-run.txt")
    await opened.press("q", shows="")
    assert opened.pilot.app.return_value == 0


def test_no_event_is_shown_where_there_is_no_room_and_the_last_ones_where_there_is_little() -> None:
    events = [{"time": 0.0, "task": None, "event": "ready", "detail": str(number)} for number in range(5)]
    assert event_lines(events, 0) == []
    assert [line.plain.split()[-1] for line in event_lines(events, 2)] == ["3", "4"]
    assert len(event_lines(events, 9)) == 5


@pytest.mark.parametrize(
    ("lines", "wanted", "given"),
    [
        (50, [9, 21, 100], [9, 21, 20]),
        (12, [100, 100, 100], [6, 4, 2]),
        (10, [3, 2, 1], [3, 2, 1]),
        (10, [20, 0, 3], [8, 0, 2]),
        (-3, [1, 1, 1], [0, 0, 0]),
    ],
)
def test_lines_are_shared(lines: int, wanted: list[int], given: list[int]) -> None:
    assert share_lines(lines, wanted) == given
