"""Provision a host: run its setup commands, and send tfcluster's code to it in a bundle.

The setup commands come first, as they may install the host's Python; they run once. The bundle is sent once too: the
bootstrap program on the host (`remote.bootstrap`) keeps it, and requests it only if it does not have this version.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import zlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from tfcluster import settings
from tfcluster.core.hosts import Host
from tfcluster.errors import ClusterError
from tfcluster.paths import PACKAGE_ROOT
from tfcluster.transport.connector import Connector
from tfcluster.transport.remote import bootstrap as remote_bootstrap
from tfcluster.transport.remote.bootstrap import MESSAGE_PREFIX
from tfcluster.transport.session import SHELL_FAILED, open_session
from tfcluster.transport.shell import ENVIRONMENT, REACHED, quote, quote_path, say
from tfcluster.version import PROTOCOL, __version__

#: The parts of the package that the agent and the transport need; see the layers in pyproject.toml.
PARTS = (
    *("__init__.py", "boot.py", "control_characters.py", "version.py", "errors.py", "settings.py", "tf_install.py"),
    *("paths.py", "private_network.py", "process_mark.py", "records.py", "reporting.py", "runtime_dir.py"),
    *("os", "core", "protocol", "processes", "programs", "agent", "transport"),
)
#: What it needs of providers: the modules of these names.
OF_PROVIDERS = ("__init__.py", "earlier.py", "host_side.py", "job.py", "node_holder.py", "start.py")
_PACKAGE = PACKAGE_ROOT / "tfcluster"

# The first program on the host, which Python 2.7 and all later versions can parse. Everything else is sent over
# standard input. After the first line nothing is sent until the host has answered, so that readline() cannot read ahead
# into the data that follows. The program removes the current directory from sys.path.
_BEGIN = (
    "import sys;sys.path[:]=filter(None,sys.path);import json;session=json.loads(sys.stdin.readline());"
    'exec(session["boot"if sys.version_info>=(3,11)else"old"]);main(session)'
)
_OLD = f"""
def main(session):
    python = {{"version": sys.version.split()[0], "python": sys.executable}}
    sys.stdout.write("\\n{MESSAGE_PREFIX}" + json.dumps({{"old": python}}) + "\\n")
"""
# Runs the command of `shell:` in a login shell, in which modules are defined, and then the Python.
_IN_SHELL = f'eval "$0" </dev/null >&2 || exit {SHELL_FAILED}; exec "$@"'


def run_setup(host: Host, connector: Connector) -> None:
    """Run a host's setup commands there, unless the same commands have been run there before.

    The error of a failed command contains the last lines of its output.
    """
    session = open_session(host, connector, "/bin/sh")
    try:
        session.send(_script(host, _setup_steps(host)).encode())
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


def has_run_setup(host: Host, connector: Connector) -> bool:
    """Return whether a host's setup commands have been run there, without running them."""
    session = open_session(host, connector, "/bin/sh")
    try:
        session.send(_script(host, ['[ -e "$stamp" ]']).encode())
        code: int = session.receive(settings.SSH_FIRST_MESSAGE_SECONDS)["code"]
        return code == 0
    finally:
        session.end()


def _setup_steps(host: Host) -> list[str]:
    """Return the lines that run the setup commands, unless they have been run, and record that they have been."""
    return [
        """run() { send '{"step": '"$1"'}'; /bin/sh -c "$2" </dev/null 2>&1; }""",
        """send '{"step": null}'""",
        'if [ ! -e "$stamp" ]; then',
        '(umask 077; mkdir -p "$folder") &&',
        *(f"run {number} {quote([command])} &&" for number, command in enumerate(host.setup)),
        ': > "$stamp"',
        "fi",
    ]


def _script(host: Host, steps: Iterable[str]) -> str:
    """Return a shell script about the setup commands, for stdin: other users of the host could see it as an argument.

    It sends the exit code of its last step. The stamp file records that the commands have been run; its name is a hash
    of these and of the host's Python, and the host's node name, as hosts may share a home folder.
    """
    stamp = hashlib.sha256(json.dumps([host.setup, host.python]).encode()).hexdigest()
    lines = [
        *(f"export {quote([f'{name}={value}'])}" for name, value in host.env.items()),
        'folder="${XDG_CACHE_HOME:-$HOME/.cache}/tfcluster/setup"',
        f'stamp="$folder/{stamp}-$(uname -n)"',
        f"""send() {{ printf '\\n%s%s\\n' {quote([MESSAGE_PREFIX])} "$1"; }}""",
        *steps,
        """send '{"code": '"$?"'}'""",
        "exit",
        "",
    ]
    return "\n".join(lines)


def bootstrap_command(python: str, *, shell: str | None = None) -> str:
    """Return the command line for a host's shell that starts Python and has it read one JSON object from stdin.

    The bash that runs `shell` first says that it is reached.
    """
    return in_environment(
        f"{quote_path(python)} {quote(['-c', _BEGIN])}", shell, before=f"{say({REACHED: ENVIRONMENT})}; "
    )


def in_environment(command: str, shell: str | None, *, before: str = "") -> str:
    """Return the (quoted) command line that runs another one in the environment that a command of bash sets up.

    This bash first runs the commands `before`, which end with a semicolon.
    """
    return command if shell is None else f"{quote(['bash', '-lc', before + _IN_SHELL, shell])} {command}"


def host_command(argv: Iterable[str], host: Host) -> str:
    """Return the command line for a host's shell that runs argv in the environment of the host's Python."""
    return in_environment(quote(argv), host.shell)


def bootstrap() -> dict[str, str | int]:
    """Return the fields of a session's first line that start the code; see `remote.bootstrap.main`."""
    return {
        "boot": Path(remote_bootstrap.__file__).read_text(),
        "old": _OLD,
        "code": code_hash(),
        "code_bytes": sum(map(len, _code().values())),
    }


@cache
def _code() -> dict[str, bytes]:
    """Return the files that a host needs, by their paths."""
    files = {}
    for path in sorted(_PACKAGE.rglob("*.py")):
        part = path.relative_to(_PACKAGE).parts[0]
        if part in PARTS or (part == "providers" and path.name in OF_PROVIDERS):
            files[str(path.relative_to(_PACKAGE.parent))] = path.read_bytes()
    return files


@cache
def code_signature() -> str:
    """Return what changes if the code does, without reading it: each command on other hosts needs it."""
    files: list[tuple[object, ...]] = []
    folders = [walked for part in (*PARTS, "providers") for walked in os.walk(_PACKAGE / part)]  # faster than pathlib
    folders.append((str(_PACKAGE), [], [part for part in PARTS if part.endswith(".py")]))
    for folder, _, names in folders:
        for name in names:
            if name.endswith(".py"):
                status = os.stat(f"{folder}/{name}")
                files.append((folder, name, status.st_size, status.st_mtime_ns))
    files = [(PROTOCOL, __version__), *sorted(files, key=repr)]
    return hashlib.sha256(repr(files).encode()).hexdigest()


@cache
def _archive() -> bytes:
    """Return the files as a zip archive. It has no times and is not compressed: the same files give the same bytes."""
    archive = io.BytesIO()
    with ZipFile(archive, "w") as file:
        for path, content in _code().items():
            file.writestr(ZipInfo(path), content)
    return archive.getvalue()


@cache
def code_hash() -> str:
    """Return the hash that identifies the code."""
    return hashlib.sha256(_archive()).hexdigest()


@cache
def code_zip() -> bytes:
    """Return the code as a compressed zip archive, from which Python can import it."""
    archive = io.BytesIO()
    with ZipFile(archive, "w", ZIP_DEFLATED, compresslevel=9) as file:
        for path, content in _code().items():
            file.writestr(ZipInfo(path), content, ZIP_DEFLATED)
    return archive.getvalue()


def code_session(state: str | None) -> dict[str, str | int | None]:
    """Return what a host needs to find the code; see `remote.bootstrap.find_code`."""
    return {"code": code_hash(), "code_bytes": sum(map(len, _code().values())), "state": state}


@cache
def code_bundle() -> bytes:
    """Return the code as it is sent: the archive, compressed as a whole."""
    return zlib.compress(_archive(), 9)
