"""Check that the tests find deliberate faults of the product: `python -m tests.faults [NAME...]`.

faults.toml has one fault for each promise of the README, of another document or of an issue. First the tests of all
chosen faults must pass without a fault. Then each fault is applied by itself, and one of its tests must fail. The exit
code is 1 if a fault survives, and 2 if the check itself cannot be made.

The working tree stays as it is: everything runs in a copy of the files that git tracks.
"""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).parent.parent.parent
PYTEST = (sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:randomly", "-p", "no:cacheprovider")
# pytest's exit codes.
ALL_PASSED, SOME_FAILED = 0, 1
#: For the tests of one fault. A test that hangs fails after 300 s, but its threads may keep pytest from ending.
TIMEOUT_SECONDS = 600.0


@dataclass(frozen=True)
class Fault:
    """A mistake in one file of the product, and the tests that find it."""

    name: str
    promise: str  # what no longer holds, in one sentence
    file: str
    old: str  # occurs once in the file
    new: str
    tests: tuple[str, ...]  # test files or node ids, the fastest that find it

    def problem(self, tree: Path) -> str:
        """Return why the fault cannot be applied to a copy of the tree, and where its code is now; empty if it can."""
        path = tree / self.file
        count = path.read_text().count(self.old) if path.exists() else 0
        if count == 1:
            return ""
        sources = sorted((tree / "tfcluster").rglob("*.py"))
        places = [str(source.relative_to(tree)) for source in sources if self.old in source.read_text()]
        return f"{self.name}: its code is {count} times in {self.file}; files that have it: {places}"

    def apply(self, tree: Path) -> Callable[[], object]:
        """Apply the fault to a copy of the tree, and return what takes it back."""
        path = tree / self.file
        text = path.read_text()
        path.write_text(text.replace(self.old, self.new))
        return partial(path.write_text, text)


def fail(message: str) -> NoReturn:
    """Exit because the check cannot be made."""
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)


def load_faults(names: Sequence[str]) -> list[Fault]:
    """Read the faults with the given names; all of them if there are none."""
    # Python 3.10 has no tomllib; there pytest requires tomli.
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    tables: dict[str, dict[str, Any]] = toml.loads((Path(__file__).with_name("faults.toml")).read_text())
    if unknown := sorted(set(names) - tables.keys()):
        fail(f"unknown fault: {', '.join(unknown)}")
    return [Fault(name, **{**tables[name], "tests": tuple(tables[name]["tests"])}) for name in names or tables]


def copy_tree(target: Path) -> None:
    """Copy the files that git tracks, as they are in the working tree."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).exists():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name, follow_symlinks=False)


def run_tests(tests: Sequence[str], tree: Path, timeout: float | None = None) -> subprocess.CompletedProcess[str]:
    """Run tests in a copy of the tree, with its product; raise TimeoutExpired if they do not end within `timeout` s."""
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # each command would compile all its modules again
    command = [*PYTEST, *dict.fromkeys(tests)]
    return subprocess.run(
        command, cwd=tree, env=environment, capture_output=True, text=True, timeout=timeout, check=False
    )


def find(fault: Fault, tree: Path) -> bool:
    """Run the tests of a fault with it, report the outcome, and return whether one failed."""
    began = time.monotonic()
    take_back = fault.apply(tree)
    try:
        result = run_tests(fault.tests, tree, TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:  # a hang says nothing: choose a fault with which a test fails
        print(f"SURVIVED {fault.name}: its tests did not end within {TIMEOUT_SECONDS:g} s", flush=True)
        return False
    finally:
        take_back()
    if result.returncode not in (ALL_PASSED, SOME_FAILED):
        fail(f"{fault.name}: pytest ended with {result.returncode}\n{result.stdout}{result.stderr}")
    is_found = result.returncode == SOME_FAILED
    failures = [line for line in result.stdout.splitlines() if line.startswith(("FAILED tests/", "ERROR tests/"))]
    outcome = failures[0].partition(" - ")[0] if failures else f"PROMISE NOT TESTED: {fault.promise}"
    seconds = time.monotonic() - began
    print(f"{'found' if is_found else 'SURVIVED'} {fault.name} ({seconds:.0f} s): {outcome}", flush=True)
    return is_found


def main() -> None:
    """Check the faults that the arguments name, or all."""
    faults = load_faults(sys.argv[1:])
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        tree = Path(folder)
        copy_tree(tree)
        if problems := [problem for fault in faults if (problem := fault.problem(tree))]:
            fail("\n".join(problems))
        without = run_tests([test for fault in faults for test in fault.tests], tree)
        if without.returncode != ALL_PASSED:
            fail(f"the tests do not pass without a fault:\n{without.stdout}{without.stderr}")
        print(f"without a fault: {without.stdout.splitlines()[-1]}", flush=True)
        survivors = [fault.name for fault in faults if not find(fault, tree)]
    print(f"{len(faults) - len(survivors)} of {len(faults)} faults found; survived: {', '.join(survivors) or 'none'}")
    sys.exit(bool(survivors))


if __name__ == "__main__":
    main()
