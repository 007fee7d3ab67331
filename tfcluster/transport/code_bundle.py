"""The code that another host needs, and the command line with which its Python begins."""

from __future__ import annotations

import zlib
from functools import cache
from pathlib import Path

from tfcluster.transport import remote_bootstrap
from tfcluster.transport.remote_bootstrap import MARK, name_of, pack
from tfcluster.transport.shell import quote, quote_path

#: The parts of the package that an agent and the way to it are made of; see the layers in tests/test_layers.py.
PARTS = (
    *("__init__.py", "errors.py", "tf_install.py", "paths.py", "process_handle.py"),
    *("core", "protocol", "processes", "programs", "agent", "transport"),
)
_PACKAGE = Path(__file__).parent.parent

# Python 2.7 and all later ones can read it; all else comes over standard input. Behind the line nothing comes before it
# is answered, so that none of it is read ahead. The current directory is off the path.
_BEGIN = (
    "import sys;sys.path[:]=filter(None,sys.path);import json;said=json.loads(sys.stdin.readline());"
    'exec(said["boot"if sys.version_info>=(3,10)else"old"]);main(said)'
)
_OLD = f"""
def main(said):
    found = {{"version": sys.version.split()[0], "python": sys.executable}}
    sys.stdout.write("\\n{MARK}" + json.dumps({{"old": found}}) + "\\n")
"""


def command(python: str, *, isolated: bool = False) -> str:
    """The command line for a host's shell that has its Python read one JSON object from standard input.

    Args:
        python: The Python; one that begins with `~/` is in the user's home folder there.
        isolated: No variable of the environment and no folder but those of the Python's own installation says what it
            imports (-I), and it writes no compiled files (-B).
    """
    options = ["-I", "-B"] if isolated else []
    return f"{quote_path(python)} {quote([*options, '-c', _BEGIN])}"


def first_words() -> dict[str, str]:
    """What the object has to say for the host's Python to begin: its program and the name of the code."""
    return {"boot": Path(remote_bootstrap.__file__).read_text(), "old": _OLD, "code": code_name()}


@cache
def _packed() -> bytes:
    paths = [path for path in sorted(_PACKAGE.rglob("*.py")) if path.relative_to(_PACKAGE).parts[0] in PARTS]
    return pack({str(path.relative_to(_PACKAGE.parent)): path.read_bytes().decode() for path in paths})


@cache
def code_name() -> str:
    """The hash that names the code."""
    return name_of(_packed())


@cache
def archive() -> bytes:
    """The code as it is sent."""
    return zlib.compress(_packed(), 9)
