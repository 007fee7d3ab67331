"""A release: `make wheel` builds it, and what is installed from the wheel has all that it needs."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from importlib.metadata import Distribution
from pathlib import Path

import click
import pytest
from packaging.requirements import Requirement

from tests.conftest import EXAMPLE, ROOT, SCRIPTS, Sandbox, make_sandbox
from tests.screens import Terminal
from tfcluster.cli.main import cli
from tfcluster.version import PROTOCOL, __version__

COMPLETIONS = {
    "share/bash-completion/completions/tfcluster": "tfcluster.bash",
    "share/zsh/site-functions/_tfcluster": "_tfcluster",
    "share/fish/vendor_completions.d/tfcluster.fish": "tfcluster.fish",
}


def python(*arguments: str | Path, cwd: Path, **variables: str) -> str:
    """Return what Python prints."""
    environment: Mapping[str, str] = {**os.environ, **variables}
    result = subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the wheel and the source of a release."""
    folder = tmp_path_factory.mktemp("release")
    # The packages are those of this Python, wherever it is.
    make = ["make", "--assume-old=.venv/installed", "wheel", f"BIN={Path(sys.executable).parent}", f"DIST={folder}"]
    subprocess.run(make, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
    return folder


@pytest.fixture(scope="module")
def wheel(release: Path) -> Path:
    [path] = release.glob("*.whl")
    return path


def required(lines: Iterable[str], extras: Collection[str] = ("",)) -> Iterator[Distribution]:
    """Yield the distributions that requirements ask for, with those that these require, some of them repeatedly."""
    for requirement in map(Requirement, lines):
        if requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in extras):
            distribution = importlib.metadata.distribution(requirement.name)
            yield distribution
            yield from required(distribution.requires or (), ("", *requirement.extras))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """A sandbox with the command of an environment that has the wheel, what it requires without extras, and no more.

    What it requires is linked to the packages of this Python, as TensorFlow is 2 GB; pip then finds that all is there.
    """
    folder = tmp_path_factory.mktemp("installed")
    python("-m", "venv", "--without-pip", folder / "venv", cwd=folder)
    [site] = (folder / "venv").glob("lib/python*/site-packages")
    [wheel_itself] = Distribution.discover(path=[str(wheel)])
    for distribution in {each.name: each for each in required(wheel_itself.requires or ())}.values():
        for name in {path.parts[0] for path in distribution.files or ()} - {"..", "__pycache__"}:
            if not (site / name).exists():
                (site / name).symlink_to(str(distribution.locate_file(name)))
    pip = ("-m", "pip", "--python", folder / "venv", "--isolated", "install", "--quiet", "--no-index")
    python(*pip, wheel, cwd=folder)
    (folder / "elsewhere").mkdir()
    # Without the variable, which the sandbox sets, no code of this repository is imported.
    command = ("env", "--unset=PYTHONPATH", str(folder / "venv" / "bin" / "tfcluster"))
    with make_sandbox(folder / "elsewhere", command) as sandbox:
        yield sandbox


def test_the_wheel_has_all_files_of_the_package(wheel: Path) -> None:
    package = {
        path.relative_to(ROOT).as_posix(): path.read_bytes()
        for path in (ROOT / "tfcluster").rglob("*")
        if path.is_file() and path.parent.name != "__pycache__"
    }
    assert {"tfcluster/py.typed", "tfcluster/dashboard/page/uPlot.js", "tfcluster/cli/main.py"} <= package.keys()
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" not in name and ".data/" not in name]
        assert sorted(names) == sorted(package)
        assert [name for name in names if archive.read(name) != package[name]] == []


def test_the_command_and_the_page_work_from_the_wheel(installed: Sandbox) -> None:
    *cleared, command = installed.command
    environment = Path(command).parent.parent
    assert installed("--version").stdout.strip() == f"tfcluster, version {__version__} (protocol {PROTOCOL})"
    fetched = installed.execute(*cleared, environment / "bin" / "python", SCRIPTS / "page_files.py")
    package, *names = fetched.stdout.splitlines()
    assert environment in Path(package).parents
    assert sorted(names) == sorted(path.name for path in (ROOT / "tfcluster" / "dashboard" / "page").iterdir())
    for name, source in COMPLETIONS.items():
        assert (environment / name).read_bytes() == (ROOT / "completions" / source).read_bytes()


@pytest.mark.slow
def test_pip_builds_the_same_wheel_from_the_source_without_git(release: Path, wheel: Path, tmp_path: Path) -> None:
    [source] = release.glob("*.tar.gz")
    (tmp_path / "programs").mkdir()
    pip = ("-m", "pip", "--isolated", "wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation")
    python(*pip, source, "--wheel-dir", tmp_path, cwd=tmp_path, PATH=str(tmp_path / "programs"))
    with zipfile.ZipFile(wheel) as first, zipfile.ZipFile(tmp_path / wheel.name) as second:
        assert {each.filename: each.CRC for each in first.filelist} == {
            each.filename: each.CRC for each in second.filelist
        }


def test_top_starts_without_extras(installed: Sandbox) -> None:
    installed("up", installed.spec("name: small\njobs: {worker: {tasks: 1}}\n", "small.yaml"))
    with Terminal([*installed.command, "top", "-c", "small"], installed.environment, installed.folder) as top:
        top.wait_for("^ small  running  1 of 1 task ready", "q Quit")
        top.send("q")
        assert top.wait_for_end() == 0
    installed("down", "-c", "small")


@pytest.mark.needs("man")
def test_man_finds_the_pages_of_a_command_on_the_path(installed: Sandbox) -> None:
    folder = Path(installed.command[-1]).parent
    names = {"tfcluster", *(f"tfcluster-{name}" for name in cli.list_commands(click.Context(cli))), "tfcluster-run-pi"}
    assert names <= {page.stem for page in (folder.parent / "share" / "man" / "man1").iterdir()}
    for name in ("tfcluster", "tfcluster-up", "tfcluster-run-pi"):
        environment = {"PATH": f"{folder}:{os.environ['PATH']}", "LANG": "C.UTF-8", "MANWIDTH": "100"}
        page = subprocess.run(["man", name], env=environment, capture_output=True, text=True, check=True)
        assert f"{name} - " in page.stdout, name
        assert page.stderr == ""


@pytest.mark.slow
def test_the_demo_in_another_folder(installed: Sandbox) -> None:
    shutil.copy(EXAMPLE, installed.folder)
    installed("up", "cluster.yaml")
    assert "random points" in installed("run", "pi", "--samples", "1e7", "--gpus", "4").stdout
    assert installed("status").stdout.count(" ready ") == 3
    files = [os.readlink(file) for file in Path(f"/proc/{installed.agent()}/fd").iterdir()]
    [code] = [file for file in files if file.endswith("/tfcluster/__init__.py")]
    assert Path(installed.command[-1]).parent.parent in Path(code).parents
    installed("down")
