"""The deliberate faults fit the product, and `python -m tests.faults` says what it finds."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.faults.catalog import Fault, find_problems, load_faults, sample

PRODUCT = "def double(number):\n    return 2 * number\n"
TESTS = "from product import double\n\n\ndef test_double():\n    assert double(2) == 4\n"
#: Faults of the product; no machine has what the last one needs.
FAULTS = """
[found]
promise = "double() doubles."
file = "product.py"
old = "2 * number"
new = "3 * number"
tests = ["tests/test_product.py::test_double"]

[survives]
promise = "double() works for all numbers."
file = "product.py"
old = "2 * number"
new = "number ** 2"
tests = ["tests/test_product.py"]

[cannot-run]
promise = "double() doubles on the moon."
file = "product.py"
old = "2 * number"
new = "3 * number"
tests = ["tests/test_product.py"]
needs = ["moon"]
"""
BREAKS = 'old = "def double"\nnew = "def triple"'
MOON = 'NEEDS["moon"] = ("moon-lander",)\n'


def test_every_fault_fits_the_product_and_its_tests() -> None:
    assert find_problems(load_faults(ROOT / "tests/faults/faults.toml"), ROOT) == []


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with a small product, its test, the three faults, and what `tests.faults` consists of."""
    (tmp_path / "tests" / "faults").mkdir(parents=True)
    for name in ("__init__.py", "parallel.py", "requirements.py", "faults/__main__.py", "faults/catalog.py"):
        shutil.copy(ROOT / "tests" / name, tmp_path / "tests" / name)
    with (tmp_path / "tests" / "requirements.py").open("a") as file:
        file.write(MOON)
    (tmp_path / "product.py").write_text(PRODUCT)
    (tmp_path / "tests" / "test_product.py").write_text(TESTS)
    (tmp_path / "tests" / "faults" / "faults.toml").write_text(FAULTS)
    git = ("git", "-c", "user.name=t", "-c", "user.email=t@example.org")
    for words in (("init", "-q"), ("add", "."), ("commit", "-q", "-m", "all")):
        subprocess.run([*git, *words], cwd=tmp_path, check=True)
    return tmp_path


def check_faults(repository: Path, *arguments: str, code: int, **environment: str) -> str:
    """Run `tests.faults`, check its exit code, and return what it prints."""
    inherited = {name: value for name, value in os.environ.items() if name != "CI"}
    result = subprocess.run(
        [sys.executable, "-m", "tests.faults", *arguments],
        cwd=repository,
        env={**inherited, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **environment},  # saves half of each start
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == code, result.stdout + result.stderr
    return result.stdout + result.stderr


@pytest.mark.needs("git")
def test_a_fault_that_survives_is_a_failure(repository: Path) -> None:
    output = check_faults(repository, code=1)
    assert "found found (" in output
    assert "SURVIVED survives (" in output
    assert "PROMISE NOT TESTED: double() works for all numbers." in output
    assert "not run cannot-run, as this is missing: moon-lander" in output
    assert "1 of 2 faults found; survived: survives" in output
    assert (repository / "product.py").read_text() == PRODUCT


@pytest.mark.needs("git")
def test_a_line_that_was_moved_is_an_error_before_anything_runs(repository: Path) -> None:
    (repository / "product.py").write_text(PRODUCT.replace("2 * number", "number + number"))
    output = check_faults(repository, "found", code=2)
    assert "error: found: its code is 0 times in product.py" in output
    assert "\nsurvives: its code is 0 times in product.py" in output, "all are checked, whichever are chosen"
    assert "without a fault" not in output


@pytest.mark.needs("git")
def test_in_ci_every_fault_can_run(repository: Path) -> None:
    assert "error: in CI, every fault must be run" in check_faults(repository, "cannot-run", code=2, CI="true")


@pytest.mark.needs("git")
def test_a_test_that_is_skipped_is_an_error(repository: Path) -> None:
    skip = "import pytest\n\npytestmark = pytest.mark.skip\n"
    (repository / "tests" / "test_product.py").write_text(skip + TESTS)
    assert "a test was skipped" in check_faults(repository, "found", code=2)


@pytest.mark.needs("git")
def test_tests_that_cannot_be_collected_with_a_fault_do_not_find_it(repository: Path) -> None:
    faults = repository / "tests" / "faults" / "faults.toml"
    faults.write_text(FAULTS.replace('old = "2 * number"\nnew = "3 * number"', BREAKS, 1))
    output = check_faults(repository, "found", code=1)
    assert "SURVIVED found: pytest ended with 4, which says nothing\n" in output
    assert "ImportError" in output
    assert "0 of 1 faults found; survived: found" in output


@pytest.mark.needs("git")
def test_a_sample_names_its_faults(repository: Path) -> None:
    output = check_faults(repository, "--sample", "1", "cannot-run", code=0)
    assert re.match(r"sample of commit [0-9a-f]{10}: cannot-run\n", output)
    assert "0 of 0 faults found" in output, "outside CI, a fault that cannot be run is left out"
    assert "unknown fault: lost" in check_faults(repository, "lost", code=2)


def test_a_sample_depends_on_the_commit_alone() -> None:
    faults = load_faults(ROOT / "tests/faults/faults.toml")
    first, second = (sample(faults, 10, commit) for commit in ("abc", "def"))
    assert len({fault.name for fault in first}) == 10
    assert first == sample(faults[::-1], 10, "abc") != second


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"old": "number"}, "its code is 2 times in product.py"),
        ({"file": "lost.py"}, "its code is 0 times in lost.py"),
        ({"new": "2 *"}, "with it, product.py is not Python"),
        ({"tests": ("tests/lost.py",)}, "there is no test tests/lost.py"),
        ({"tests": ("tests/test_product.py::test_half",)}, "there is no test tests/test_product.py::test_half"),
        ({"needs": ("mars",)}, "tests/requirements.py has no mars"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, change: dict[str, str | tuple[str, ...]], problem: str) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "product.py").write_text(PRODUCT)
    (tmp_path / "tests" / "test_product.py").write_text(TESTS)
    fields = {"file": "product.py", "old": "2 * number", "new": "3 * number", "tests": ("tests/test_product.py",)}
    assert find_problems([Fault("f", "p", **fields)], tmp_path) == []  # type: ignore[arg-type]
    (line,) = find_problems([Fault("f", "p", **{**fields, **change})], tmp_path)  # type: ignore[arg-type]
    assert line.startswith(f"f: {problem}")


def test_a_fault_is_applied_to_a_module_that_was_compiled_in_the_same_second(tmp_path: Path) -> None:
    (tmp_path / "product.py").write_text(PRODUCT)
    before = (tmp_path / "product.py").stat()

    def doubled() -> str:
        os.utime(tmp_path / "product.py", ns=(before.st_atime_ns, before.st_mtime_ns))
        words = [sys.executable, "-c", "import product; print(product.double(2))"]
        return subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.strip()

    assert doubled() == "4"
    take_back = Fault("f", "p", "product.py", "2 * number", "3 * number", ()).apply(tmp_path)
    assert doubled() == "6"
    take_back()
    assert doubled() == "4"
