"""The process that tries whether other hosts' ports can be reached; it needs threads, and the agent has one."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor, wait

from tfcluster.processes import daemonize
from tfcluster.protocol.codec import encode


def dial(title: str, parent: int, addresses: list[str], timeout: float, agent: socket.socket) -> None:
    """Connect to each address by TCP, all at once, and say to which of them that failed, and why.

    Args:
        title: What `ps` shows.
        parent: The agent's pid.
        addresses: Each `host:port`.
        timeout: Seconds that each has.
        agent: The child's end of a socket pair, to which one line `{"failures": {address: why}}` goes.
    """
    daemonize.detach(title, keep=[agent.fileno()], parent=parent)
    agent.sendall(encode({"failures": failures_of(addresses, timeout)}))


def failures_of(addresses: list[str], timeout: float) -> dict[str, str]:
    """Connect to each address by TCP, all at once; returns why, by address, for those to which that failed.

    Threads are left behind where a name is still being looked up: only a process that ends by `os._exit` may call it.
    """
    pool = ThreadPoolExecutor(max(1, len(addresses)))
    dialling = {pool.submit(_failure, address, timeout): address for address in addresses}
    done, _ = wait(dialling, timeout)
    late = f"no answer within {timeout:g} s"
    failures = {address: why.result() if why in done else late for why, address in dialling.items()}
    return {address: why for address, why in failures.items() if why}


def _failure(address: str, timeout: float) -> str:
    """Why nobody can be reached at an address; empty where somebody can."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout).close()
    except TimeoutError:
        return f"no answer within {timeout:g} s"
    except OSError as error:
        return str(error.strerror or error)
    return ""
