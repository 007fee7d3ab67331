"""The step that holds a node ends while a session asks it; tests/end_to_end/test_slurm.py has the real one."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tfcluster.errors import ClusterError
from tfcluster.providers.slurm import host_side

_ENDED = "that holds this node ended before it replied"


@pytest.fixture(autouse=True)
def ended_holder(monkeypatch: pytest.MonkeyPatch) -> None:
    connection, holder = socket.socketpair()
    holder.close()
    monkeypatch.setattr(host_side, "_connect", lambda job: connection)
    monkeypatch.setenv("SLURM_JOB_ID", "7")


def test_a_holder_that_has_ended_is_not_joined_and_starts_nothing() -> None:
    with pytest.raises(ClusterError, match=_ENDED):
        host_side.SlurmHostSide({"id": 7, "squeue": "squeue", "grace": 0}).join(Path("/none"))
    with pytest.raises(ClusterError, match=_ENDED):
        host_side.HeldProcess(7, ["true"], {})
