"""Become a process of a cluster: replace this process, here or on another host, by a command with its environment."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from tfcluster import boot, settings
from tfcluster.core.environment import add_to
from tfcluster.errors import ClusterError
from tfcluster.os import libc
from tfcluster.os.unix_socket import socket_address
from tfcluster.private_network import PrivateNetwork
from tfcluster.protocol.api import decode_response
from tfcluster.protocol.api.cluster import EnvironmentReply, EnvironmentRequest, ExecProcess
from tfcluster.transport.local import LocalAgentConnection

_STDIN = 0
# The exit codes of every shell.
_NOT_EXECUTABLE, _NOT_FOUND = 126, 127


def become(variables: Mapping[str, str], network: PrivateNetwork | None, command: Sequence[str]) -> NoReturn:
    """Replace this process by a command that is part of a cluster; if there is no such command, exit with 127."""
    if network is not None:
        try:
            network.enter()
        except OSError as error:
            raise ClusterError(str(error.strerror), hint="Try again.") from error
    _execute(command, add_to(os.environ, variables))


def _execute(command: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    for name in ("SIGPIPE", "SIGXFSZ"):  # Python ignores them, and what is ignored stays ignored
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvpe(command[0], list(command), environment)
    except OSError as error:
        is_missing = error.errno in (errno.ENOENT, errno.ENOTDIR)
        reason = "command not found" if is_missing else error.strerror
        os.write(2, f"tfcluster: {command[0]}: {reason}\n".encode(errors="backslashreplace"))
        os._exit(_NOT_FOUND if is_missing else _NOT_EXECUTABLE)


def remote_argv(
    environment: EnvironmentReply,
    task: str | None,
    command: Sequence[str],
    *,
    exec_id: str | None,
    is_inside: bool = True,
) -> list[str]:
    """Return the argv that becomes a process of the cluster on another host.

    It asks the agent there for its environment: other users see argv. The agent ends the command with the `ExecRequest`
    of this id. Without one the command is supervised: it ends when the standard input, which is not for the command,
    is closed. With `is_inside`, it is in the cluster's private network, if it has one.
    """
    arguments = (environment.socket, exec_id or "", task or "", "inside" if is_inside else "outside", *command)
    return boot.command(__name__, main.__name__, *arguments, python=environment.python, code=environment.code)


def supervised_argv(command: Sequence[str]) -> list[str]:
    """Return the argv of a supervised command on this machine, see `remote_argv`, with this process's environment."""
    return boot.command(__name__, main.__name__, "", "", "", "outside", *command)


def main(path: str, exec_id: str, task: str, place: str, *command: str) -> NoReturn:
    """Run on the host: become the process of `remote_argv`. Without a `path`, it is not part of a cluster."""
    variables = None
    try:
        if path:
            reply = _request_environment(path, task or None, exec_id)
            variables = reply.variables
            if reply.network is not None and place == "inside":
                reply.network.enter()
    except (OSError, ClusterError) as error:
        os.write(2, f"tfcluster: {error}\n".encode(errors="backslashreplace"))
        os._exit(1)
    environment = os.environ if variables is None else add_to(os.environ, variables)
    if exec_id:
        _execute(command, environment)
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        os.dup2(os.open(os.devnull, os.O_RDONLY), _STDIN)
        _execute(command, environment)
    with contextlib.suppress(OSError):  # the child does this too, but may not have come so far when it is signalled
        os.setpgid(pid, pid)
    os._exit(_supervise(pid))


def _request_environment(path: str, task: str | None, exec_id: str) -> EnvironmentReply:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with socket_address(Path(path)) as address:
        connection.connect(address)
    request = EnvironmentRequest(task, ExecProcess(exec_id, os.getpid()) if exec_id else None)
    value = LocalAgentConnection(connection).call_once(request, settings.RPC_TIMEOUT_SECONDS)
    reply: EnvironmentReply = decode_response(EnvironmentRequest, value, is_reply=True)
    return reply


def _supervise(pid: int) -> int:
    """Wait for a child process; end it when standard input is closed.

    Return the exit code of the child, or 128 + N if signal N ended it.
    """
    pidfd = libc.pidfd_open(pid)
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    poll.register(_STDIN, select.POLLIN)
    kill_at = None
    while True:
        timeout = None if kill_at is None else 1000 * max(0.0, kill_at - time.monotonic())
        ready = {fd for fd, _ in poll.poll(timeout)}
        if pidfd in ready:
            status = os.waitpid(pid, 0)[1]
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
        if _STDIN not in ready:
            _signal_group(pid, signal.SIGKILL)
            kill_at = None
        else:
            poll.unregister(_STDIN)
            _signal_group(pid, signal.SIGTERM)
            kill_at = time.monotonic() + settings.EXEC_TERMINATE_SECONDS


def _signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
