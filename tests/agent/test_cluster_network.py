"""The agent's part of a private network; tests/end_to_end/test_private_network.py has the network itself."""

from __future__ import annotations

import asyncio
import errno
import os

import pytest

from tfcluster.agent.cluster_network import ClusterNetwork
from tfcluster.errors import ClusterError
from tfcluster.os import netns


async def test_nothing_is_left_of_a_network_that_could_not_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(netns, "make_namespaces", refuse)
    before = len(os.listdir("/proc/self/fd"))
    network = ClusterNetwork("holder", lambda: None)
    with pytest.raises(ClusterError):
        network.make()
    while len(os.listdir("/proc/self/fd")) > before:  # until the exit of the holder is noticed
        await asyncio.sleep(0.01)
    network.leave()
