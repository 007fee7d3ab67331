"""What a command asks of the link process: to keep a session on a host, to connect through it, and to close it."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import struct
import subprocess
from functools import cached_property
from pathlib import Path
from typing import Any

from tfcluster import boot, settings
from tfcluster.core.hosts import Host
from tfcluster.errors import ClusterError
from tfcluster.os.files import locked_folder
from tfcluster.process_mark import MARK, NO_MARK
from tfcluster.protocol.codec import Message, decode_line, encode
from tfcluster.protocol.serialization import to_json
from tfcluster.runtime_dir import link_socket_path, link_socket_paths
from tfcluster.transport.channel import connect_unix, readable_fds
from tfcluster.transport.children import release_child
from tfcluster.transport.errors import HostUnreachableError, no_descriptors
from tfcluster.transport.link.multiplexer import HostRequest
from tfcluster.transport.link.process import REPLY_HEADER
from tfcluster.transport.session import Session


class HostLink:
    """The link to a host that the link process of a cluster keeps, if it has one.

    Commands share a link if they reach the host in the same way, and run the same `code` there.
    """

    def __init__(self, cluster: str, host: Host, code: str) -> None:
        self._name = host.name
        self._title = f"tfcluster: {cluster} connections"  # of the link process
        self._is_silent = False  # whether the link process has not answered in time: it is not asked again
        place = [host.name, host.way, host.address, host.state]
        reached = [*place, host.python, host.shell, dict(host.env), to_json(host.provided)]
        self._key = json.dumps(reached, sort_keys=True)
        self._cluster = cluster
        self._code = code

    @cached_property
    def _path(self) -> Path:
        return link_socket_path(self._cluster, self._code)

    def connect(self, request: HostRequest) -> socket.socket | None:
        """Send a request to the host over a connection of its own, which `remote.session` answers.

        Return None if there is no link, or the link process does not answer.
        """
        replied = self._request("connect", request=request)
        if replied is None:
            return None
        connection, reply = replied
        if reply["linked"]:
            return connection
        connection.close()
        return None

    def keep(self, session: Session) -> None:
        """Leave a session to the link process, for all commands; end it if there is a link to the host already."""
        try:
            is_kept = self._hand_over(session)
        except BaseException:
            session.end()
            raise
        if is_kept:
            session.release()
        else:
            session.end()

    def _hand_over(self, session: Session) -> bool:
        """Pass a session to the link process; return False if there is a link to the host already."""
        self._is_silent = False  # the user may have killed it since
        for _ in range(2):  # a link process that runs may be about to end
            self._start_process()
            if (replied := self._request("keep")) is not None:
                break
        else:
            raise HostUnreachableError(
                self._name,
                "the process here that keeps its connection does not answer",
                f"`ps` shows it as `{self._title}`: kill it, and try again.",
            )
        connection, reply = replied
        with connection:  # as long as it is open, the link process does not end
            if reply["linked"]:
                return False
            try:
                socket.send_fds(connection, [encode({"pid": session.pid})], [session.connection.fileno()])
                reply = _receive_reply(connection, settings.HOST_LINK_REPLY_SECONDS)
            except (OSError, ClusterError, struct.error):
                reply = {}
        self._check_descriptors(reply)
        if "kept" not in reply:
            raise HostUnreachableError(self._name, "the connection broke", "Try again.")
        return bool(reply["kept"])

    def has_lost_host(self) -> bool:
        """Return whether the connection to the host has ended, as far as the link process has noticed."""
        replied = self._request("find")
        if replied is None:
            return True
        replied[0].close()
        return not replied[1]["linked"]

    def close(self) -> None:
        """Have the link closed, also one for other code, as soon as it carries no connection; never fail."""
        with contextlib.suppress(ClusterError, OSError):
            for path in link_socket_paths(self._cluster):
                replied = self._request("close", path)
                if replied is not None:
                    replied[0].close()
                elif not self._is_silent:
                    with locked_folder(path.parent):
                        _remove_stale(path)

    def _request(self, method: str, path: Path | None = None, **arguments: Any) -> tuple[socket.socket, Message] | None:
        """Send a request; return the reply, and the connection, which may carry data from then on.

        Return None if no link process runs, or it does not answer: it is about to end, or stopped. A
        HostUnreachableError says that it has no descriptor left.
        """
        connection = None if self._is_silent else connect_unix(path or self._path)
        if connection is None:
            return None
        seconds = settings.HOST_LINK_START_SECONDS if method == "keep" else settings.HOST_LINK_REPLY_SECONDS
        try:
            with contextlib.suppress(ConnectionError):  # it may have replied before, that it has no descriptor
                connection.sendall(encode({"method": method, "host": self._key, **arguments}))
            reply = _receive_reply(connection, seconds)
        except (OSError, ClusterError, struct.error) as error:
            self._is_silent = isinstance(error, TimeoutError)
            connection.close()
            return None
        try:
            self._check_descriptors(reply)
        except ClusterError:
            connection.close()
            raise
        return connection, reply

    def _check_descriptors(self, reply: Message) -> None:
        if limit := reply.get("descriptors"):
            raise no_descriptors(self._name, f"the process here that keeps its connection, `{self._title}`,", limit)

    def _start_process(self) -> None:
        """Start the link process of the cluster unless it runs."""
        path = self._path
        try:
            with locked_folder(path.parent), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
                if not _remove_stale(path):
                    return
                listener.bind(str(path))
                listener.listen(socket.SOMAXCONN)
                arguments = (str(listener.fileno()), str(path), self._title)
                process = subprocess.Popen(
                    boot.command("tfcluster.transport.link.process", "main", *arguments),
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
            if error.errno == errno.EMFILE:
                raise
            raise ClusterError(  # not one of a host that cannot be reached, which some commands wait for
                f"host {self._name!r}: cannot start the process here that keeps its connection: {error.strerror}",
                hint=f"Its socket would be {path}.",
            ) from error


def _remove_stale(path: Path) -> bool:
    """Remove the socket of a link process that was killed; return False if one listens there."""
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
