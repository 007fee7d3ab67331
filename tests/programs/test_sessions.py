"""What sessions take for a lost server."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from typing import Any, NoReturn

import pytest

from tfcluster.programs.api import Context
from tfcluster.programs.sessions import SERVER_LOST, check_listening

NETWORK_LOST = ("EHOSTUNREACH", "ENETUNREACH", "ENETDOWN", "EHOSTDOWN", "ECONNABORTED", "ECONNREFUSED", "ECONNRESET")

LOST = [OSError(number, os.strerror(number)) for number in (getattr(errno, name) for name in NETWORK_LOST)]
LOST += [socket.gaierror(number, "no address") for number in (socket.EAI_AGAIN, socket.EAI_NONAME)]


@pytest.mark.parametrize("error", LOST, ids=repr)
def test_a_lost_network_is_a_lost_server(
    local_run: Callable[[int], Context], monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    """The network is played, as a real one needs seconds for each of these errors."""

    def fail(*arguments: Any) -> NoReturn:
        raise error

    context = local_run(1)
    monkeypatch.setattr(socket, "create_connection", fail)
    with pytest.raises(ConnectionError) as caught:
        check_listening(context, context.devices[0])
    assert isinstance(caught.value, SERVER_LOST)
    assert isinstance(caught.value.__cause__, OSError)


def test_an_exhausted_limit_is_not_a_lost_server(
    local_run: Callable[[int], Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> NoReturn:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    context = local_run(1)
    monkeypatch.setattr(socket, "create_connection", fail)
    with pytest.raises(OSError, match="Too many open files") as caught:
        check_listening(context, context.devices[0])
    assert not isinstance(caught.value, SERVER_LOST)
