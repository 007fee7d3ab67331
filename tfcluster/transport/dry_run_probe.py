"""Examining a host without changing anything there: the command's side of the conversation with `probe_server`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfcluster.core.hosts import THIS_MACHINE
from tfcluster.core.topology import ClusterTopology
from tfcluster.errors import ClusterError
from tfcluster.transport.openssh import FIRST_SECONDS, SshSession
from tfcluster.transport.ssh_errors import lines_of

# Looking packages up on a network's file system; loading TensorFlow's library, and waiting for a change to end.
_SURVEY_SECONDS, _PREPARE_SECONDS = 60.0, 60.0
_MARGIN_SECONDS = 10.0
# On this machine the code is imported from where the command has it; see `local`.
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
    """A process on a host that examines it and answers questions, as long as this is open.

    Args:
        session: The way to the process.
        reply: Reads the next reply from it, waiting for so many seconds.

    Attributes:
        listens: Whether it lets connections come to the ports that it has chosen.
    """

    def __init__(self, session: SshSession, reply: Callable[[SshSession, float], dict[str, Any]]) -> None:
        self.listens = False
        self._session = session
        self._reply = reply

    @property
    def shipped_bytes(self) -> int:
        """The size of the code that it was sent."""
        return self._session.shipped_bytes

    def survey(self) -> dict[str, Any]:
        """Ask for what `probe_server.serve` says of `survey`.

        Raises:
            ClusterError: The process ended, or the host cannot be reached any more.
        """
        return self._ask("survey", _SURVEY_SECONDS)

    def clock(self) -> tuple[float, float]:
        """Compare the host's clock with this machine's.

        Returns:
            Seconds that it is ahead, and the error of that.

        Raises:
            ClusterError: As `survey`.
        """
        before = time.time()
        theirs = self._ask("time", FIRST_SECONDS)["time"]
        after = time.time()
        return theirs - (before + after) / 2, (after - before) / 2

    def prepare(self, topology: ClusterTopology, *, listen: bool) -> dict[str, Any]:
        """Ask whether the host can start its tasks of a topology, and which ports and GPUs it would choose.

        Args:
            topology: The topology; values of environment variables are not sent.
            listen: Let connections come to the ports until `close`.

        Returns:
            What an agent replies to Method.PREPARE; besides, `installation` has what is wrong with what is installed.

        Raises:
            ClusterError: As `survey`.
        """
        told = self._ask("prepare", _PREPARE_SECONDS, topology=topology.masked().to_json(), listen=listen)
        self.listens = told["listens"]
        return told

    def topology(self) -> ClusterTopology:
        """Ask for the topology of the cluster that is up on the host.

        Raises:
            ClusterError: None is, or as `survey`.
        """
        return ClusterTopology.from_json(self._ask("topology", _PREPARE_SECONDS))

    def failures(self, addresses: Sequence[str], timeout: float) -> Mapping[str, str]:
        """Have the host dial others.

        Args:
            addresses: Each `host:port`.
            timeout: Seconds that each has.

        Returns:
            Why, by address, for those to which that failed.

        Raises:
            ClusterError: As `survey`.
        """
        told = self._ask("reach", timeout + _MARGIN_SECONDS, addresses=list(addresses), timeout=timeout)
        failures: dict[str, str] = told["failures"]
        return failures

    def close(self) -> None:
        """Hang up; the process ends then, and its ports are free."""
        self._session.finish()

    def _ask(self, question: str, seconds: float, **what: Any) -> dict[str, Any]:
        self._session.say(json.dumps({"ask": question, **what}).encode() + b"\n")
        return self._reply(self._session, seconds)


class _LocalSession(SshSession):
    """The same with a process on this machine, which runs in the command's own environment."""

    def __init__(self) -> None:
        self._start(THIS_MACHINE, [sys.executable, "-c", _PROGRAM, str(_PACKAGE_ROOT)])

    def _failure(self) -> ClusterError:
        code, words = self._ended()
        last = "".join(f": {line}" for line in lines_of(words)[-1:])
        return ClusterError(f"the process that examines this machine ended with exit code {code}{last}")


def begin_here(cluster: str, host: str) -> Probe:
    """Begin to examine this machine.

    Args:
        cluster: The cluster's name.
        host: What the cluster calls this machine.

    Raises:
        ClusterError: The process cannot be started.
    """
    session = _LocalSession()
    said: dict[str, Any] = {"cluster": cluster, "host": host, "state": None, "env": {}, "stamp": None, "ssh": None}
    session.say(json.dumps(said).encode() + b"\n")
    try:
        _reply(session, FIRST_SECONDS)
    except BaseException:
        session.end()
        raise
    return Probe(session, _reply)


def _reply(session: SshSession, seconds: float) -> dict[str, Any]:
    """Read the next reply of a process on this machine."""
    said = session.hear(seconds)
    if "error" in said:
        raise ClusterError.from_json(said["error"])
    reply: dict[str, Any] = said["reply"]
    return reply
