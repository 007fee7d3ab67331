"""The process that checks TCP connectivity to other hosts: it needs threads, and the agent must not start any."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor, wait

from tfcluster.processes import daemonize
from tfcluster.protocol.codec import encode


def check_connections(title: str, parent: int, addresses: list[str], timeout: float, agent: socket.socket) -> None:
    """Check TCP connectivity to all addresses in parallel and report the failures to the agent.

    Args:
        title: The process title, which `ps` shows.
        parent: The agent's pid.
        addresses: The addresses to connect to, each `host:port`.
        timeout: The timeout of each connection in seconds.
        agent: The child's end of a socket pair, to which one line `{"failures": {address: reason}}` is sent.
    """
    daemonize.detach(title, keep=[agent.fileno()], parent=parent)
    agent.sendall(encode({"failures": connection_failures(addresses, timeout)}))


def connection_failures(addresses: list[str], timeout: float) -> dict[str, str]:
    """Connect to all addresses by TCP in parallel.

    If a name is still being resolved at the end, its thread is left behind. Only a process that ends by `os._exit` may
    therefore call this.

    Args:
        addresses: The addresses to connect to, each `host:port`.
        timeout: The timeout of each connection in seconds.

    Returns:
        The addresses that could not be connected to, each with the reason.
    """
    pool = ThreadPoolExecutor(max(1, len(addresses)))
    checks = {pool.submit(_failure, address, timeout): address for address in addresses}
    done, _ = wait(checks, timeout)
    late = f"no answer within {timeout:g} s"
    failures = {address: why.result() if why in done else late for why, address in checks.items()}
    return {address: why for address, why in failures.items() if why}


def _failure(address: str, timeout: float) -> str:
    """Connect to an address; return the reason if that fails, else an empty string."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout).close()
    except TimeoutError:
        return f"no answer within {timeout:g} s"
    except OSError as error:
        return str(error.strerror or error)
    return ""
