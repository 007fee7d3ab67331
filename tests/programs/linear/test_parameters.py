"""The chief's view of parameter servers that are not there."""

from __future__ import annotations

import socket

import pytest

from tfcluster.errors import ClusterError
from tfcluster.programs.context import Context
from tfcluster.programs.linear import parameters
from tfcluster.programs.linear.ledger import Ledger
from tfcluster.programs.linear.model import StateGraph
from tfcluster.programs.linear.plan import Plan
from tfcluster.programs.linear.points import made
from tfcluster.programs.linear.roles import Roles


@pytest.mark.parametrize("silent", [False, True])
def test_a_server_that_does_not_come_back_is_named(monkeypatch: pytest.MonkeyPatch, silent: bool) -> None:
    monkeypatch.setattr(parameters, "PATIENCE_SECONDS", 0.3)
    monkeypatch.setattr(parameters, "CALL_TIMEOUT_MS", 1000)
    with socket.socket() as holder:
        holder.bind(("localhost", 0))
        if silent:  # accepts connections, as a server that is stopped does, and says nothing
            holder.listen()
        address = f"localhost:{holder.getsockname()[1]}"
        server = "/job:ps/replica:0/task:0/device:CPU:0"
        context = Context("linear-1", {"ps": [address]}, (server,), lambda event, **fields: None)
        plan = Plan(context, Roles((server,), (server,), None), made(4), "sgd", 0.1, 101, 4)
        with pytest.raises(ClusterError) as caught:
            parameters.Parameters(plan, StateGraph(plan), Ledger(0, 1, 1)).initialise(None)
    assert caught.value.message == "ps:0 with the variables did not come back within 0 s"
    assert "--logdir" in caught.value.hint
