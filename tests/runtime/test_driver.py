"""The driver's process: bound to its run's folder, and to nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT

_DRIVER = """
import sys, threading, time
from pathlib import Path
from tfcluster.runtime import driver
driver._WATCH_SECONDS = 0.01
threading.Thread(target=driver._end_with, args=(Path(sys.argv[1]),), daemon=True).start()
print("driving", flush=True)
time.sleep(600)
"""


def test_a_driver_ends_with_the_folder_of_its_run(tmp_path: Path) -> None:
    folder = tmp_path / "pi-1"
    folder.mkdir()
    command = [sys.executable, "-c", _DRIVER, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "driving\n"
        assert process.poll() is None
        folder.rmdir()
        assert process.wait(60) == 1
