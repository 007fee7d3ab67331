"""Clusters in jobs of a real Slurm, and over a played Kubernetes."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests import kubernetes
from tests.accounts import Account
from tests.conftest import ROOT, Sandbox, wait_for
from tests.hosts import HostsSandbox, over
from tests.slurm import Slurm, slurm

NODES = 3
POD_NAMES = ("train-0", "train-1", "train-2")
# The GPUs that Slurm knows, as NVIDIA's driver would report them.
GPUS = 'def list_gpus(): return [("0", "GPU-0f"), ("1", "GPU-1f")]'
JOBS = "jobs:\n  ps: {tasks: 1, hosts: [node0]}\n  worker: {tasks: 2}\n"


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
        return {**super().environment, **self.site.environment, "HOME": str(self.folder)}

    def text(self, request: str, jobs: str = JOBS, name: str = "train") -> str:
        host = f"{{python: {sys.executable}, state: {self.site.folder}/state}}"
        return f"name: {name}\nslurm: {request}\nhost: {host}\n{jobs}"

    def script(self, text: str) -> Path:
        """Write a script, in a folder that is sent with it."""
        folder = self.site.folder / "scripts"
        folder.mkdir(exist_ok=True)
        return self.spec(text, f"{folder}/script.py")

    def allocated(self, nodes: int, script: str, *options: str) -> str:
        result = self.execute(
            *self.site.command("salloc", "--quiet", f"--nodes={nodes}", *options, "sh", "-c", script), timeout=120
        )
        assert result.returncode == 0, result.stderr + result.stdout
        return result.stdout

    def jobs(self) -> list[str]:
        return self.site("squeue", "-h", "-o", "%i").split()

    def remains(self) -> list[str]:
        """What a job must not leave on its nodes: processes, and files other than logs and runs."""
        kept = {"logs", "runs"}
        folder = self.site.folder
        files = [path for path in folder.glob("state/[!.]*/*/*") if path.name not in kept]
        files += folder.glob("tmp/*/tfcluster-*/*.*")
        return [*map(str, self.processes().items()), *map(str, files)]


@contextlib.contextmanager
def in_slurm(tracking: str = "linuxproc", user: Account | None = None) -> Iterator[InSlurm]:
    """A Slurm, and a sandbox to type commands in; nothing may be left in the end."""
    mark = f"slurm-{os.getpid()}-{time.monotonic_ns()}"
    inherited = {name: os.environ[name] for name in ("TEST_RUN",) if name in os.environ}
    changes = {**json.loads(os.environ.get("TEST_CHANGES", "{}")), "tfcluster.processes.gpus": GPUS}
    changed = {**json.loads(os.environ.get("TEST_SETTINGS", "{}")), "HOST_END_AGE_SECONDS": 0.0}
    variables = {
        **{"TEST_MARK": mark, "PYTHONPATH": str(ROOT / "tests" / "changed"), "TEST_SETTINGS": json.dumps(changed)},
        "TEST_CHANGES": json.dumps(changes),
        **inherited,
    }
    with slurm(NODES, tracking=tracking, variables=variables) as site:
        folder = site.folder / "user"
        for each in (folder, folder / "run", folder / "state", site.folder / "state"):
            each.mkdir(mode=0o700)
            if user is not None:
                os.chown(each, user.uid, user.uid)
        become = () if user is None else user.become
        command = tuple(site.command(*become, sys.executable, "-m", "tfcluster"))
        sandbox = InSlurm(folder, mark=mark, command=command, slurm=site)
        try:
            yield sandbox
        finally:
            sandbox.end_commands()
            for name in ("train", "other"):
                sandbox("down", "-c", name, "--grace", "1", "--yes", code=None)
            with contextlib.suppress(AssertionError):
                wait_for(lambda: not sandbox.remains(), 10)
            left = sandbox.remains()
            for pid in sandbox.processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        assert not left, left


class Pods:
    """A played Kubernetes whose pods are machines of a network, and its kubectl on the machine `here`."""

    def __init__(self, sandbox: HostsSandbox, folder: Path) -> None:
        self.sandbox, self.folder = sandbox, folder
        network = sandbox.network.network
        for name in POD_NAMES:
            path = folder / "namespaces" / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(network[name].namespace)
        (folder / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
        modules = f"{ROOT}:{Path(yaml.__file__).parent.parent}"
        program = f"env PYTHONPATH={shlex.quote(modules)} {sys.executable} -S -m tests.kubernetes {folder}"
        path = sandbox.network.folder / "bin" / "kubectl"
        path.write_text(f'#!/bin/sh\nexec {program} "$@"\n')
        path.chmod(0o755)

    def kubectl(self, *arguments: str, stdin: str = "") -> str:
        """What kubectl prints."""
        environment = self.sandbox.environment
        program = self.sandbox.network.folder / "bin" / "kubectl"
        options: dict[str, Any] = {"env": environment, "capture_output": True, "text": True, "timeout": 60}
        result: subprocess.CompletedProcess[str] = subprocess.run(
            [str(program), *arguments], input=stdin, check=True, **options
        )
        return result.stdout

    def change(self, **values: Any) -> None:
        """Change what a test may set: rights that are `forbidden`, or `states` of pods, for example."""
        with kubernetes.changing(self.folder) as state:
            state.update(values)

    def state(self) -> dict[str, Any]:
        return kubernetes.read(self.folder)

    def revisions(self) -> dict[str, str]:
        """The revision of each pod."""
        return {name: pod["labels"]["controller-revision-hash"] for name, pod in self.state()["pods"].items()}

    def addresses(self) -> dict[str, str]:
        """The address of each pod; one that replaces another has another one."""
        return {name: pod["address"] for name, pod in self.state()["pods"].items()}

    def is_replaced(self, name: str, before: dict[str, str]) -> bool:
        """Whether another pod has the name now; `before` are earlier addresses."""
        return self.addresses().get(name, before[name]) != before[name]

    def ready(self) -> set[str]:
        """The pods whose probe succeeds."""
        return {name for name, pod in self.state()["pods"].items() if pod["is_ready"]}


@contextlib.contextmanager
def in_pods(folder: Path) -> Iterator[Pods]:
    """A played Kubernetes without pods, and a sandbox to type commands in; nothing may be left in the end."""
    with (
        tempfile.TemporaryDirectory(prefix="tfc-", dir="/var/tmp") as shared,  # pods have their own /tmp
        over(folder, *POD_NAMES, has_sshd=False) as sandbox,
    ):
        made = Pods(sandbox, Path(shared))
        yield made
        made.change(states={}, error="", forbidden=[])
        if made.state()["objects"]:
            sandbox("down", "-c", "train", code=None)
        wait_for(lambda: not made.state()["pods"])
