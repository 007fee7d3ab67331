"""How a job has ended, as its output says it; tests/end_to_end/test_slurm.py has the real Slurm."""

from __future__ import annotations

from pathlib import Path

import pytest

from tfcluster.core.slurm import SlurmJob
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.providers import slurm

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
