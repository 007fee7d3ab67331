"""The stories of docs/architecture.md happen as they are told, and are not longer than they claim."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import EXAMPLE, Sandbox, make_sandbox, wait_for
from tests.stories import ROOT, Function, follow, function_of, name_of, read_stories, read_trace

#: tests/test_architecture.py, which is faster, checks that the functions exist.
pytestmark = pytest.mark.slow

#: Part of the stories that begin with a command.
REQUEST = "A request and its reply"
START = "An agent starts"
UP = "`up cluster.yaml` on this machine, until its servers listen"
READY = "A task becomes ready"
PI = "`run pi`, there and back"
KILLED = "A killed server is restarted"


@dataclass
class Traced:
    """A cluster whose processes record the calls of the functions that the stories name.

    Attributes:
        sandbox: The sandbox of the cluster.
        file: The trace.
        up: The size of the trace when the cluster was up.
    """

    sandbox: Sandbox
    file: Path
    up: int


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    folder = tmp_path_factory.mktemp("traced")
    file = folder / "trace.jsonl"
    file.touch()
    steps = [step for title in (REQUEST, START, UP, READY, PI, KILLED) for step in read_stories()[title].steps]
    trace = {"file": str(file), "root": str(ROOT), "functions": [function_of(step) for step in steps]}
    with pytest.MonkeyPatch.context() as patch, make_sandbox(folder) as sandbox:
        patch.setenv("TEST_TRACE", json.dumps(trace))
        sandbox("up", EXAMPLE)
        yield Traced(sandbox, file, file.stat().st_size)


def check(titles: list[str], file: Path, start: int, end: int | None = None) -> None:
    """Check that stories have happened together, and that the last one is as short as it claims."""
    trace = read_trace(file, start, end)
    functions: set[Function] = set()
    for title in titles:
        called, missing = follow(read_stories()[title].steps, trace)
        assert missing is None, f"{title}: {missing} was not called after the step before it"
        functions |= called
    story = read_stories()[titles[-1]]
    modules = {path for path, _ in functions}
    length = f"{len(functions)} calls in {len(modules)} modules"
    print(length, *sorted(map(name_of, functions)), sep="\n")
    assert story.max_calls is not None, "it claims a length"
    assert story.max_modules is not None
    assert len(functions) <= story.max_calls, length
    assert len(modules) <= story.max_modules, length


def test_up(traced: Traced) -> None:
    check([REQUEST, START, UP], traced.file, 0, traced.up)


def test_a_task_becomes_ready(traced: Traced) -> None:
    trace = read_trace(traced.file, 0, traced.up)
    assert follow(read_stories()[READY].steps, trace)[1] is None


def test_run_pi(traced: Traced) -> None:
    start = traced.file.stat().st_size
    traced.sandbox("run", "pi", "--samples", "1e5")
    check([REQUEST, PI], traced.file, start)


def test_a_server_is_killed(traced: Traced) -> None:
    worker = traced.sandbox.task("worker:0")
    start = traced.file.stat().st_size
    os.kill(worker["pid"], signal.SIGKILL)
    wait_for(lambda: traced.sandbox.task("worker:0", code=None)["restarts"] > worker["restarts"])
    traced.sandbox.wait_until("running")
    check([KILLED], traced.file, start)
