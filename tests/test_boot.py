"""A process that has kept the code of tfcluster, and the interpreters that it starts, read none of its files again."""

from __future__ import annotations

import ast
import compileall
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.environments import make_environment
from tfcluster import boot

# What an agent runs, and what it forks; only `boot` may start another Python for them.
PARTS = ("agent", "core", "processes", "programs", "protocol")
# Keeps the code of the package, replaces its files, and calls `late`.
KEEP = """
import sys
from pathlib import Path
from tfcluster import boot
from later import late
boot.keep_code()
for file in Path(boot.__file__).parent.rglob("[!.]*.py"):
    file.write_text("raise SystemExit(__name__ + ' was imported from its file')")
late()
"""
IMPORT_ALL = """
import importlib, sys
def late():
    for name in sys.argv[1:]:
        print(importlib.import_module(name).__file__)
"""
EXECUTE = """
from tfcluster import boot
def late():
    boot.exec_function("tfcluster.greeting", "greet", ["Ada"], {"GREETING": "Hello"})
"""
GREETING = """
import os, sys
def greet(name):
    from tfcluster import __path__, boot, errors
    print(os.environ["GREETING"], name, __file__, errors.__file__, __path__, "" in sys.path)
    print(greet.__code__.co_filename, sorted(os.listdir("/proc/self/fd")), flush=True)
    boot.exec_function("tfcluster.greeting", "leave", [], {})
def leave():
    from tfcluster import settings
    print("left", settings.__name__)
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package, with no parts but the one that `boot` imports."""
    copy = tmp_path / "site" / "tfcluster"
    for pattern in ("*.py", "os/*.py"):
        for path in (ROOT / "tfcluster").glob(pattern):
            (copy / path.relative_to(ROOT / "tfcluster")).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy / path.relative_to(ROOT / "tfcluster"))
    (copy / ".#errors.py").symlink_to("somebody@host")  # as Emacs makes beside a file that is edited
    return copy


def keep(package: Path, late: str, *arguments: str) -> list[str]:
    """Run a Python that keeps the code of a package and calls `late` when the files are replaced; return its lines."""
    (package.parent / "later.py").write_text(late)
    result = subprocess.run(
        [sys.executable, "-c", KEEP, *arguments],
        cwd=package.parent,
        env={"PYTHONPATH": str(package.parent), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def test_every_module_is_imported_from_memory_when_its_file_was_replaced(package: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__", "page")
    shutil.copytree(ROOT / "tfcluster", package, ignore=ignored, dirs_exist_ok=True)
    paths = [package / "connection.py"]  # and no programs, which import TensorFlow
    paths += [path for part in ("agent", "core", "processes", "protocol") for path in (package / part).rglob("*.py")]
    names = [".".join(path.relative_to(package.parent).with_suffix("").parts) for path in paths]
    names = [name.removesuffix(".__init__") for name in names]
    assert {"tfcluster.agent.main", "tfcluster.processes.runs.run_script", "tfcluster.connection"} <= set(names)
    files = keep(package, IMPORT_ALL, *names)
    assert len(files) == len(names)
    assert all(file.startswith(f"{package}/") for file in files)


@pytest.mark.parametrize("compiled", ["never", "here", "elsewhere", "before a change"])
def test_a_fresh_interpreter_has_the_code_too(package: Path, compiled: str) -> None:
    (package / "greeting.py").write_text("raise SystemExit('old')" if compiled == "before a change" else GREETING)
    if compiled != "never":
        root = package.parent if compiled != "elsewhere" else Path("/elsewhere")
        compileall.compile_dir(package, maxlevels=0, quiet=1, stripdir=str(package.parent), prependdir=str(root))
    if compiled == "before a change":
        (package / "greeting.py").write_text(GREETING)
    greeting, place, left = keep(package, EXECUTE)
    assert greeting == f"Hello Ada {package / 'greeting.py'} {package / 'errors.py'} [] False"
    assert place == f"{package / 'greeting.py'} ['0', '1', '2', '3']", "3 lists them; that of the code is closed"
    assert left == "left tfcluster.settings"


EXECUTE_OTHER = """
import os, sys
from tfcluster import boot
def late():
    environment = {"GREETING": "Hello"}
    python = boot.describe(sys.argv[1], environment, 60)
    try:
        boot.exec_function("tfcluster.greeting", "leave", [], environment, python._replace(cache_tag="pypy"))
    except OSError as error:
        print(error.strerror, os.path.basename(os.path.dirname(error.filename)), flush=True)
    boot.exec_function("tfcluster.greeting", "greet", ["Ada"], environment, python)
"""


def test_another_python_gets_the_code_that_was_kept_or_none(package: Path, tmp_path: Path) -> None:
    (package / "greeting.py").write_text(GREETING)
    other = make_environment(tmp_path / "other") / "bin" / "python"
    replaced, greeting, *_ = keep(package, EXECUTE_OTHER, str(other))
    assert replaced.startswith("the file has changed since the cluster started ")
    assert greeting.startswith(f"Hello Ada {package / 'greeting.py'} ")


# No interpreter can execute what it has kept as compiled code.
EXECUTE_SOURCES = """
import sys
from tfcluster import boot
boot.keep_code()
boot._code = {name: (path, b"no code", stamp) for name, (path, _, stamp) in boot._code.items()}
python = boot.describe(sys.argv[1], {}, 60)._replace(cache_tag="pypy")
boot.exec_function("tfcluster.greeting", "leave", [], {}, python)
"""


def test_a_python_of_another_version_gets_the_sources(package: Path, tmp_path: Path) -> None:
    (package / "greeting.py").write_text("import sys\ndef leave(): print('left', sys.prefix)\n")
    other = make_environment(tmp_path / "other") / "bin" / "python"
    words = [sys.executable, "-c", EXECUTE_SOURCES, str(other)]
    done = subprocess.run(words, cwd=package.parent, env={}, capture_output=True, text=True, check=False)
    assert done.stdout == f"left {tmp_path / 'other'}\n", done.stderr


def test_what_a_python_says_of_itself(tmp_path: Path) -> None:
    folder = make_environment(tmp_path / "other")
    python = boot.describe(str(folder / "bin" / "python"), {"PYTHONPATH": "/more"}, 60)
    assert (python.prefix, python.version) == (str(folder), sys.version.split()[0])
    assert python.cache_tag == sys.implementation.cache_tag
    assert python.path[0] == "/more"
    script = tmp_path / "fails"
    script.write_text("#!/bin/sh\necho first >&2\necho 'no library' >&2\nexit 127\n")
    script.chmod(0o755)
    for file, problem in {str(script): "no library", "/bin/echo": "it is no Python (exit code 0)"}.items():
        with pytest.raises(OSError, match=re.escape(problem)):
            boot.describe(file, {}, 60)


def test_what_the_environment_prints_does_not_hide_what_a_python_says(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import atexit\nprint('hello', end='')\natexit.register(print, 'bye')\n")
    environment = {"PYTHONPATH": str(tmp_path), "PYTHONIOENCODING": "utf-16", "PYTHONUNBUFFERED": "1"}
    assert boot.describe(sys.executable, environment, 60).version == sys.version.split()[0]


def test_a_python_that_does_not_answer_is_named(tmp_path: Path) -> None:
    script = tmp_path / "hangs"
    script.write_text("#!/bin/sh\nexec sleep 600\n")
    script.chmod(0o755)
    with pytest.raises(OSError, match=r"it does not answer within 0\.1 s"):
        boot.describe(str(script), {}, 0.1)


def starts_of_processes(path: Path) -> Iterator[str]:
    """Yield the calls by which a module starts another program."""
    text = path.read_text()
    if not re.search("exec|spawn|subprocess", text):
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            call = f"{node.value.id}.{node.attr}"
            if call.startswith(("os.exec", "os.posix_spawn", "os.spawn")) or call in (
                "subprocess.Popen",
                "subprocess.run",
            ):
                yield call


def test_the_processes_of_a_cluster_start_python_by_boot_alone() -> None:
    files = [path for part in PARTS for path in (ROOT / "tfcluster" / part).rglob("*.py")]
    found = {f"{path.relative_to(ROOT / 'tfcluster')}: {call}" for path in files for call in starts_of_processes(path)}
    assert found == {"agent/notices.py: subprocess.Popen"}, "a command of the user"
    assert set(starts_of_processes(ROOT / "tfcluster" / "boot.py")) == {"os.execve", "subprocess.run"}
