"""The runs that an agent remembers."""

from __future__ import annotations

from pathlib import Path

from tfcluster.agent.folder import StateFolder
from tfcluster.agent.runs import runs as module
from tfcluster.agent.runs.runs import Run, Runs
from tfcluster.model.states import RunState
from tfcluster.runtime.driver import Job


def test_only_the_latest_ended_runs_are_remembered_and_every_run_that_goes_on(tmp_path: Path) -> None:
    runs = Runs("title", StateFolder(tmp_path))
    for number in range(module._REMEMBERED + 5):
        job = Job(f"pi-{number}", "demo", "pi", str(tmp_path), {}, "localhost:1", [], {}, [])
        runs.runs[job.run] = Run(job, RunState.RUNNING if number == 0 else RunState.SUCCEEDED)
    runs._forget_old()
    assert list(runs.runs)[:2] == ["pi-0", "pi-5"]
    assert len(runs.runs) == module._REMEMBERED + 1


def test_a_run_does_not_get_the_folder_of_an_earlier_one(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path)
    folder.make()
    runs = Runs("title", folder)
    assert runs.make_folder("pi-0000")
    assert not runs.make_folder("pi-0000")
