"""What Slurm may say of a job, as programs in its place say it; tests/end_to_end/test_slurm.py has the real Slurm."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from tfcluster.core.hosts import Host
from tfcluster.core.slurm import SlurmJob
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.providers import slurm
from tfcluster.spec.slurm import SlurmSpec

AT = "CANCELLED AT 2026-11-24T13:18:32"
_OUTPUTS = {
    f"slurmstepd: error: *** JOB 7 ON n1 {AT} DUE TO TIME LIMIT ***\n": "TIMEOUT",
    f"slurmstepd: error: *** JOB 7 ON n1 {AT} DUE TO PREEMPTION ***\n": "PREEMPTED",
    f"slurmstepd: error: *** JOB 7 ON n1 {AT} DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***\n": "NODE_FAIL",
    f"slurmstepd: error: *** STEP 7.0 ON n1 {AT} ***\n": "CANCELLED",
    f"slurmstepd: error: *** STEP 7.0 ON n1 {AT} ***\n*** JOB 7 ON n1 {AT} DUE TO TIME LIMIT ***\n": "TIMEOUT",
    "srun: error: n2: Out Of Memory\ntfcluster: the step that holds the nodes ended with exit code 137\n": (
        "the step that holds the nodes ended with exit code 137"
    ),
    "srun: Job step created\n": None,
}


@pytest.mark.parametrize("output", _OUTPUTS)
def test_the_cause_of_the_end_is_that_of_the_output(output: str, tmp_path: Path) -> None:
    path = tmp_path / "slurm-7.out"
    path.write_text("an earlier line\n" + output)
    job = SlurmJob(7, 1795524747, is_own=True, output=str(path), nodes=("n1", "n2"))
    assert slurm.find_end(job) == _OUTPUTS[output]
    if _OUTPUTS[output] is None:
        slurm.check(job)
        return
    with pytest.raises(ClusterError) as caught:
        slurm.check(job)
    assert caught.value.message == f"stopped: Slurm job 7 ended ({_OUTPUTS[output]})"
    assert caught.value.exit_code is ExitCode.NOT_RUNNING


_STEP = f"slurmstepd: error: *** STEP 7.0 ON n1 {AT} ***\n"
_OUTPUTS_OF_ALLOCATIONS = {
    _STEP: "COMPLETED or CANCELLED",
    _STEP + "tfcluster: the state of the job is COMPLETED\n": "COMPLETED",
    _STEP + "tfcluster: the state of the job is RUNNING\n": None,  # the step alone was ended
    _STEP + "tfcluster: the state of the job is \n": "COMPLETED or CANCELLED",  # the controller did not answer
}


@pytest.mark.parametrize("output", _OUTPUTS_OF_ALLOCATIONS)
def test_the_state_that_was_asked_for_counts_more_than_the_end_of_the_step(output: str, tmp_path: Path) -> None:
    path = tmp_path / "slurm-7.out"
    path.write_text(output)
    job = SlurmJob(7, 1795524747, is_own=False, output=str(path), nodes=("n1", "n2"))
    assert slurm.find_end(job) == _OUTPUTS_OF_ALLOCATIONS[output]


def test_without_an_output_nothing_is_known(tmp_path: Path) -> None:
    job = SlurmJob(7, 1795524747, is_own=True, output=str(tmp_path / "none"))
    assert slurm.find_end(job) is None
    with pytest.raises(ClusterError, match="Slurm job 7 was pending"):
        slurm.check(job)


@pytest.fixture
def say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Put a program on the path that prints a text."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    def put(name: str, script: str) -> None:
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o700)

    return put


@pytest.mark.parametrize(("state", "has_ended"), [("SIGNALING", False), ("REQUEUE_HOLD", False), ("DEADLINE", True)])
def test_only_a_state_that_is_an_end_is_one(
    state: str, has_ended: bool, say: Callable[[str, str], None], tmp_path: Path
) -> None:
    say("squeue", f"printf '{state} 5 6 7 n1 un\\351\\n'")  # not UTF-8
    job = SlurmJob(7, 5, is_own=True, output=str(tmp_path / "out"))
    assert (slurm.look_up(job) is None) is has_ended
    assert slurm.find_end(job) == (state if has_ended else None)


def test_a_job_of_which_nothing_is_known_is_cancelled(say: Callable[[str, str], None], tmp_path: Path) -> None:
    say("sbatch", "cat > /dev/null; echo 'Welcome to site 5'; echo '12;main'")
    say("srun", "exit 1")
    say("squeue", "echo 'slurm_load_jobs error: timed out' >&2; exit 1")
    say("scancel", f'echo "$1" > {shlex.quote(str(tmp_path / "cancelled"))}')
    with pytest.raises(ClusterError, match="slurm_load_jobs error: timed out"):
        slurm.submit("demo", SlurmSpec(), Host("node0", "node0"))
    assert (tmp_path / "cancelled").read_text() == "12\n"
