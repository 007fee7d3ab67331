"""What happens to a cluster from outside: its disk is full, another process has its port, its host reboots."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.conftest import SCRIPTS, Sandbox, running
from tfcluster.os.procfs import boot_id


@contextlib.contextmanager
def disk(folder: Path, size: str = "64m") -> Iterator[None]:
    """Have a new folder be a disk of this size, in memory."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "tmpfs", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def fill(folder: Path) -> Path:
    """Fill a disk to the last byte; return the file that does."""
    path = folder / "filler"
    with path.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(b"x" * size)
    return path


@contextlib.contextmanager
def taken(port: int) -> Iterator[int]:
    """Another process listens on a port; gives its pid."""
    with running(sys.executable, str(SCRIPTS / "hold_port.py"), str(port), stdin=-1, stdout=-1) as stranger:
        assert stranger.stdout.readline() == "listening\n"
        yield stranger.pid


def reboot(sandbox: Sandbox, runtime_folder: Path, *, state_folder: Path | None = None) -> None:
    """End all processes at once, empty the folder in memory, and have journals know that it was another boot."""
    while processes := sandbox.processes():
        for pid in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    for path in (runtime_folder / "tfcluster").iterdir():
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    for journal in state_folder.glob("tfcluster/*/*/journal.json") if state_folder else ():
        journal.write_text(journal.read_text().replace(boot_id(), "of an earlier boot"))
