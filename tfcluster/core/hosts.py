"""The hosts of a cluster: the name, address and ssh destination of each machine, and its other login accounts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tfcluster import settings
from tfcluster.paths import LOCAL_HOST


@dataclass(frozen=True)
class Host:
    """A host: a machine that tasks run on.

    Attributes:
        name: Its name in the spec. The machine that the command runs on is always `localhost`, and no other host is.
        address: The host name or IP address to which the other hosts connect to reach its tasks.
        ssh: Its ssh destination, such as `user@name` or a name from ~/.ssh/config; None for this machine.
        python: The Python on this host that has TensorFlow; None for the Python that runs this command.
        shell: A command of bash that sets up the environment of that Python, such as one that activates an environment
            of conda; None for none.
        state: The folder on this host for the state of all clusters; None for $XDG_STATE_HOME/tfcluster.
        env: Variables added to the environment of the agent on this host, and therefore of its tasks.
        setup: Shell commands that run on this host once, before anything else.
        tls_port: The port on which its forwarder listens for the other hosts of a private cluster; None until it is
            allocated, and for other clusters.
        first_program_port: The first of the ports for programs on this host to which the other hosts of a private
            cluster can connect; None until they are allocated, and for other clusters.
    """

    name: str
    address: str
    ssh: str | None = None
    python: str | None = None
    state: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    setup: tuple[str, ...] = ()
    shell: str | None = None
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
    def interpreter(self) -> str:
        """Return the Python interpreter to run on the host."""
        return self.python or "python3"


#: The only host of a cluster whose spec names no hosts. Only this machine connects, and can connect, to its tasks.
THIS_MACHINE = Host(LOCAL_HOST, LOCAL_HOST)


@dataclass(frozen=True)
class RegistryEntry:
    """The registry's entry of a cluster; see `client.cluster`."""

    head: str  # the host of the head task
    hosts: tuple[Host, ...]


@dataclass(frozen=True)
class OtherAccounts:
    """The login accounts of a host other than the one of the cluster; they can connect to ports on its loopback device.

    Attributes:
        user: The account that the cluster runs as on this host.
        count: The number of other accounts; at least one.
        names: The names of the first few other accounts.
    """

    user: str
    count: int
    names: tuple[str, ...]
