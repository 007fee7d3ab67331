"""What a provider does for commands: it acquires the hosts of a cluster, says how they ended, and releases them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from tfcluster.core.hosts import Host
from tfcluster.core.plan import HostStep
from tfcluster.core.status import JobStatus
from tfcluster.core.topology import ClusterTopology
from tfcluster.errors import ClusterError

if TYPE_CHECKING:
    from tfcluster.providers.request import HostRequest  # imports pydantic

#: The facts of a provider about the hosts of one cluster, as JSON values.
Facts = Mapping[str, Any]
#: Shows a line of progress.
Show = Callable[[str], None]
Request = TypeVar("Request", bound="HostRequest")


@dataclass(frozen=True)
class HostPlan:
    """What `up` would do to get the hosts of a cluster."""

    steps: tuple[HostStep, ...] = ()  # on hosts that exist
    placed: ClusterTopology | None = None  # the topology on the hosts; None if they are not known yet
    is_complete: bool = False  # whether all hosts exist
    replaced: tuple[str, ...] = ()  # the hosts that a step ends


@dataclass(frozen=True)
class Acquisition:
    """What a provider asks of the command for which it acquires hosts."""

    show: Show
    warn: Callable[[str], None]
    remember: Callable[[Sequence[Host]], None]  # writes these hosts and the provider's facts to the registry
    forget: Callable[[], None]  # removes both
    confirm: Callable[[Sequence[HostStep]], None]  # raises an error without the user's consent to losses


class Provider(ABC, Generic[Request]):
    """The hosts of one cluster."""

    #: Its name, which is that of its key in the spec.
    name: ClassVar[str]
    #: What `doctor` says of hosts that do not exist yet.
    not_yet: ClassVar[str]

    def __init__(self, cluster: str, facts: Facts | None) -> None:
        """Use the facts that are remembered of the hosts, None if there are none; a ValueError says what is wrong."""
        self.cluster = cluster
        self.is_acquired = False  # whether `acquire` has begun to use hosts, which a launch ends then

    @property
    @abstractmethod
    def facts(self) -> Facts | None:
        """What is remembered of the hosts now; None if there is nothing to release."""

    @classmethod
    @abstractmethod
    def not_started_here(cls, cluster: str, request: Request) -> ClusterError:
        """Return the error for a cluster that this machine has not started, and that is not found."""

    @abstractmethod
    def check(self, topology: ClusterTopology, request: Request) -> str:
        """Check that hosts can be acquired, and return what `doctor` says; raises a ClusterError if they cannot."""

    @abstractmethod
    def plan(self, topology: ClusterTopology, request: Request, show: Show) -> HostPlan:
        """Plan what `up` does to get the hosts. This changes nothing."""

    @abstractmethod
    def describe(self, topology: ClusterTopology, request: Request) -> str:
        """Return what is submitted or applied for hosts that do not exist yet, for `up --dry-run`."""

    @abstractmethod
    def acquire(self, topology: ClusterTopology, request: Request, command: Acquisition) -> ClusterTopology:
        """Get the hosts, wait for them, and return the topology on them; hosts that exist are kept, or completed."""

    def locate(self, topology: ClusterTopology, request: Request) -> ClusterTopology | None:
        """Find the hosts of the cluster that another machine has acquired, and return the topology on them.

        Return None if there are none, or if this machine lacks what finds them.
        """
        return None

    def store_topology(self, topology: ClusterTopology, show: Show) -> None:
        """Keep the topology of the cluster, which is up, where a host finds it that replaces another one."""

    def forget_topology(self) -> None:
        """Forget that topology, before the tasks are stopped: nothing starts them again."""

    def reject_foreign(self, topology: ClusterTopology, request: Request) -> None:
        """Raise an error if hosts exist that this machine did not acquire, and that a launch would end."""

    def left_by_interrupt(self) -> str | None:
        """Return what an interrupt of `acquire` has left; None if that is nothing to mention."""
        return None

    def remove_surplus(self, topology: ClusterTopology, request: Request) -> None:
        """End the hosts that the spec no longer has, on which nothing of the cluster runs any more."""

    @property
    @abstractmethod
    def place(self) -> str:
        """Where the cluster is, such as `in Slurm job 7`."""

    def require_hosts(self) -> None:
        """Raise an error if there are no hosts yet, or if they are known to have ended; this asks nobody."""

    def pending(self) -> str | None:
        """Return what the hosts wait for, and what shows more; None if there are hosts."""
        return None

    def job_status(self, now: float) -> JobStatus | None:
        """Return the job that the hosts are in at a Unix time, as `up` last saw it; None if there are no jobs."""
        return None

    def find_end(self) -> ClusterError | None:
        """Return the error that the hosts have ended, if they have; this may ask, as no host answers."""
        return None

    @abstractmethod
    def describe_release(self) -> str:
        """Return what `release` does, such as `ends Slurm job 7`."""

    def check_release(self) -> None:
        """Raise an error if `release` would fail, before anything on the hosts is stopped."""

    @abstractmethod
    def release(self) -> None:
        """End the hosts, with all that runs on them."""
