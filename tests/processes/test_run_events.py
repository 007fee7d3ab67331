"""A run's events on a disk that takes a line in part."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tfcluster.processes.runs.run_plan import append_event


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """No file grows beyond a number of bytes: as on a full disk, what still has room is written."""
    _, hard = before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_truncated_event_is_an_error_and_does_not_damage_the_next(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    append_event(path, {"event": "run"})
    with files_up_to(30), pytest.raises(OSError, match=r"No space left on device: '.*/events\.jsonl'"):
        append_event(path, {"event": "progress", "done": 1})
    append_event(path, {"event": "error"})
    append_event(path, {"event": "result"})
    first, torn, *others = path.read_text().splitlines()
    assert json.loads(first) == {"event": "run"}
    assert '{"event":"progress","done":1}'.startswith(torn)
    assert [json.loads(line) for line in others] == [{"event": "error"}, {"event": "result"}]
