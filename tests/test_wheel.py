"""The wheel has all that the package needs, and the command and the page work from it."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tfcluster.version import __version__

COMPLETIONS = {
    "share/bash-completion/completions/tfcluster": "tfcluster.bash",
    "share/zsh/site-functions/_tfcluster": "_tfcluster",
    "share/fish/vendor_completions.d/tfcluster.fish": "tfcluster.fish",
}
# Asks the page's server for files, and prints which are as they are in the package; also where the package is.
FETCH = """
import sys, threading, urllib.request
from pathlib import Path
import tfcluster
from tfcluster.dashboard.server import PageServer

package = Path(tfcluster.__file__).parent
print(package)
server = PageServer(0, None, "token")
threading.Thread(target=server.serve_forever, daemon=True).start()
for path in (package / "dashboard" / "page").iterdir():
    with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/{path.name}") as response:
        if response.read() == path.read_bytes():
            print(path.name)
"""


def python(*arguments: str | Path, cwd: Path, **variables: str) -> str:
    """Return what Python prints."""
    environment: Mapping[str, str] = {**os.environ, **variables}
    result = subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    python("-m", "hatchling", "build", "--target", "wheel", "--directory", folder, cwd=ROOT)
    [path] = folder.iterdir()
    return path


def test_the_wheel_has_all_files_of_the_package(wheel: Path) -> None:
    package = {
        path.relative_to(ROOT).as_posix(): path.read_bytes()
        for path in (ROOT / "tfcluster").rglob("*")
        if path.is_file() and path.parent.name != "__pycache__"
    }
    assert {"tfcluster/py.typed", "tfcluster/dashboard/page/index.html", "tfcluster/cli/main.py"} <= package.keys()
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" not in name and ".data/" not in name]
        assert sorted(names) == sorted(package)
        assert [name for name in names if archive.read(name) != package[name]] == []


def test_the_command_and_the_page_work_from_the_wheel(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    python("-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", site, wheel, cwd=tmp_path)
    assert python("-m", "tfcluster", "--version", cwd=tmp_path, PYTHONPATH=str(site)).split()[-1] == __version__
    assert python(site / "bin" / "tfcluster", "--version", cwd=tmp_path, PYTHONPATH=str(site)).strip()
    package, *names = python("-c", FETCH, cwd=tmp_path, PYTHONPATH=str(site)).splitlines()
    assert Path(package) == site / "tfcluster"
    assert sorted(names) == sorted(path.name for path in (ROOT / "tfcluster" / "dashboard" / "page").iterdir())
    for name, source in COMPLETIONS.items():
        assert (site / name).read_bytes() == (ROOT / "completions" / source).read_bytes()
