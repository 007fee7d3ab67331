"""How tests run in parallel: each worker of pytest-xdist has a network of its own, and gets whole modules."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.requirements import is_privileged
from tfcluster.os.netns import make_namespaces

# The tests spend about half of their time waiting.
_WORKERS_PER_CORE = 2
# The tests that start processes of the product, or TensorFlow servers, are in these folders or use these fixtures.
_INTEGRATION_FOLDERS = {"end_to_end", "processes", "transport"}
_INTEGRATION_FIXTURES = {"sandbox", "demo", "agents", "hosts", "local_run"}
# If they began in the order of the files, one of these modules would still run for a minute when all others have ended.
LONG_MODULES = {"test_readme", "test_slurm", "test_training_programs", "test_upgrade"}


def is_worker(config: pytest.Config) -> bool:
    """Return whether this process is a worker of pytest-xdist."""
    return hasattr(config, "workerinput")


def worker_count() -> int:
    """Return the number of workers for `-n auto`; 0, which means none, if they could not be isolated."""
    return _WORKERS_PER_CORE * len(os.sched_getaffinity(0)) if is_privileged() else 0


def enter_network_namespace() -> None:
    """Move this thread, and all that it starts, to a network namespace of its own.

    Tests that run at the same time must not take each other's ports. The lock files of ports, the addresses and the
    abstract Unix sockets are separate for each network namespace too.
    """
    assert is_privileged(), "a worker needs a network namespace; without root, run `pytest -n 0`"
    make_namespaces()


def send_line(line: str) -> None:
    """Leave a line for the main process, which does not collect the tests itself."""
    if os.environ["PYTEST_XDIST_WORKER"] == "gw0":  # all workers collect the same tests
        _line_file().write_text(line)


def receive_line() -> str:
    """Return the line that a worker has left, once."""
    try:
        line = _line_file().read_text()
    except FileNotFoundError:
        return ""
    _line_file().unlink()
    return line


def _line_file() -> Path:
    return Path(tempfile.gettempdir(), f"tfc-{os.environ['TEST_RUN']}")


def end_leftovers(run: str) -> None:
    """Kill the processes of a run of the tests, and delete the network namespaces of runs whose process has exited.

    Args:
        run: The value of TEST_RUN in the environment of the processes.
    """
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"TEST_RUN={run}".encode() in (path / "environ").read_bytes().split(b"\0"):
                os.kill(int(path.name), signal.SIGKILL)
    for name in os.listdir("/run/netns") if os.path.isdir("/run/netns") else ():
        prefix, _, rest = name.partition("-")
        if prefix == "tfc" and not Path("/proc", rest.partition("-")[0]).exists():
            subprocess.run(["ip", "netns", "delete", name], check=False)


def mark_integration_tests(items: list[pytest.Item]) -> None:
    """Add the marker `integration` to the tests that need it."""
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        if item.path.parent.name in _INTEGRATION_FOLDERS or not _INTEGRATION_FIXTURES.isdisjoint(fixtures):
            item.add_marker(pytest.mark.integration)


def sort_long_modules_first(items: list[pytest.Item]) -> None:
    """Sort tests so that workers, which take modules in order, end at about the same time."""
    items.sort(key=lambda item: (item.path.stem not in LONG_MODULES, item.get_closest_marker("integration") is None))
