"""The chief's view of parameter servers that are not there."""

from __future__ import annotations

import socket
from typing import Any

import pytest
import tensorflow as tf

from tfcluster.errors import ClusterError
from tfcluster.programs import linear, sessions
from tfcluster.programs.context import Context, set_current_run
from tfcluster.programs.linear import Config, Parameters, RolledBackError, make_points

SERVER = "/job:ps/replica:0/task:0/device:CPU:0"


def parameters_at(address: str) -> tuple[Parameters, Context]:
    """The variables on a server, in a run."""
    context = Context("linear-1", {"ps": [address]}, (SERVER,), lambda event, **fields: None)
    set_current_run(context)
    return Parameters(Config((SERVER,), (SERVER,), None, make_points(4), 101, 4, "sgd", 0.1)), context


@pytest.mark.parametrize("silent", [False, True])
def test_an_error_names_a_server_that_does_not_recover(monkeypatch: pytest.MonkeyPatch, silent: bool) -> None:
    monkeypatch.setattr(linear, "_RECOVERY_SECONDS", 0.3)
    monkeypatch.setattr(linear, "_CALL_TIMEOUT_MS", 1000)
    with socket.socket() as holder:
        holder.bind(("localhost", 0))
        if silent:  # accepts connections, as a server that is stopped does, and says nothing
            holder.listen()
        address = f"localhost:{holder.getsockname()[1]}"
        with pytest.raises(ClusterError) as caught:
            parameters_at(address)[0].read()
    assert caught.value.message == "ps:0 with the variables did not recover within 0 s"
    assert "--logdir" in caught.value.hint


class ServerThatIsLost:
    """A session on a server that dies as often as it is told to when its variables are read, and comes back empty."""

    def __init__(self, parameters: Parameters) -> None:
        self.deaths = 0
        self._parameters = parameters
        self._has_values = False

    def run(self, fetches: Any, feed: object = None) -> Any:
        if fetches is self._parameters.uninitialized:
            return dict.fromkeys(self._parameters.uninitialized, not self._has_values)
        if fetches is not self._parameters.values:
            self._has_values = True
            return None
        if self.deaths:
            self.deaths -= 1
            self._has_values = False
            raise tf.errors.UnavailableError(None, None, "gone")
        if not self._has_values:
            raise tf.errors.FailedPreconditionError(None, None, "no such variable")
        return dict.fromkeys(self._parameters.values, 3)


def test_a_server_that_is_lost_between_two_calls_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    parameters, context = parameters_at("localhost:1")
    session = ServerThatIsLost(parameters)
    monkeypatch.setattr(sessions, "check_listening", lambda *args: None)
    monkeypatch.setattr(sessions, "open_session", lambda *args, **options: session)
    parameters.read()
    session.deaths = 2
    for _ in range(2):
        with pytest.raises(RolledBackError) as caught:
            parameters.read()
        assert caught.value.step == 3
    assert parameters.read() == {"w": 3, "b": 3, "global_step": 3}
    assert [note.partition(",")[0] for note in context.notes] == [
        "ps:0 lost the variables; the training resumed from step 3"
    ] * 2
