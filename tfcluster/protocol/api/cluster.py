"""The methods of an agent by which a cluster is planned, changed, watched and shut down."""

from __future__ import annotations

from dataclasses import field
from typing import NoReturn

from tfcluster import settings
from tfcluster.core.devices import Device
from tfcluster.core.forwarding import Certificate, CertificateFacts
from tfcluster.core.hosts import OtherAccounts
from tfcluster.core.reconcile import ObservedState
from tfcluster.core.status import ClusterStatus
from tfcluster.core.topology import ClusterTopology
from tfcluster.core.usage import HostUsage
from tfcluster.errors import ClusterError
from tfcluster.private_network import PrivateNetwork
from tfcluster.protocol.api import Done, Request
from tfcluster.records import record_class


@record_class(frozen=True)
class TopologyRequest(Request[NoReturn, ClusterTopology], method="topology", is_slow=True):
    """Return the complete topology that is up, including all secret values."""


@record_class(frozen=True)
class Allocation:
    """What a host allocated for the tasks of a topology, by task name."""

    ports: dict[str, int]  # the port of each task for which the topology names none
    gpus: dict[str, tuple[str, ...]]  # the GPUs of each task that requests some, as CUDA_VISIBLE_DEVICES names them
    # The port of the host's forwarder, if it gets one and the topology names no port for it.
    tls_port: int | None = None


@record_class(frozen=True)
class Observation:
    """The reply to `ObserveRequest`."""

    observed: ObservedState | None  # the observed state of the cluster on the host; None if it is not up there
    certificate: CertificateFacts | None = None  # what is known of the host's certificate; None if it has none


@record_class(frozen=True)
class ObserveRequest(Request[NoReturn, Observation], method="observe", is_slow=True, changes=True):
    """Observe the cluster."""


@record_class(frozen=True)
class FailedCheck:
    """A check that failed, and why."""

    check: str  # the name of the check
    error: ClusterError  # the reason, with a fix
    is_warning: bool = False  # whether the host can start its tasks all the same


@record_class(frozen=True)
class Preparation:
    """The event of `PrepareRequest`: the result of the preflight of a host."""

    tensorflow: str | None  # the version of the host's TensorFlow; None if it could not be loaded
    allocation: Allocation  # the allocated ports and GPUs; empty if there are problems
    # Everything that prevents the host from starting its tasks, and warnings; `tensorflow` is the check of its library.
    problems: tuple[FailedCheck, ...]
    accounts: OtherAccounts | None  # other accounts that can connect to the host's servers; None if there are none
    python: str = ""  # the path of the agent's Python
    psutil_problem: str = ""  # why that Python cannot use psutil; empty if it can
    cores: int = 0  # how many the agent may run on, which is how many TensorFlow sees
    cpu_quota: float | None = None  # how many cores its control groups let it keep busy; None if all


@record_class(frozen=True)
class PrepareRequest(Request[Preparation, NoReturn], method="prepare", is_slow=True, changes=True):
    """Run the preflight checks for a topology, allocate ports and GPUs, and keep the agent running until cancelled."""

    topology: ClusterTopology  # the desired topology, merged with the one of the running cluster
    # Whether the agent answers connections, until the request is cancelled, on the reserved ports of servers that do
    # not run yet. This is the half of the connectivity check of a cluster on several hosts that answers; see
    # `ReachRequest`.
    listens: bool


#: The cause of a failure in `ReachReply` that is no matter of a port.
LARGE_PACKETS_LOST = "small packets pass, large ones do not"


@record_class(frozen=True)
class ReachReply:
    """The reply to `ReachRequest`."""

    failures: dict[str, str]  # the cause of the failure for each address to which the connection failed
    # By address, where the connection comes from according to the other host, if its ports will not admit that.
    sources: dict[str, str] = field(default_factory=dict)


@record_class(frozen=True)
class ReachRequest(Request[NoReturn, ReachReply], method="reach", is_slow=True):
    """Connect to ports of other hosts, all at the same time."""

    addresses: tuple[str, ...]  # the addresses, each `host:port`
    timeout: float  # seconds that each connection may take
    answered: tuple[str, ...] = ()  # those of the addresses on which the hosts answer; see `PrepareRequest`

    @property
    def limit(self) -> float:
        """Return the seconds that all of it may take."""
        return self.timeout + 2 * settings.CONNECTIVITY_ANSWER_SECONDS * bool(self.answered)


@record_class(frozen=True)
class ApplyReply:
    """The reply to `ApplyRequest`."""

    # Why the plan does not fit the state of the host, in which case nothing was done; None if the plan was carried out.
    conflict: str | None


@record_class(frozen=True)
class ApplyRequest(Request[ClusterStatus, ApplyReply], method="apply", is_slow=True, changes=True):
    """Carry out a plan. This continues to the end if the command disconnects.

    The events are the status at each change.
    """

    # The revision of this host's observed state from which the plan was made; None if the cluster was down.
    base_revision: str | None
    topology: ClusterTopology  # the topology to which the plan leads; its `kept` says which servers stay
    summary: str  # what the plan does on this host, for the event log
    accepted_loss: tuple[str, ...] | None  # the data and runs that the plan may lose; None accepts any loss
    terminating: tuple[str, ...]  # the tasks, on any host, whose processes the plan terminates
    # A certificate for the host, with its private key; None if it needs none, or keeps its own.
    certificate: Certificate | None = None


@record_class(frozen=True)
class DevicesReply:
    """The reply to `DevicesRequest`."""

    devices: tuple[Device, ...]  # the devices
    silent: tuple[str, ...]  # why tasks reported no devices, one text for each of these tasks


@record_class(frozen=True)
class DevicesRequest(Request[NoReturn, DevicesReply], method="devices"):
    """Ask all tasks for their TensorFlow devices."""


@record_class(frozen=True)
class StatusReply:
    """The reply to `StatusRequest`."""

    status: ClusterStatus  # of this host alone
    generation: int  # of its topology


@record_class(frozen=True)
class StatusRequest(Request[NoReturn, StatusReply], method="status"):
    """Return the status of the tasks and runs."""


@record_class(frozen=True)
class UsageRequest(Request[NoReturn, HostUsage], method="usage"):
    """Return what metrics and refreshed views need besides the status: the usage of agent, tasks and host."""


@record_class(frozen=True)
class WatchRequest(Request[ClusterStatus, Done], method="watch", is_slow=True):
    """Send the status now and at each change of a task or a run. While a plan is being executed, no status is sent."""

    timeout: float  # how long to watch, in seconds


@record_class(frozen=True)
class RestartRequest(Request[NoReturn, Done], method="restart", changes=True):
    """Stop tasks and start them again. The reply comes at once, without waiting for the restarts."""

    tasks: tuple[str, ...]  # names of tasks or jobs, as for `matching_tasks`; empty for all tasks
    grace: float  # seconds between SIGTERM and SIGKILL


@record_class(frozen=True)
class DownReply:
    """The reply to `DownRequest`."""

    warning: str | None = None  # what the user has to know about the shutdown; None if it was an ordinary one


@record_class(frozen=True)
class DownRequest(Request[ClusterStatus, DownReply], method="down", changes=True):
    """Stop all runs and tasks, then exit. This continues if the command disconnects.

    The events are the status at each change.
    """

    grace: float  # seconds between SIGTERM and SIGKILL. A repeated request can only shorten them


@record_class(frozen=True)
class EnvironmentReply:
    """The reply to `EnvironmentRequest`."""

    variables: dict[str, str] = field(repr=False)  # the environment variables, with the values of secrets
    python: str  # the path of the agent's Python
    code: str  # the folder from which the agent imports tfcluster
    socket: str  # the path of the agent's socket
    state: str  # the cluster's state directory on this host
    network: PrivateNetwork | None  # the private network in which the servers are; None if they are in the machine's


@record_class(frozen=True)
class ExecProcess:
    """A process on the agent's host that is about to execute the command of an `ExecRequest`."""

    exec_id: str  # that of the request
    pid: int  # its pid


@record_class(frozen=True)
class EnvironmentRequest(Request[NoReturn, EnvironmentReply], method="environment"):
    """Return the environment by which a process on this host is part of the cluster, and what starts one there."""

    task: str | None  # the short name of the task of this host to return the environment of; None for that of a client
    process: ExecProcess | None = None  # the process that asks, if an `ExecRequest` is to end it


@record_class(frozen=True)
class ExecRequest(Request[NoReturn, Done], method="exec"):
    """End a command on this host when this request is cancelled, as by the end of the `tfcluster exec` that made it.

    The reply says that the command has ended by itself.
    The command starts after this request and reports its process by an `EnvironmentRequest`.
    """

    exec_id: str  # what the command names; random, so that no two are the same
