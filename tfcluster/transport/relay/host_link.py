"""What a command asks of the relay: to keep a session on a host, to connect through it, and to close it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tfcluster import boot, settings
from tfcluster.core.hosts import Host
from tfcluster.errors import ClusterError
from tfcluster.os.files import locked_folder
from tfcluster.process_mark import MARK, NO_MARK
from tfcluster.protocol.codec import Message, decode_line, encode
from tfcluster.runtime_dir import relay_socket_path
from tfcluster.transport.channel import RemoteAgent, connect_unix, readable_fds
from tfcluster.transport.errors import HostUnreachableError
from tfcluster.transport.relay.multiplexer import VERSION
from tfcluster.transport.relay.process import REPLY_HEADER
from tfcluster.transport.session import Session, release_child


class HostLink:
    """The link to a host that the relay of a cluster keeps, if it has one."""

    def __init__(self, cluster: str, host: Host) -> None:
        self._cluster = cluster
        self._name = host.name
        self._title = f"tfcluster: {cluster} connections"  # of the relay
        self._is_silent = False  # whether the relay has not answered in time: it is not asked again
        self._host = json.dumps([host.name, host.way, host.address, host.state])

    def connect_to_agent(self) -> tuple[socket.socket, RemoteAgent] | None:
        """Connect to the socket of the host's agent; return None if there is no link, or it leads to no agent.

        If nothing listens there, the connection ends at once. The agent may have been replaced since by one with
        another pid.
        """
        asked = self._connect(None)
        return None if asked is None else (asked[0], RemoteAgent(**asked[1]["agent"]))

    def connect_to_port(self, port: int) -> socket.socket | None:
        """Connect to a port of the host's loopback device; return None if there is no link."""
        asked = self._connect(port)
        return None if asked is None else asked[0]

    def keep(self, session: Session, agent: RemoteAgent | None) -> None:
        """Have the relay keep a session for all commands, and end it here; if there is a link already, it just ends."""
        known = None if agent is None else asdict(agent)
        self._is_silent = False  # the user may have killed it since
        for _ in range(2):  # a relay that runs may be about to end
            self._start_relay()
            if (asked := self._request("keep", agent=known)) is not None:
                break
        else:
            raise HostUnreachableError(
                self._name,
                "the process here that keeps its connection does not answer",
                f"`ps` shows it as `{self._title}`: kill it, and try again.",
            )
        connection, reply = asked
        with connection:  # as long as it is open, the relay does not end
            if reply["linked"]:
                session.end()
                return
            session.request("link", settings.REMOTE_REPLY_SECONDS)
            message = {"pid": session.pid, "leads_group": session.connector.leads_group, "agent": known}
            try:
                socket.send_fds(connection, [encode(message)], [session.connection.fileno()])
                is_linked = bool(_receive_reply(connection, settings.RELAY_REPLY_SECONDS)["linked"])
            except (OSError, ClusterError, struct.error):
                is_linked = False
            session.release()
        if not is_linked:
            raise HostUnreachableError(self._name, "the connection broke", "Try again.")

    def has_lost_host(self) -> bool:
        """Return whether the connection to the host has ended, as far as the relay has noticed."""
        reply = self._ask("find")
        return reply is None or not reply["linked"]

    def close(self) -> None:
        """Have the relay close the link, as soon as it carries no connection."""
        if self._ask("close") is None:
            path = relay_socket_path(self._cluster, VERSION)
            with contextlib.suppress(OSError), locked_folder(path.parent):
                _remove_stale(path)

    def _connect(self, port: int | None) -> tuple[socket.socket, Message] | None:
        asked = self._request("connect", port=port)
        if asked is not None and not asked[1]["carries"]:
            asked[0].close()
            return None
        return asked

    def _ask(self, method: str) -> Message | None:
        asked = self._request(method)
        if asked is None:
            return None
        asked[0].close()
        return asked[1]

    def _request(self, method: str, **arguments: Any) -> tuple[socket.socket, Message] | None:
        """Send a request; return the reply, and the connection, which may carry data from then on.

        Return None if no relay runs, or it does not answer: it is about to end, or stopped.
        """
        connection = None if self._is_silent else connect_unix(relay_socket_path(self._cluster, VERSION))
        if connection is None:
            return None
        seconds = settings.RELAY_START_SECONDS if method == "keep" else settings.RELAY_REPLY_SECONDS
        try:
            connection.sendall(encode({"method": method, "host": self._host, **arguments}))
            return connection, _receive_reply(connection, seconds)
        except (OSError, ClusterError, struct.error) as error:
            self._is_silent = isinstance(error, TimeoutError)
            connection.close()
            return None

    def _start_relay(self) -> None:
        """Start the relay of the cluster unless it runs."""
        path = relay_socket_path(self._cluster, VERSION)
        try:
            with locked_folder(path.parent), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
                if not _remove_stale(path):
                    return
                listener.bind(str(path))
                listener.listen(socket.SOMAXCONN)
                arguments = (str(listener.fileno()), str(path), self._title)
                process = subprocess.Popen(
                    boot.command("tfcluster.transport.relay.process", "main", *arguments),
                    cwd="/",
                    env={**os.environ, MARK: NO_MARK},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=[listener.fileno()],
                    start_new_session=True,  # a Ctrl-C is meant for the command, not for the connections
                )
                release_child(process)
        except OSError as error:
            raise ClusterError(  # not one of a host that cannot be reached, which some commands wait for
                f"host {self._name!r}: cannot start the process here that keeps its connection: {error.strerror}",
                hint=f"Its socket would be {path}.",
            ) from error


def _remove_stale(path: Path) -> bool:
    """Remove the socket of a relay that was killed; return False if one listens there."""
    connection = connect_unix(path)
    if connection is not None:
        connection.close()
        return False
    path.unlink(missing_ok=True)
    return True


def _receive_reply(connection: socket.socket, seconds: float) -> Message:
    """Receive a reply; what follows it is data of the carried connection. Raise an OSError if none arrives in time."""
    if not readable_fds([connection.fileno()], seconds):
        raise TimeoutError
    (length,) = REPLY_HEADER.unpack(connection.recv(REPLY_HEADER.size, socket.MSG_WAITALL))
    return decode_line(connection.recv(length, socket.MSG_WAITALL))
