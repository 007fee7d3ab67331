"""Start the Pythons that run tfcluster's code: from a folder, or from the memory of a process that has kept it.

An agent keeps the code in memory, so that all processes of its cluster run the code with which it was started. An
upgrade replaces the files of the package meanwhile; importing those would mix two versions.
"""

from __future__ import annotations

import _imp
import errno
import marshal
import os
import struct
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import CodeType, ModuleType
from typing import NamedTuple, NoReturn

#: The file of each module by its name, its code and the stamp of the file. The code is marshalled, or the source if it
#: was never compiled.
Code = dict[str, tuple[str, "bytes | str", bytes]]

#: The folder from which this process imports tfcluster.
CODE = os.path.dirname(os.path.dirname(__file__))
# Both programs call a function of a module. The current directory is removed from the path, so that a stray json.py in
# it is not imported.
#
# This one imports the code from the folder sys.argv[1], whether or not this or another version is installed: the folder
# is on the path only while the package is imported, and all of the package's modules come from there. It has one line,
# as csh on another host may have to pass it on.
_FROM_FOLDER = (
    "import sys;sys.path[:]=[sys.argv[1],*filter(None,sys.path)];import tfcluster;del sys.path[0];"
    "from importlib import import_module as load;getattr(load(sys.argv[2]),sys.argv[3])(*sys.argv[4:])"
)
# This one takes over the code from a file in memory. The function may return another one, which is called with nothing
# else on the stack: a script must not see the calls that lead to it.
_FROM_MEMORY = """
import marshal, sys, types
sys.path[:] = filter(None, sys.path)
with open(int(sys.argv[1]), "rb") as file:
    modules = marshal.loads(file.read())
path, code, _ = modules["tfcluster.boot"]
boot = sys.modules["tfcluster.boot"] = types.ModuleType("tfcluster.boot")
boot.__file__ = path
exec(code if isinstance(code, str) else marshal.loads(code), vars(boot))
boot.import_from(modules)
from importlib import import_module
run = getattr(import_module(sys.argv[2]), sys.argv[3])(*sys.argv[4:])
if run is not None:
    run()
"""
# This one only says what has to be known of a Python before it is started for good, in ASCII, whatever the environment
# says of encodings. To be fast, it imports only what each Python imports at its start.
_DESCRIBE = """\
import os, sys
tag = getattr(getattr(sys, "implementation", None), "cache_tag", "")
text = ascii([sys.prefix, sys.version.split()[0], tag, sys.path]) if tag else repr(["", sys.version.split()[0], "", []])
os.write(1, ("\\n%s %s\\n" % (sys.argv[1], text)).encode("ascii"))
"""
_DESCRIPTION = "tfcluster-describes"
# Later versions can read it as well.
_MARSHAL_VERSION = 4
_PACKAGE = os.path.join(CODE, "tfcluster")
_code: Code | None = None


class Interpreter(NamedTuple):
    """A Python, which may be another one than that of this process."""

    executable: str
    prefix: str  # the folder of its environment
    version: str
    cache_tag: str  # of the compiled code that it can execute, such as `cpython-312`
    path: list[str]  # the folders from which it imports


def command(module: str, function: str, *arguments: str, python: str = sys.executable, code: str = CODE) -> list[str]:
    """Return the argv that calls a function of a module, by default with the Python and the code of this process."""
    return [python, "-c", _FROM_FOLDER, code, module, function, *arguments]


def keep_code() -> None:
    """Read the code of all modules, from which this process and its forks import from now on.

    Raises OSError if a file cannot be read, for example because the package is being replaced.
    """
    code: Code = {}
    for folder, _, names in os.walk(_PACKAGE):
        parents = os.path.relpath(folder, CODE).split(os.sep)
        for name in names:
            module, ending = os.path.splitext(name)
            if ending == ".py" and module.isidentifier():  # editors leave others, such as links that lead nowhere
                path = os.path.join(folder, name)
                code[".".join([*parents, module]).removesuffix(".__init__")] = path, *_read(path)
    import_from(code)


def import_from(code: Code) -> None:
    """Import the modules of tfcluster from memory from now on."""
    global _code
    _code = code
    sys.meta_path.insert(sys.meta_path.index(PathFinder), _Importer(code))


def exec_function(
    module: str,
    function: str,
    arguments: Sequence[str],
    environment: Mapping[str, str] | None = None,
    python: Interpreter | None = None,
) -> NoReturn:
    """Replace this process by a fresh interpreter that calls a function of a module, with the code that was kept.

    If the function returns another one, that is called then, with nothing else on the stack. `environment` is None for
    that of this process, and `python` for the Python of this process. One that cannot execute the compiled code gets
    the source.

    Raises OSError: the source of the code that was kept cannot be read, for example because the files were replaced.
    """
    from tfcluster.os import libc  # every Python of a cluster imports this module, and few call this function

    if _code is None:
        keep_code()
    code, executable = _code, sys.executable
    if python is not None:
        executable = python.executable
        code = _code if python.cache_tag == sys.implementation.cache_tag else _read_sources(_code or {})
    memory = libc.memfd_create("tfcluster")
    with open(memory, "wb", closefd=False) as file:
        file.write(marshal.dumps(code, _MARSHAL_VERSION))
    os.lseek(memory, 0, os.SEEK_SET)
    os.set_inheritable(memory, True)
    command = [executable, "-c", _FROM_MEMORY, str(memory), module, function, *arguments]
    os.execve(executable, command, os.environ if environment is None else environment)


def describe(executable: str, environment: Mapping[str, str], timeout: float) -> Interpreter:
    """Start a Python that says what it is, with the environment that it is to have; this takes some 20 ms.

    Raises OSError: it cannot be started, is no Python, or does not answer within `timeout` seconds.
    """
    import ast  # as above
    import subprocess

    command = [executable, "-c", _DESCRIBE, _DESCRIPTION]
    try:
        ended = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=timeout
        )
    except subprocess.TimeoutExpired:
        raise OSError(errno.ETIMEDOUT, f"it does not answer within {timeout:g} s", executable) from None
    # The environment's own code can print lines too, when it starts and when it ends.
    lines = ended.stdout.decode("ascii", "replace").splitlines()
    found = [line.partition(" ")[2] for line in lines if line.startswith(f"{_DESCRIPTION} ")]
    try:
        prefix, version, cache_tag, path = ast.literal_eval(found[0])
    except (IndexError, ValueError, TypeError, SyntaxError):
        said = ended.stderr.decode(errors="replace").strip().splitlines()
        problem = (said or [f"it is no Python (exit code {ended.returncode})"])[-1]
        raise OSError(errno.ENOEXEC, problem, executable) from None
    return Interpreter(executable, prefix, version, cache_tag, list(filter(None, path)))


class _Importer:
    """Finds and loads the modules of tfcluster; see importlib.abc.MetaPathFinder and importlib.abc.Loader."""

    def __init__(self, code: Code) -> None:
        self._code = code

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name not in self._code:
            return None
        file, _, _ = self._code[name]
        spec = ModuleSpec(name, self, origin=file, is_package=file.endswith("__init__.py"))  # type: ignore[arg-type]
        spec.has_location = True  # so that the module has a __file__
        return spec

    def create_module(self, spec: ModuleSpec) -> None:
        """Let Python create the module."""

    def exec_module(self, module: ModuleType) -> None:
        exec(self.get_code(module.__name__), vars(module))

    def get_code(self, name: str) -> CodeType:
        file, code, stamp = self._code[name]
        if isinstance(code, str):
            compiled = compile(code, file, "exec", dont_inherit=True)
            self._code[name] = file, marshal.dumps(compiled), stamp  # for fresh interpreters
            return compiled
        loaded: CodeType = marshal.loads(code)
        # As Python does: the package may have been moved since it was compiled.
        _imp._fix_co_filename(loaded, file)  # type: ignore[attr-defined]
        return loaded


def _stamp(path: str) -> bytes:
    """Return the time and the size of a file of source, as Python's cache of its compiled code has them."""
    status = os.stat(path)
    return struct.pack("<II", int(status.st_mtime) & 0xFFFFFFFF, status.st_size & 0xFFFFFFFF)


def _read(path: str) -> tuple[bytes | str, bytes]:
    """Return a module's compiled code if Python's cache of it is up to date, else its source; and the file's stamp."""
    from importlib.util import MAGIC_NUMBER, cache_from_source  # commands import this module too, and keep no code

    stamp = _stamp(path)
    up_to_date = MAGIC_NUMBER + struct.pack("<I", 0) + stamp
    try:
        with open(cache_from_source(path), "rb") as file:
            cached = file.read()
    except OSError:
        cached = b""
    if cached.startswith(up_to_date):
        return cached[len(up_to_date) :], stamp
    with open(path, encoding="utf-8") as source:
        return source.read(), stamp


def _read_sources(code: Code) -> Code:
    """Return the sources of compiled code; raise OSError if a file has changed since the code was kept."""
    sources: Code = {}
    for name, (path, _, stamp) in code.items():
        if stamp != _stamp(path):
            raise OSError(errno.ESTALE, "the file has changed since the cluster started", path)
        with open(path, encoding="utf-8") as source:
            sources[name] = path, source.read(), stamp
    return sources
