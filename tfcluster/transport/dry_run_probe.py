"""Probe a host as part of a dry run, without changing anything there: the client of `dry_run_server`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfcluster import settings
from tfcluster.core.hosts import THIS_MACHINE
from tfcluster.core.topology import ClusterTopology
from tfcluster.errors import ClusterError
from tfcluster.transport.openssh import SshSession
from tfcluster.transport.ssh_errors import lines_of

# On this machine the code is imported from the folder that the command imported it from; see `local`.
_PROGRAM = """
import sys
sys.path[:] = [sys.argv[1], *filter(None, sys.path)]
import tfcluster
del sys.path[0]
import json
from tfcluster.transport.dry_run_server import serve
serve(json.loads(sys.stdin.readline()))
"""
_PACKAGE_ROOT = Path(__file__).parent.parent.parent


class Probe:
    """A probe process on a host: it examines the host and answers requests until the probe is closed.

    Args:
        session: The session with the process.
        reply: Reads the next reply from the session; its second argument is the timeout in seconds.

    Attributes:
        listens: Whether the process accepts connections on the ports that it has allocated.
    """

    def __init__(self, session: SshSession, reply: Callable[[SshSession, float], dict[str, Any]]) -> None:
        self.listens = False
        self._session = session
        self._reply = reply

    @property
    def shipped_bytes(self) -> int:
        """Return the size in bytes of the code that was sent to the process."""
        return self._session.shipped_bytes

    def survey(self) -> dict[str, Any]:
        """Survey the host.

        Returns:
            The reply to the request `survey`; see `dry_run_server.serve`.

        Raises:
            ClusterError: The process exited, or the host has become unreachable.
        """
        return self._ask("survey", settings.REMOTE_SURVEY_SECONDS)

    def clock(self) -> tuple[float, float]:
        """Compare the host's clock with this machine's.

        Returns:
            The seconds by which the host's clock is ahead, and the maximum error of that number in seconds.

        Raises:
            ClusterError: As for `survey`.
        """
        before = time.time()
        theirs = self._ask("time", settings.SSH_FIRST_MESSAGE_SECONDS)["time"]
        after = time.time()
        return theirs - (before + after) / 2, (after - before) / 2

    def prepare(self, topology: ClusterTopology, *, listen: bool) -> dict[str, Any]:
        """Run the preflight checks for the host's tasks of a topology and choose ports and GPUs without reserving them.

        Args:
            topology: The topology. The values of environment variables are masked before it is sent.
            listen: Accept connections on the allocated ports until `close`.

        Returns:
            The fields of a PrepareReply, with one more field: `installation` lists the problems with the installed
            packages.

        Raises:
            ClusterError: As for `survey`.
        """
        told = self._ask(
            "prepare", settings.DRY_RUN_PREPARE_SECONDS, topology=topology.masked().to_json(), listen=listen
        )
        self.listens = told["listens"]
        return told

    def topology(self) -> ClusterTopology:
        """Fetch the topology of the cluster that is up on the host.

        Raises:
            ClusterError: The cluster is not up on the host, or as for `survey`.
        """
        return ClusterTopology.from_json(self._ask("topology", settings.DRY_RUN_PREPARE_SECONDS))

    def failures(self, addresses: Sequence[str], timeout: float) -> Mapping[str, str]:
        """Check whether the host can connect to other hosts by TCP.

        Args:
            addresses: The addresses to connect to, each `host:port`.
            timeout: The timeout of each connection in seconds.

        Returns:
            The addresses that could not be connected to, each with the reason.

        Raises:
            ClusterError: As for `survey`.
        """
        told = self._ask("reach", timeout + settings.DRY_RUN_MARGIN_SECONDS, addresses=list(addresses), timeout=timeout)
        failures: dict[str, str] = told["failures"]
        return failures

    def close(self) -> None:
        """Close the session, upon which the process exits and its ports become free."""
        self._session.finish()

    def _ask(self, question: str, seconds: float, **what: Any) -> dict[str, Any]:
        self._session.say(json.dumps({"ask": question, **what}).encode() + b"\n")
        return self._reply(self._session, seconds)


class _LocalSession(SshSession):
    """A session with a process on this machine instead of ssh. The process inherits the command's environment."""

    def __init__(self) -> None:
        self._start(THIS_MACHINE, [sys.executable, "-c", _PROGRAM, str(_PACKAGE_ROOT)])

    def _failure(self) -> ClusterError:
        code, words = self._ended()
        last = "".join(f": {line}" for line in lines_of(words)[-1:])
        return ClusterError(f"the process that examines this machine ended with exit code {code}{last}")


def begin_here(cluster: str, host: str) -> Probe:
    """Start a probe of this machine.

    Args:
        cluster: The cluster's name.
        host: The name of this machine in the cluster.

    Returns:
        The probe. The caller closes it.

    Raises:
        ClusterError: The process cannot be started.
    """
    session = _LocalSession()
    said: dict[str, Any] = {"cluster": cluster, "host": host, "state": None, "env": {}, "stamp": None, "ssh": None}
    session.say(json.dumps(said).encode() + b"\n")
    try:
        _reply(session, settings.SSH_FIRST_MESSAGE_SECONDS)
    except BaseException:
        session.end()
        raise
    return Probe(session, _reply)


def _reply(session: SshSession, seconds: float) -> dict[str, Any]:
    """Read the next reply of a probe process on this machine.

    Args:
        session: The session with the process.
        seconds: The timeout in seconds.

    Raises:
        ClusterError: The process replied with an error, exited, or did not reply in time.
    """
    said = session.hear(seconds)
    if "error" in said:
        raise ClusterError.from_json(said["error"])
    reply: dict[str, Any] = said["reply"]
    return reply
