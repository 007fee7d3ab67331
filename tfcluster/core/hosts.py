"""The hosts of a cluster: the name, the address and the way to each machine, and its other login accounts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from tfcluster import settings
from tfcluster.core.kubernetes import PodSet
from tfcluster.core.slurm import HostJob, SlurmJob
from tfcluster.paths import LOCAL_HOST
from tfcluster.records import record_class


@record_class(frozen=True)
class Host:
    """A host: a machine that tasks run on.

    The machine that the command runs on is always `localhost`, and no other host is. The other hosts of a private
    cluster connect to the forwarder at `tls_port`, and to programs at the ports that begin with `first_program_port`.
    Both are None until they are allocated, and for other clusters.
    """

    name: str
    address: str  # the host name or IP address to which the other hosts connect to reach its tasks
    ssh: str | None = None  # the destination, such as `user@name` or a name from ~/.ssh/config; None for this machine
    python: str | None = None  # the Python that has TensorFlow; None for the Python that runs this command
    state: str | None = None  # the folder for the state of all clusters; None for $XDG_STATE_HOME/tfcluster
    env: Mapping[str, str] = field(default_factory=dict)  # added to that of the agent, and so of its tasks
    setup: tuple[str, ...] = ()  # shell commands that run there once, before anything else
    shell: str | None = None  # a command of bash that sets up the environment of `python`, as for conda
    connect: str | None = None  # the command that runs a command there, if that is not ssh; see `transport.connector`
    job: HostJob | None = None  # the job of Slurm whose step starts the agents there; see `transport.job_step`
    image: str | None = None  # what the host runs if it is a pod
    tls_port: int | None = None
    first_program_port: int | None = None

    @property
    def program_ports(self) -> tuple[int, ...]:
        """Return the ports for programs to which the other hosts of a private cluster can connect."""
        first = self.first_program_port
        return () if first is None else tuple(range(first, first + settings.PROGRAM_PORTS))

    @property
    def destination(self) -> str:
        """Return the ssh destination of the host."""
        return self.ssh or self.name

    @property
    def way(self) -> str:
        """Return how the host is reached, as the spec says it."""
        return f"ssh {self.ssh}" if self.connect is None else f"connect {self.connect}"

    @property
    def interpreter(self) -> str:
        """Return the Python interpreter to run on the host."""
        return self.python or "python3"


#: The only host of a cluster whose spec names no hosts. Only this machine connects, and can connect, to its tasks.
THIS_MACHINE = Host(LOCAL_HOST, LOCAL_HOST)


@record_class(frozen=True)
class RegistryEntry:
    """The registry's entry of a cluster; see `client.cluster`."""

    head: str  # the host of the head task
    hosts: tuple[Host, ...]
    job: SlurmJob | None = None  # the job whose nodes the hosts are; there are none yet while it is pending
    pods: PodSet | None = None  # the pods that the hosts are


@record_class(frozen=True)
class OtherAccounts:
    """The other login accounts of a cluster's host; they can connect to ports on its loopback device."""

    user: str  # the account that the cluster runs as on this host
    count: int  # at least one
    names: tuple[str, ...]  # the first few
