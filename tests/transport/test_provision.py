"""What is sent to a host: little, the same each time, and all that it needs."""

from __future__ import annotations

import ast
import io
import json
import os
import re
import shutil
import subprocess
import sys
import zlib
from pathlib import Path
from zipfile import ZipFile

import grimp
import pytest

from tests.conftest import ROOT
from tfcluster.core.programs import BUNDLED
from tfcluster.tf_install import PACKAGES_OF_TENSORFLOW
from tfcluster.transport import provision
from tfcluster.transport.provision import bootstrap_command, code_bundle, code_hash

#: What a host's Python has besides its own library.
BROUGHT = {module.partition(".")[0] for module in ("tensorflow", *PACKAGES_OF_TENSORFLOW)}
_IMPORT_ALL = """
import importlib, sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"click", "yaml", "pydantic", "pydantic_core", "rich", "matplotlib", "tensorflow"}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
sys.path.insert(0, sys.argv[1])
for name in sys.argv[2:]:
    assert importlib.import_module(name).__file__.startswith(sys.argv[1]), name
"""


def shipped() -> dict[str, str]:
    archive = ZipFile(io.BytesIO(zlib.decompress(code_bundle())))
    return {path: archive.read(path).decode() for path in archive.namelist()}


def test_it_is_as_small_as_documented_and_the_same_each_time() -> None:
    first, name = code_bundle(), code_hash()
    for function in (provision._code, provision._archive, code_bundle, code_hash):
        function.cache_clear()
    assert (code_bundle(), code_hash()) == (first, name)
    documented = re.search(r"own code, (\d+) KB", (ROOT / "docs" / "hosts.md").read_text())
    assert documented is not None
    assert 0.9 < len(first) / 1000 / int(documented[1]) < 1.1


def test_it_can_be_imported_on_a_host(tmp_path: Path) -> None:
    """All of it but the programs, which import TensorFlow; the next test reads what these import."""
    modules = []
    for path, text in shipped().items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
        if not path.startswith("tfcluster/programs/"):
            modules.append(path.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
    assert len(modules) > 50
    subprocess.run([sys.executable, "-c", _IMPORT_ALL, tmp_path, *modules], cwd="/", check=True)


def test_it_imports_only_what_a_host_has() -> None:
    options = {"include_external_packages": True, "exclude_type_checking_imports": True}
    graph = grimp.build_graph("tfcluster", **options, cache_dir=None)
    modules = {path.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for path in shipped()}
    # `tfcluster.connect` is for the user's own Python; the bundled programs declare their options in functions.
    for_commands = {"tfcluster", *map("tfcluster.programs.{}".format, BUNDLED)}
    at_hand = modules | BROUGHT | sys.stdlib_module_names
    others = {
        f"{module} imports {imported}"
        for module in modules - for_commands
        for imported in graph.find_modules_directly_imported_by(module) - at_hand
    }
    assert others == {"tfcluster.agent.meters imports psutil"}  # it works without it


def test_an_old_python_can_read_how_it_begins_and_what_lies_there_is_not_imported(tmp_path: Path) -> None:
    for text in (provision._BEGIN, provision._OLD):
        ast.parse(text, feature_version=(3, 4))
        assert 'f"' not in text
        assert "'" not in provision._BEGIN  # it is quoted as one piece
    (tmp_path / "json.py").write_text("raise SystemExit('imported')")
    first_line = json.dumps({"boot": "def main(session): print(json.dumps('begun'))"}) + "\n"
    run = subprocess.run(
        bootstrap_command(sys.executable),
        shell=True,
        cwd=tmp_path,
        input=first_line,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.stdout, run.stderr) == ('"begun"\n', "")


def test_the_signature_changes_with_the_size_or_the_time_of_any_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "tfcluster"
    shutil.copytree(provision._PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(provision, "_PACKAGE", package)
    signatures = set()
    for path in ("errors.py", "agent/rpc_server.py", "processes/runs/run_plan.py"):
        for change in (lambda file: file.write_text(f"{file.read_text()}\n"), lambda file: os.utime(file, (0, 0))):
            provision.code_signature.cache_clear()
            signatures.add(provision.code_signature())
            change(package / path)
    provision.code_signature.cache_clear()
    signatures.add(provision.code_signature())
    provision.code_signature.cache_clear()
    assert len(signatures) == 7
