"""Check that the tests find deliberate faults of the product: `python -m tests.faults [--sample N] [NAME...]`.

faults.toml has one fault for each promise of the README, of another document or of an issue. All of them must fit the
source, whichever are chosen: a line that was moved is an error. Then the tests of the chosen faults must pass without a
fault. Then each fault is applied by itself, and one of its tests must fail. The exit code is 1 if a fault survives, and
2 if the check itself cannot be made.

The working tree stays as it is: everything runs in copies of the files that git tracks.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import NoReturn

from tests import parallel, requirements
from tests.faults.catalog import Fault, find_problems, load_faults, sample

ROOT = Path(__file__).parent.parent.parent
PYTEST = (sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:randomly", "-p", "no:cacheprovider")
# pytest's exit codes.
ALL_PASSED, SOME_FAILED = 0, 1
#: For the tests of one fault. A test that hangs fails after 300 s, but its threads may keep pytest from ending.
TIMEOUT_SECONDS = 600.0


def fail(message: str) -> NoReturn:
    """Exit because the check cannot be made."""
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)


def parse_arguments() -> argparse.Namespace:
    """Read the arguments."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description="Check that tests find faults.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="a fault of faults.toml; without names, all")
    parser.add_argument("--sample", type=int, metavar="N", help="N of them, which the hash of the commit chooses")
    return parser.parse_args()


def choose(faults: Sequence[Fault], arguments: argparse.Namespace) -> list[Fault]:
    """Return the faults that the arguments choose; print which ones a sample has."""
    if unknown := sorted({*arguments.names} - {fault.name for fault in faults}):
        fail(f"unknown fault: {', '.join(unknown)}")
    chosen = [fault for fault in faults if not arguments.names or fault.name in arguments.names]
    if arguments.sample is not None:
        commit = git("rev-parse", "HEAD").strip()
        chosen = sample(chosen, arguments.sample, commit)
        print(f"sample of commit {commit[:10]}: {' '.join(fault.name for fault in chosen)}", flush=True)
    return chosen


def without_those_that_cannot_run(faults: Sequence[Fault]) -> list[Fault]:
    """Name the faults whose tests this machine cannot run, and return the others; CI must be able to run all."""
    can_run = []
    for fault in faults:
        if missing := requirements.missing(fault.needs):
            print(f"not run {fault.name}, {requirements.explain(missing)}", flush=True)
        else:
            can_run.append(fault)
    if len(can_run) < len(faults) and os.environ.get("CI"):
        fail("in CI, every fault must be run")
    return can_run


def git(*arguments: str) -> str:
    """Return what a command of git prints."""
    return subprocess.run(["git", *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout


def copy_tree(target: Path) -> Path:
    """Copy the files that git tracks, as they are in the working tree."""
    for name in filter(None, git("ls-files", "-z").split("\0")):
        if (ROOT / name).exists():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name, follow_symlinks=False)
    return target


def run_tests(
    tests: Sequence[str], tree: Path, *options: str, timeout: float | None = None
) -> subprocess.CompletedProcess[str]:
    """Run tests in a copy of the tree, with its product; raise TimeoutExpired if they do not end within `timeout` s."""
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # each command would compile all its modules again
    return subprocess.run(
        [*PYTEST, *options, *dict.fromkeys(tests)],
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def check_without_faults(faults: Sequence[Fault], tree: Path) -> None:
    """Check that the tests of the faults pass, and that none of them is skipped."""
    tests = [test for fault in faults for test in fault.tests]
    files = {test.partition("::")[0] for test in tests}
    # pytest-xdist costs a start of pytest for each worker.
    options = ("-n", "auto", "--maxprocesses", str(len(files)), "--dist", "loadfile") if len(files) > 1 else ()
    result = run_tests(tests, tree, *options)
    if result.returncode != ALL_PASSED:
        fail(f"the tests do not pass without a fault:\n{result.stdout}{result.stderr}")
    summary = result.stdout.splitlines()[-1]
    print(f"without a fault: {summary}", flush=True)
    if " skipped" in summary:
        fail(f"a test was skipped: its fault says in `needs` what it needs\n{result.stdout}")


def find(fault: Fault, tree: Path) -> bool:
    """Run the tests of a fault with it, report the outcome, and return whether one failed."""
    began = time.monotonic()
    take_back = fault.apply(tree)
    try:
        result = run_tests(fault.tests, tree, timeout=TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:  # a hang says nothing: choose a fault with which a test fails
        print(f"SURVIVED {fault.name}: its tests did not end within {TIMEOUT_SECONDS:g} s", flush=True)
        return False
    finally:
        take_back()
    if result.returncode not in (ALL_PASSED, SOME_FAILED):
        output = f"{result.stdout}{result.stderr}".rstrip()
        print(f"SURVIVED {fault.name}: pytest ended with {result.returncode}, which says nothing\n{output}", flush=True)
        return False
    is_found = result.returncode == SOME_FAILED
    failures = [line for line in result.stdout.splitlines() if line.startswith(("FAILED tests/", "ERROR tests/"))]
    outcome = failures[0].partition(" - ")[0] if failures else f"PROMISE NOT TESTED: {fault.promise}"
    seconds = time.monotonic() - began
    print(f"{'found' if is_found else 'SURVIVED'} {fault.name} ({seconds:.0f} s): {outcome}", flush=True)
    return is_found


def find_each(faults: Sequence[Fault], tree: Path) -> list[Fault]:
    """Apply each fault by itself, several at the same time in copies of the tree, and return those that survive."""
    # The tests of faults that are applied at the same time must not take each other's ports, as in tests/parallel.py.
    isolate = parallel.enter_network_namespace if requirements.is_privileged() else None
    jobs = min(len(faults), len(os.sched_getaffinity(0)) if isolate else 1)
    trees: SimpleQueue[Path] = SimpleQueue()
    for number in range(jobs):
        trees.put(shutil.copytree(tree, tree.with_name(f"copy-{number}"), symlinks=True))

    def is_found(fault: Fault) -> bool:
        copy = trees.get()
        try:
            return find(fault, copy)
        finally:
            trees.put(copy)

    with ThreadPoolExecutor(jobs, initializer=isolate) as executor:
        outcomes = list(executor.map(is_found, faults))
    return [fault for fault, was_found in zip(faults, outcomes, strict=True) if not was_found]


def main() -> None:
    """Check the faults that the arguments choose."""
    arguments = parse_arguments()
    faults = load_faults(Path(__file__).with_name("faults.toml"))
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        tree = copy_tree(Path(folder, "tree"))
        if problems := find_problems(faults, tree):
            fail("\n".join(problems))
        chosen = without_those_that_cannot_run(choose(faults, arguments))
        survivors: list[Fault] = []
        if chosen:
            check_without_faults(chosen, tree)
            survivors = find_each(chosen, tree)
    found, names = len(chosen) - len(survivors), ", ".join(fault.name for fault in survivors)
    print(f"{found} of {len(chosen)} faults found; survived: {names or 'none'}")
    sys.exit(bool(survivors))


if __name__ == "__main__":
    main()
