"""`profile`: traces from the profilers of the servers, in the form that TensorBoard's plugin reads."""

from __future__ import annotations

import itertools
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Sandbox, wait_for


@pytest.fixture
def computing(demo: Sandbox) -> Iterator[str]:
    """A run that computes on the workers."""
    run = demo("run", "pi", "--samples", "1e13", "--detach").stdout.strip()
    wait_for(lambda: any(json.loads(line)["event"] == "progress" for line in events_of(demo, run)))
    yield run
    demo("cancel", run)


def events_of(sandbox: Sandbox, run: str) -> list[str]:
    (file,) = sandbox.folder.glob(f"state/tfcluster/*/*/runs/{run}/events.jsonl")
    return file.read_text().splitlines()


def test_the_traces_of_a_job_are_where_tensorboard_looks(demo: Sandbox, computing: str, tmp_path: Path) -> None:
    def traced() -> Any:  # on a busy machine, a worker may compute nothing meanwhile
        shown = demo("profile", "worker", "--seconds", "0.5", "--logdir", tmp_path / "logs", "-o", "json", code=None)
        result = json.loads(shown.stdout or "{}")
        return result if result.get("tasks") == ["worker:0", "worker:1"] and result["idle"] == [] else None

    result = wait_for(traced)
    folder = Path(result["folder"])
    assert folder.parent == tmp_path / "logs" / "plugins" / "profile"
    assert sorted(path.name for path in folder.iterdir()) == ["worker_0.xplane.pb", "worker_1.xplane.pb"]
    for trace in folder.iterdir():
        assert b"/host:CPU" in trace.read_bytes()
    assert not list(demo.folder.glob("state/tfcluster/*/*/profiles/*"))


@pytest.mark.slow
def test_an_interrupt_leaves_nothing_and_the_next_trace_works(demo: Sandbox, computing: str, tmp_path: Path) -> None:
    process = demo.start("profile", "worker:0", "--seconds", "300", "--logdir", tmp_path / "logs")
    wait_for(lambda: list(demo.folder.glob("state/tfcluster/*/*/profiles/*")))
    refused = demo("profile", "worker:0", "--seconds", "0.1", "--logdir", tmp_path / "other", code=None)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert "there is no trace of worker:0" in refused.stderr or refused.returncode == 0
    assert not (tmp_path / "logs").exists()
    wait_for(lambda: not list(demo.folder.glob("state/tfcluster/*/*/profiles/*")))
    wait_for(lambda: demo("profile", "worker:0", "--seconds", "0.1", "--logdir", tmp_path, code=None).returncode == 0)


def test_what_cannot_be_traced_is_named(demo: Sandbox, tmp_path: Path) -> None:
    def refused() -> str | None:  # a run that has ended may still be cleared away on the ps
        logs = tmp_path / f"logs-{next(attempt)}"
        shown = demo("profile", "ps", "--seconds", "0.1", "--logdir", logs, code=None)
        assert logs.exists() == (shown.returncode == 0)
        return shown.stderr if shown.returncode == 1 else None

    attempt = itertools.count()
    assert "nothing ran on these tasks for 0.1 s" in wait_for(refused)
    assert "no task 'nobody'" in demo("profile", "nobody", "--logdir", tmp_path, code=2).stderr
    assert "--logdir" in demo("profile", code=2).stderr
    (tmp_path / "file").touch()
    assert "file" in demo("profile", "--logdir", tmp_path / "file", code=2).stderr
    assert "Not a directory" in demo("profile", "--logdir", tmp_path / "file" / "logs", code=1).stderr
