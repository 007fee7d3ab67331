"""The chief's view of parameter servers that are not there."""

from __future__ import annotations

import socket
from typing import Any

import pytest
import tensorflow as tf

from tfcluster.errors import ClusterError
from tfcluster.programs import sessions, settings
from tfcluster.programs.api import Context
from tfcluster.programs.linear.dataset import Batches, synthetic_dataset
from tfcluster.programs.linear.model import Roles, StateGraph, TrainingConfig
from tfcluster.programs.linear.servers import ParameterClient, RolledBackError


def config_of(context: Context, server: str) -> TrainingConfig:
    batches = Batches(synthetic_dataset(4), 101, 4)
    return TrainingConfig(context, Roles((server,), (server,), None), batches, "sgd", 0.1)


@pytest.mark.parametrize("silent", [False, True])
def test_an_error_names_a_server_that_does_not_recover(monkeypatch: pytest.MonkeyPatch, silent: bool) -> None:
    monkeypatch.setattr(settings, "PARAMETER_RECOVERY_SECONDS", 0.3)
    monkeypatch.setattr(settings, "PARAMETER_CALL_TIMEOUT_MS", 1000)
    with socket.socket() as holder:
        holder.bind(("localhost", 0))
        if silent:  # accepts connections, as a server that is stopped does, and says nothing
            holder.listen()
        address = f"localhost:{holder.getsockname()[1]}"
        server = "/job:ps/replica:0/task:0/device:CPU:0"
        context = Context("linear-1", {"ps": [address]}, (server,), lambda event, **fields: None)
        config = config_of(context, server)
        with pytest.raises(ClusterError) as caught:
            ParameterClient(config, StateGraph(config), {}).read()
    assert caught.value.message == "ps:0 with the variables did not recover within 0 s"
    assert "--logdir" in caught.value.hint


class ServerThatIsLost:
    """A session on a server that dies as often as it is told to when its variables are read, and comes back empty."""

    def __init__(self, state: StateGraph) -> None:
        self.deaths = 0
        self._state = state
        self._has_values = False

    def run(self, fetches: Any, feed: object = None) -> Any:
        if fetches is self._state.uninitialized:
            return dict.fromkeys(self._state.uninitialized, not self._has_values)
        if fetches is not self._state.values:
            self._has_values = True
            return None
        if self.deaths:
            self.deaths -= 1
            self._has_values = False
            raise tf.errors.UnavailableError(None, None, "gone")
        if not self._has_values:
            raise tf.errors.FailedPreconditionError(None, None, "no such variable")
        return dict.fromkeys(self._state.values, 3)


def test_a_server_that_is_lost_between_two_calls_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    server = "/job:ps/replica:0/task:0/device:CPU:0"
    context = Context("linear-1", {"ps": ["localhost:1"]}, (server,), lambda event, **fields: None)
    config = config_of(context, server)
    state = StateGraph(config)
    session = ServerThatIsLost(state)
    monkeypatch.setattr(sessions, "check_listening", lambda *args: None)
    monkeypatch.setattr(sessions, "open_session", lambda *args, **options: session)
    variables = ParameterClient(config, state, {})
    variables.read()
    session.deaths = 2
    for _ in range(2):
        with pytest.raises(RolledBackError) as caught:
            variables.read()
        assert caught.value.step == 3
    assert variables.read() == {"w": 3, "b": 3, "global_step": 3}
    assert [note.partition(",")[0] for note in context.notes] == [
        "ps:0 lost the variables; the training resumed from step 3"
    ] * 2
