"""What processes have sent and received, from the kernel's counters of real connections."""

from __future__ import annotations

import os
import socket

import pytest

from tests.conftest import wait_for
from tfcluster.os.network import read_traffic

SIZE = 100_000


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_bytes_count_for_the_process_that_has_the_socket(family: socket.AddressFamily) -> None:
    loopback = "127.0.0.1" if family == socket.AF_INET else "::1"
    with socket.create_server((loopback, 0), family=family) as server:
        with socket.create_connection(server.getsockname()[:2]) as client, server.accept()[0] as accepted:
            client.sendall(bytes(SIZE))
            left = SIZE
            while left:
                left -= len(accepted.recv(left))
            sender, receiver = os.fstat(client.fileno()).st_ino, os.fstat(accepted.fileno()).st_ino

            def counters() -> dict[int, tuple[int, int]]:
                return read_traffic([os.getpid()])[os.getpid()]

            wait_for(lambda: counters()[sender][1] >= SIZE)  # the last bytes have been acknowledged
            assert counters()[receiver][0] == SIZE
            assert counters()[sender][0] == counters()[receiver][1] == 0
            # Nothing of a process without sockets, and nothing of one that there is not.
            assert read_traffic([os.getpid(), 2**22 + 1])[2**22 + 1] == {}
        assert sender not in counters()
