"""The queue of notices: bounded, kept for the next agent, tried a number of times."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tfcluster import settings
from tfcluster.agent.notices import Notifier
from tfcluster.core.notices import host_notice
from tfcluster.core.topology import Notify

NOTICES = [host_notice("demo", host, 30.0, 0.0) for host in ("alpha", "beta", "gamma")]


def notifier(path: Path, command: str, *, events: tuple[str, ...] = ("host-away",)) -> Notifier:
    supervisor: Any = SimpleNamespace(topology=SimpleNamespace(notify=Notify(None, command, events)))
    made = Notifier("title", path, supervisor)
    made.load()
    return made


def queued(notices: Notifier) -> list[str]:
    return [each.notice["host"] for each in notices._state.queue]


async def test_the_queue_is_bounded_and_has_each_notice_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(settings, "NOTICES_MAX", 2)
    notices = notifier(tmp_path / "queue", "true")
    for notice in (*NOTICES, NOTICES[-1]):
        notices.add(notice)
    assert queued(notices) == ["beta", "gamma"]
    assert "too many notices: 'demo: host alpha has not answered" in caplog.text
    assert queued(notifier(tmp_path / "queue", "true")) == ["beta", "gamma"], "for the next agent"


async def test_only_kinds_that_the_spec_names_are_queued_and_the_command_of_a_run(tmp_path: Path) -> None:
    notices = notifier(tmp_path / "queue", "true", events=("task-failed",))
    notices.add(NOTICES[0])
    assert queued(notices) == []
    notices.add(NOTICES[1], command="true")
    assert queued(notices) == ["beta"]


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b'{"queue": [{}], "reported": []}', b"[]", b'{"queue": 3, "reported": []}', b'{"format": 99}'],
)
async def test_a_queue_that_cannot_be_read_is_empty_and_kept(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "queue").write_bytes(content)
    notices = notifier(tmp_path / "queue", "true")
    assert queued(notices) == []
    notices.add(NOTICES[0])
    assert (tmp_path / "queue.unreadable").read_bytes() == content


async def test_a_notice_is_given_up_after_the_last_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(settings, "NOTICE_BACKOFF_SECONDS", (0.0, 0.0))
    caplog.set_level(logging.INFO)
    out = tmp_path / "out"
    notices = notifier(tmp_path / "queue", f"echo x >> {out}; exit 1")
    running = asyncio.ensure_future(notices.run())
    notices.add(NOTICES[0])
    while queued(notices):
        await asyncio.sleep(0.01)
    running.cancel()
    assert out.read_text() == "x\n" * 3
    assert "giving up: exit code 1" in caplog.text
    assert caplog.text.count("retrying in 0 s") == 2
