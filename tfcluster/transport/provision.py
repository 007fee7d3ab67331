"""Provision a host: run the setup commands of the spec once, before anything else, as they may install its Python."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from tfcluster import settings
from tfcluster.core.hosts import Host
from tfcluster.errors import ClusterError
from tfcluster.transport.remote_bootstrap import MARK
from tfcluster.transport.shell import quote
from tfcluster.transport.ssh_session import start_ssh_session


def run_setup(host: Host, control_path: Path) -> None:
    """Run a host's setup commands there, unless the same commands have been run there before.

    Args:
        host: The host.
        control_path: The control socket of the shared connection.

    Raises:
        HostUnreachableError: The host cannot be reached.
        ClusterError: A command failed. The message contains the last lines of its output.
    """
    session = start_ssh_session(host, "/bin/sh", control_path)
    try:
        session.send(_script(host).encode())
        message = session.receive(settings.SSH_FIRST_MESSAGE_SECONDS)
        while "step" in message:
            step = message["step"]
            message = session.receive(settings.REMOTE_SETUP_SECONDS)
        if message["code"] != 0:
            what = f"the setup command `{host.setup[step]}`" if step is not None else "preparing the setup commands"
            raise ClusterError(
                f"host {host.name!r}: {what} ended with exit code {message['code']}{session.last_output()}",
                hint="Correct `setup:` in the spec, or the host; the commands are run again from the first.",
            )
    finally:
        session.end()


def stamp_name(host: Host) -> str:
    """Return the prefix of the name of the stamp file, which records that a host's setup commands have been run.

    The prefix is a hash of the commands and of the host's Python. The file name continues with the node name of the
    host, since hosts may share a home folder.
    """
    return hashlib.sha256(json.dumps([host.setup, host.python]).encode()).hexdigest()


def _script(host: Host) -> str:
    """Return the shell script that runs the setup commands.

    The script is sent over standard input, so that other users of the host cannot see it in the list of processes.
    """
    lines = [
        *(f"export {quote([f'{name}={value}'])}" for name, value in host.env.items()),
        'folder="${XDG_CACHE_HOME:-$HOME/.cache}/tfcluster/setup"',
        f'stamp="$folder/{stamp_name(host)}-$(uname -n)"',  # hosts may share a home folder
        f"""send() {{ printf '\\n%s%s\\n' {quote([MARK])} "$1"; }}""",
        """run() { send '{"step": '"$1"'}'; /bin/sh -c "$2" </dev/null 2>&1; }""",
        """send '{"step": null}'""",
        'if [ ! -e "$stamp" ]; then',
        '(umask 077; mkdir -p "$folder") &&',
        *(f"run {number} {quote([command])} &&" for number, command in enumerate(host.setup)),
        ': > "$stamp"',
        "fi",
        """send '{"code": '"$?"'}'""",
        "exit",
        "",
    ]
    return "\n".join(lines)
