"""The code bundle that is sent to another host, and the command line that bootstraps the Python there."""

from __future__ import annotations

import zlib
from functools import cache
from pathlib import Path

from tfcluster.transport import remote_bootstrap
from tfcluster.transport.remote_bootstrap import MARK, name_of, pack
from tfcluster.transport.shell import quote, quote_path

#: The parts of the package that the agent and the transport need; see the layers in tests/test_layers.py.
PARTS = (
    *("__init__.py", "errors.py", "settings.py", "tf_install.py", "paths.py", "process_handle.py", "runtime_dir.py"),
    *("core", "protocol", "processes", "programs", "agent", "transport"),
)
# The modules of a program that only the command line imports.
_COMMAND_LINE = ("options.py", "render.py")
_PACKAGE = Path(__file__).parent.parent

# The bootstrap program, which Python 2.7 and all later versions can parse. Everything else is sent over standard input.
# After the first line nothing is sent until the host has answered, so that readline() cannot read ahead into the data
# that follows. The program removes the current directory from sys.path.
_BEGIN = (
    "import sys;sys.path[:]=filter(None,sys.path);import json;session=json.loads(sys.stdin.readline());"
    'exec(session["boot"if sys.version_info>=(3,10)else"old"]);main(session)'
)
_OLD = f"""
def main(session):
    python = {{"version": sys.version.split()[0], "python": sys.executable}}
    sys.stdout.write("\\n{MARK}" + json.dumps({{"old": python}}) + "\\n")
"""


def command(python: str, *, isolated: bool = False) -> str:
    """Return the command line for a host's shell that starts Python and has it read one JSON object from stdin.

    Args:
        python: The path of the Python. If it begins with `~/`, it is relative to the user's home folder on the host.
        isolated: Import only from the Python's own installation, regardless of environment variables and of the
            current and the user's folders (-I), and write no bytecode files (-B).
    """
    options = ["-I", "-B"] if isolated else []
    return f"{quote_path(python)} {quote([*options, '-c', _BEGIN])}"


def bootstrap() -> dict[str, str]:
    """Return the fields of a session's first line that start the code: the bootstrap program and the code's hash."""
    return {"boot": Path(remote_bootstrap.__file__).read_text(), "old": _OLD, "code": code_name()}


@cache
def _packed() -> bytes:
    paths = [path for path in sorted(_PACKAGE.rglob("*.py")) if _is_needed(path.relative_to(_PACKAGE))]
    return pack({str(path.relative_to(_PACKAGE.parent)): path.read_bytes().decode() for path in paths})


def _is_needed(path: Path) -> bool:
    """Return whether a file of the package belongs to the bundle."""
    is_for_command = path.parts[0] == "programs" and len(path.parts) > 2 and path.name in _COMMAND_LINE
    return path.parts[0] in PARTS and not is_for_command


@cache
def code_name() -> str:
    """Return the content hash that identifies the code."""
    return name_of(_packed())


@cache
def archive() -> bytes:
    """Return the compressed bundle of the code, as it is sent."""
    return zlib.compress(_packed(), 9)
