"""The driver's process: bound to its run's folder, and to nothing else; it ends with words, never with a traceback."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest

from tests.conftest import ROOT, running
from tfcluster.errors import ClusterError
from tfcluster.programs import context
from tfcluster.runtime import driver

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
    with running(sys.executable, "-c", _DRIVER, str(folder), stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "driving\n"
        assert process.poll() is None
        folder.rmdir()
        assert process.wait(60) == 1


def test_a_result_that_is_not_finite_is_an_error_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = ModuleType("tfcluster.programs.careless")
    program.run = lambda context: {"loss": math.nan}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, program.__name__, program)
    monkeypatch.setattr(context, "_this_run", [])  # the driver tells its process which run it is; this one is none
    job = driver.Job("careless-1", "demo", "careless", str(tmp_path), {}, "localhost:1", [], {}, [])
    events = tmp_path / driver.EVENTS
    assert driver._drive(job, partial(driver._tell, events)) == 1
    (error,) = map(json.loads, events.read_text().splitlines())
    assert error["error"]["message"] == "the run's event 'result' has a number that is not finite"
    with pytest.raises(ClusterError, match=r"/none/events\.jsonl cannot be written: No such file or directory"):
        driver._tell(tmp_path / "none" / driver.EVENTS, "run")


def test_the_first_line_of_an_error_is_the_first_that_says_something() -> None:
    said = "From /job:worker/replica:0/task:0:\nSocket closed\nAdditional GRPC error information"
    assert driver._first_line(OSError(said)) == "OSError: Socket closed"
    assert driver._first_line(OSError("From /job:ps/replica:0/task:0:\n")) == "OSError"
    assert driver._first_line(ValueError("From here: on")) == "ValueError: From here: on"
