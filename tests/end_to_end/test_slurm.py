"""Clusters in jobs of a real Slurm: from the queue to the end of the job, with either way of tracking processes."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.conftest import ROOT, Sandbox, wait_for
from tests.slurm import Slurm, slurm

NODES = ("n1", "n2", "n3")
JOBS = "jobs:\n  ps: {tasks: 1, hosts: [node0]}\n  worker: {tasks: 3}\n"


@dataclass
class InSlurm(Sandbox):
    """A sandbox whose commands run on the machine `here`, from which jobs are submitted."""

    slurm: Slurm | None = None

    @property
    def site(self) -> Slurm:
        assert self.slurm is not None
        return self.slurm

    @property
    def environment(self) -> dict[str, str]:
        return {**super().environment, **self.site.environment}

    def text(self, request: str, jobs: str = JOBS, name: str = "train") -> str:
        host = f"{{python: {sys.executable}, state: {self.site.folder}/state}}"
        return f"name: {name}\nslurm: {request}\nhost: {host}\n{jobs}"

    def jobs(self) -> list[str]:
        return self.site("squeue", "-h", "-o", "%i").split()

    def remains(self) -> list[str]:
        """What a job must not leave on its nodes: processes, and files other than logs and runs."""
        kept = {"logs", "runs"}
        folder = self.site.folder
        files = [path for path in folder.glob("state/*/*/*") if path.name not in kept]
        files += folder.glob("tmp/*/tfcluster-*/*.*")
        return [*map(str, self.processes().items()), *map(str, files)]


@contextlib.contextmanager
def in_slurm(tracking: str = "linuxproc", nodes: tuple[str, ...] = NODES) -> Iterator[InSlurm]:
    """A Slurm, and a sandbox to type commands in; nothing may be left in the end."""
    mark = f"slurm-{os.getpid()}-{time.monotonic_ns()}"
    inherited = {name: os.environ[name] for name in ("TEST_RUN", "TEST_SETTINGS", "TEST_CHANGES") if name in os.environ}
    variables = {"TEST_MARK": mark, "PYTHONPATH": str(ROOT / "tests" / "changed"), **inherited}
    with slurm(*nodes, tracking=tracking, variables=variables) as site:
        folder = site.folder / "user"
        (folder / "run").mkdir(parents=True, mode=0o700)
        command = tuple(site.command(sys.executable, "-m", "tfcluster"))
        sandbox = InSlurm(folder, mark=mark, command=command, slurm=site)
        try:
            yield sandbox
        finally:
            sandbox.end_commands()
            for name in ("train", "other"):
                sandbox("down", "-c", name, "--grace", "1", "--yes", code=None)
            with contextlib.suppress(AssertionError):
                wait_for(lambda: not sandbox.remains(), 30)
            left = sandbox.remains()
            for pid in sandbox.processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        assert not left, left


@pytest.fixture(scope="module")
def site(needs_slurm: None) -> Iterator[InSlurm]:
    """A Slurm that the tests of the module share; they leave no job in it."""
    with in_slurm() as sandbox:
        yield sandbox


def test_a_job_gives_the_nodes_and_down_ends_it(site: InSlurm) -> None:
    site("up", site.spec(site.text('{nodes: 3, time: "1:00:00"}')))
    status = site.status()
    assert status["state"] == "running"
    assert {task["host"] for task in status["tasks"]} == {"node0", "node1", "node2"}
    (job,) = site.jobs()
    assert status["job"]["id"] == int(job)
    assert status["job"]["nodes"] == ["n1", "n2", "n3"]
    assert 3000 < status["job"]["ends_in_s"] <= 3600
    assert "node2 is n3" in site("status").stdout
    result = site.json("run", "pi", "--samples", "1e6", "--seed", "7")
    assert len(result["devices"]) == 3
    site("down")
    wait_for(lambda: not site.jobs())
    wait_for(lambda: not site.remains())
    site("status", code=3)
