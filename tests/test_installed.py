"""What a host must have: it is the same in the documents, and TensorFlow is found by any name, without an import."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tfcluster.tf_install import PACKAGES_OF_TENSORFLOW, tensorflow_version

_ASK = "from tfcluster.tf_install import *; print(tensorflow_version()); print(find_tensorflow_library())"


def ask(site: Path) -> subprocess.CompletedProcess[str]:
    """What a Python says that has the packages of a folder and no others."""
    return subprocess.run(
        [sys.executable, "-S", "-c", _ASK],
        env={"PYTHONPATH": f"{site}:{ROOT}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("name", ["tensorflow", "tensorflow_cpu", "tf_nightly", "intel_tensorflow"])
def test_a_version_by_any_name(tmp_path: Path, name: str) -> None:
    package, described = tmp_path / "tensorflow", tmp_path / f"{name}-2.22.0.dev1.dist-info"
    package.mkdir()
    described.mkdir()
    (package / "__init__.py").write_text("raise ImportError('this must not be imported')")
    (package / "libtensorflow_cc.so.2").touch()
    (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 2.22.0.dev1\n")
    (described / "RECORD").write_text("tensorflow/__init__.py,,\n")
    result = ask(tmp_path)
    assert result.stdout == f"2.22.0.dev1\n{package / 'libtensorflow_cc.so.2'}\n", result.stderr


def test_none_and_one_that_is_too_old(tmp_path: Path) -> None:
    result = ask(tmp_path)
    assert result.stdout == "None\n"
    assert "TensorFlow is not installed for the agent's Python" in result.stderr
    (tmp_path / "tensorflow").mkdir()
    (tmp_path / "tensorflow" / "__init__.py").touch()
    assert "libtensorflow_cc.so.2 is missing: tfcluster requires TensorFlow 2.14 or newer" in ask(tmp_path).stderr


def test_the_version_of_another_distribution_is_found_by_either_list_of_its_files(tmp_path: Path) -> None:
    assert tensorflow_version([str(tmp_path)]) is None
    (tmp_path / "tensorflow").mkdir()
    (tmp_path / "tensorflow" / "__init__.py").touch()
    assert tensorflow_version([str(tmp_path)]) is None, "there is no description"
    described = tmp_path / "vendor_tf-3.1.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: vendor-tf\nVersion: 3.1\n")
    for name, text in (("top_level.txt", "tensorflow\n"), ("RECORD", "tensorflow/__init__.py,,\n")):
        (described / name).write_text(text)
        assert tensorflow_version([str(tmp_path)]) == "3.1"
        (described / name).unlink()


def test_the_documents_name_what_a_host_must_have_and_it_is_a_dependency() -> None:
    hosts = (ROOT / "docs" / "hosts.md").read_text()
    assert "a Python with tensorflow;" in (ROOT / "README.md").read_text()
    assert "**Python 3.11 or newer with tensorflow**" in hosts
    brought = sorted(PACKAGES_OF_TENSORFLOW.values())
    assert f"imports there: {', '.join(brought[:-1])} and {brought[-1]}." in hosts
    commands = re.findall(r"bin/pip install (.*)", hosts)
    assert ["tensorflow" in command or command.startswith("psutil`") for command in commands] == [True] * 3
    text = (ROOT / "pyproject.toml").read_text()
    text = text[text.index("\ndependencies = [") : text.index("[project.optional-dependencies]")]
    dependencies = re.findall(r'^    "([\w-]+)', text, re.MULTILINE)
    assert {"tensorflow", *PACKAGES_OF_TENSORFLOW.values()} <= set(dependencies)
