"""The hosts that a launch has lost: each is joined by one thread, with the latest address of the coordinator."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import wait_for
from tfcluster import settings
from tfcluster.client.runs import launch
from tfcluster.errors import ClusterError


@dataclass
class Host:
    """Stands for a host, its cluster and the code that is sent to it; it cannot be reached until `back` is set."""

    back: threading.Event = field(default_factory=threading.Event)
    answered: threading.Event = field(default_factory=threading.Event)
    joined: list[str] = field(default_factory=list)  # the addresses
    threads: set[int] = field(default_factory=set)

    def connect(self, host: str) -> Host:
        self.threads.add(threading.get_ident())
        if not self.back.is_set():
            raise ClusterError("away")
        return self

    def send(self, *arguments: object) -> None:
        """Send the code."""

    def call(self, address: str) -> None:
        self.joined.append(address)
        self.answered.wait()


def test_a_host_that_is_lost_twice_is_joined_by_one_thread_with_the_latest_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host = Host()
    monkeypatch.setattr(settings, "GROUP_REJOIN_SECONDS", 0.01)
    monkeypatch.setattr(launch, "_join_request", lambda submission, run, event: event["address"])
    submission: Any = SimpleNamespace(code_tree=host)
    cluster: Any = host
    lost = launch._LostHosts(submission, cluster)
    lost.rejoin("train-1", {"hosts": ["alpha"], "address": "first"})
    wait_for(lambda: host.threads)
    lost.rejoin("train-1", {"hosts": ["alpha"], "address": "second"})
    host.back.set()
    wait_for(lambda: host.joined)
    lost.rejoin("train-1", {"hosts": ["alpha"], "address": "third"})  # lost again while it is joined
    host.answered.set()
    wait_for(lambda: len(host.joined) == 2 and not lost._requests)
    lost.ended.set()
    assert host.joined == ["second", "third"]
    assert len(host.threads) == 1
