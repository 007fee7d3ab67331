"""A real Slurm on this machine: a controller on the machine `here`, and a slurmd on each node of a network."""

from __future__ import annotations

import contextlib
import os
import shlex
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests import requirements
from tests.accounts import show_hidden_folders
from tests.conftest import wait_for
from tests.hosts import HERE
from tests.namespaces import Network, network

# Slurm's own network is the only thing that nodes need besides what a node of one machine shares with the others.
_CONFIGURATION = """\
ClusterName=test
SlurmctldHost={here}({here_address})
AuthType=auth/none
CredType=cred/none
SlurmUser=root
SlurmdUser=root
ProctrackType=proctrack/{tracking}
TaskPlugin=task/affinity
TaskProlog={folder}/prolog
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
GresTypes=gpu
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,batch_sched_delay=0
ReturnToService=2
KillWait=3
MinJobAge=300
InactiveLimit=0
OverTimeLimit=0
StateSaveLocation={folder}/saved
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd.%n.pid
{nodes}
PartitionName=main Nodes={names} Default=YES MaxTime=INFINITE State=UP
"""

_FREEZER = Path("/sys/fs/cgroup/freezer")


@dataclass
class Slurm:
    """A Slurm whose nodes are machines of a network, with host names and a /tmp of their own; they share the rest.

    Attributes:
        folder: All its files.
        network: The network of the machine `here`, where commands are typed, and the nodes.
        nodes: The nodes' names.
        tracking: How slurmd tracks the processes of a step: `linuxproc` or `cgroup`.
        variables: What the steps of a job have in their environment, as a site's TaskProlog sets it.
    """

    folder: Path
    network: Network
    nodes: tuple[str, ...]
    tracking: str
    variables: Mapping[str, str]
    _daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """What a command has in its environment on the machine `here`."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def command(self, *arguments: str, machine: str = HERE) -> list[str]:
        """A command line that runs another one on a machine; a node has its own name, and its own /tmp."""
        script = f"hostname {machine}; {show_hidden_folders()}"
        if machine in self.nodes:
            own = self.folder / "tmp" / machine
            script += f"mount --bind {own} /tmp; "
        script += f'mount --bind {self.folder}/hosts /etc/hosts; exec "$@"'
        return self.network[machine].command("unshare", "--uts", "--mount", "sh", "-ec", script, "sh", *arguments)

    def __call__(self, *arguments: str) -> str:
        """What one of Slurm's commands prints."""
        result = subprocess.run(
            self.command(*arguments),
            env={**os.environ, **self.environment},
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert result.returncode == 0, f"{arguments}: {result.stderr}"
        return result.stdout

    def configure(self) -> None:
        for part in ("saved", "spool", "run", *(f"tmp/{node}" for node in self.nodes)):
            (self.folder / part).mkdir(parents=True)
        for node in self.nodes:
            (self.folder / "tmp" / node).chmod(0o1777)
        self.folder.chmod(0o755)
        names = "".join(f"{machine.ipv4} {name}\n" for name, machine in self.network.machines.items())
        (self.folder / "hosts").write_text(f"127.0.0.1 localhost\n{names}")
        nodes = "\n".join(
            f"NodeName={name} NodeAddr={self.network[name].ipv4} CPUs=2 Gres=gpu:2" for name in self.nodes
        )
        for number in range(2):  # a GPU is a device to Slurm
            os.mknod(self.folder / f"gpu{number}", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        (self.folder / "gres.conf").write_text(f"Name=gpu File={self.folder}/gpu[0-1]\n")
        text = _CONFIGURATION.format(
            **{"folder": self.folder, "here": HERE, "here_address": self.network[HERE].ipv4},
            **{"tracking": self.tracking, "nodes": nodes, "names": ",".join(self.nodes)},
        )
        (self.folder / "slurm.conf").write_text(text)
        (self.folder / "cgroup.conf").write_text("CgroupAutomount=no\nCgroupPlugin=cgroup/v1\n")
        lines = "".join(f"echo export {shlex.quote(f'{name}={value}')}\n" for name, value in self.variables.items())
        prolog = self.folder / "prolog"
        prolog.write_text(f"#!/bin/sh\n{lines}")
        prolog.chmod(0o755)

    def start(self) -> None:
        options = ("-D", "-f", str(self.folder / "slurm.conf"))
        self._start(HERE, "slurmctld", *options)
        for node in self.nodes:
            self._start(node, "slurmd", *options)
        wait_for(lambda: self("sinfo", "-h", "-o", "%T").split() == ["idle"])

    def _start(self, machine: str, daemon: str, *options: str) -> None:
        program = requirements.find_program(daemon)
        with (self.folder / f"{daemon}.{machine}.log").open("ab") as log:
            self._daemons[f"{daemon} {machine}"] = subprocess.Popen(
                self.command(str(program), *options, machine=machine),
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def stop(self) -> None:
        """End all jobs and daemons."""
        with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
            for job in self("squeue", "-h", "-o", "%i").split():
                self("scancel", job)
            wait_for(lambda: not self("squeue", "-h"), 30)
        for daemon in reversed(self._daemons.values()):
            daemon.terminate()
        for daemon in self._daemons.values():
            daemon.wait(30)
        for node in self.nodes:
            for group in sorted(_FREEZER.glob(f"slurm_{node}/**/"), reverse=True):
                group.rmdir()


@contextmanager
def slurm(count: int, *, tracking: str, variables: Mapping[str, str]) -> Iterator[Slurm]:
    """A Slurm with some nodes; all is gone in the end."""
    # The control groups of all nodes are this machine's, and their names are the nodes'.
    nodes = tuple(f"{tracking[0]}{os.getpid()}-{number}" for number in range(1, count + 1))
    requirements.check_declared("slurm")
    with tempfile.TemporaryDirectory(prefix="tfc-", dir="/var/tmp") as folder, network(HERE, *nodes) as made:
        started = Slurm(Path(folder), made, nodes, tracking, variables)
        try:
            started.configure()
            started.start()
            yield started
        finally:
            started.stop()
