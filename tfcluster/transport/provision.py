"""The setup commands of a host, which are run there once: they may well make the Python that all else needs."""

from __future__ import annotations

import hashlib
import json

from tfcluster.core.hosts import Host
from tfcluster.errors import ClusterError
from tfcluster.transport.openssh import FIRST_SECONDS, SshSession
from tfcluster.transport.remote_bootstrap import MARK
from tfcluster.transport.shell import quote

# They may compile and download.
_SETUP_SECONDS = 3600.0


def run_setup(cluster: str, host: Host) -> None:
    """Run a host's setup commands there, unless these very commands have been run there before.

    Raises:
        HostUnreachableError: It cannot be reached.
        ClusterError: One failed, with its last lines.
    """
    session = SshSession(cluster, host, "/bin/sh")
    try:
        session.say(_script(host).encode())
        said = session.hear(FIRST_SECONDS)
        while "step" in said:
            step = said["step"]
            said = session.hear(_SETUP_SECONDS)
        if said["code"] != 0:
            what = f"the setup command `{host.setup[step]}`" if step is not None else "preparing the setup commands"
            raise ClusterError(
                f"host {host.name!r}: {what} ended with exit code {said['code']}{session.noise()}",
                hint="Mend `setup:` in the spec, or the host; the commands are run again from the first.",
            )
    finally:
        session.end()


def stamp_name(host: Host) -> str:
    """How the name of the file begins by which a host knows that its setup commands have been run; then its own."""
    return hashlib.sha256(json.dumps([host.setup, host.python]).encode()).hexdigest()


def _script(host: Host) -> str:
    """What a shell there has to do. It is said over standard input: no other user of the host sees it."""
    lines = [
        *(f"export {quote([f'{name}={value}'])}" for name, value in host.env.items()),
        'folder="${XDG_CACHE_HOME:-$HOME/.cache}/tfcluster/setup"',
        f'stamp="$folder/{stamp_name(host)}-$(uname -n)"',  # hosts may share a home
        f"""say() {{ printf '\\n%s%s\\n' {quote([MARK])} "$1"; }}""",
        """run() { say '{"step": '"$1"'}'; /bin/sh -c "$2" </dev/null 2>&1; }""",
        """say '{"step": null}'""",
        'if [ ! -e "$stamp" ]; then',
        '(umask 077; mkdir -p "$folder") &&',
        *(f"run {number} {quote([command])} &&" for number, command in enumerate(host.setup)),
        ': > "$stamp"',
        "fi",
        """say '{"code": '"$?"'}'""",
        "exit",
        "",
    ]
    return "\n".join(lines)
