"""Which job a command uses and ends; tests/end_to_end/test_slurm.py has the real Slurm."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.core.clusters import topology_of
from tests.project import Project
from tfcluster.client.cluster import Cluster, read_registry, register, unregister
from tfcluster.client.hosts import acquire_hosts, describe_hosts, temporary_hosts
from tfcluster.errors import ClusterError
from tfcluster.protocol.serialization import to_json
from tfcluster.providers.slurm import jobs
from tfcluster.providers.slurm.job import SlurmJob
from tfcluster.providers.slurm.provider import SlurmProvider
from tfcluster.providers.slurm.request import SlurmSpec

TOPOLOGY = topology_of("name: train\nslurm: {nodes: 1}\njobs: {worker: {tasks: 1}}")
REQUEST = SlurmSpec(nodes=1)
PENDING = SlurmJob(7, 1, is_own=True, output="/none")
RUNNING = SlurmJob(7, 1, is_own=True, output="/none", nodes=("n1",))


@pytest.fixture
def released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[SlurmJob]:
    """The jobs that are ended, in a Slurm in which job 7 is known and runs as soon as one waits for it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    released: list[SlurmJob] = []
    answers: dict[str, Any] = {
        "allocation": None,
        "look_up": object(),
        "submit": PENDING,
        "wait_until_running": RUNNING,
        "place": TOPOLOGY,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(jobs, name, lambda *arguments, answer=answer: answer)
    monkeypatch.setattr(jobs, "release", released.append)
    return released


def remember(job: SlurmJob) -> None:
    register(Cluster("train", (), "node0", SlurmProvider("train", to_json(job))))


def show(line: str) -> None:
    pass


def fail_in_launch() -> None:
    with temporary_hosts(TOPOLOGY, REQUEST, show):
        unregister("train")  # as the end of its cluster does
        raise ZeroDivisionError


def test_a_launch_in_another_allocation_leaves_the_job_of_the_cluster(
    released: list[SlurmJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    remember(PENDING)
    monkeypatch.setattr(jobs, "allocation", lambda: 9)
    with pytest.raises(ClusterError, match="is in Slurm job 7, and this is job 9"):
        temporary_hosts(TOPOLOGY, REQUEST, show).__enter__()
    assert released == []
    assert read_registry("train") is not None


def test_a_launch_ends_its_job_also_if_it_fails(released: list[SlurmJob]) -> None:
    with pytest.raises(ZeroDivisionError):
        fail_in_launch()
    assert released == [RUNNING]
    assert read_registry("train") is None


def test_a_launch_whose_job_cannot_be_ended_is_still_known(
    released: list[SlurmJob], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(job: SlurmJob) -> None:
        raise ClusterError("scancel failed", hint="`sinfo` shows more.")

    monkeypatch.setattr(jobs, "release", fail)
    with pytest.raises(ZeroDivisionError):
        fail_in_launch()
    assert "scancel failed" in capsys.readouterr().err
    cluster = read_registry("train")
    assert cluster is not None
    assert cluster.provider is not None
    with pytest.raises(ClusterError, match="scancel failed"):
        cluster.provider.release()


def test_an_interrupt_says_that_a_job_stays_in_the_queue_only_if_it_does(
    released: list[SlurmJob], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    for name, is_known, stays in (("wait_until_running", True, True), ("wait_for_completion", False, False)):
        remember(PENDING)
        monkeypatch.setattr(jobs, "look_up", lambda job, is_known=is_known: object() if is_known else None)
        monkeypatch.setattr(jobs, name, interrupt)
        with pytest.raises(KeyboardInterrupt):
            acquire_hosts(TOPOLOGY, REQUEST, show, lambda changes: None)
        assert ("stays in the queue" in capsys.readouterr().err) is stays


def test_a_dry_run_says_that_a_job_is_waited_for(released: list[SlurmJob]) -> None:
    remember(PENDING)
    assert describe_hosts(TOPOLOGY, REQUEST) == "train: Slurm job 7 is waited for, and nothing is submitted"


def test_a_dry_run_prints_the_batch_script(project: Project, say: Callable[[str, str], None]) -> None:
    for name in ("sbatch", "srun", "squeue", "scancel", "scontrol"):
        say(name, "exit 1")
    options = '["-A physics", "--qos high", "--comment=a b"]'
    request = f'{{nodes: 2, time: "8:00:00", partition: gpu, gpus: 2, options: {options}}}'
    project.file("cluster.yaml", f"name: train\nslurm: {request}\njobs: {{worker: {{tasks: 3}}}}\n")
    script = project.run("up --dry-run").stdout
    for option in ("nodes=2", "time=8:00:00", "partition=gpu", "gres=gpu:2", "qos=high", "no-requeue"):
        assert f"#SBATCH --{option}\n" in script
    assert "#SBATCH -Aphysics\n#SBATCH --qos=high\n#SBATCH '--comment=a b'\n" in script
    assert "class NodeHolder:" in script
    assert project.run("validate").stdout.endswith("3 worker on node0, node1\n")
    assert "was not started from this machine" in project.run("status").stderr
