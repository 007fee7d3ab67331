"""What a preflight learns of a host, and the checks of it: `up` and `scale` act on them, and `doctor` prints them."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

from tfcluster import settings
from tfcluster.client.rpc.agent_client import AgentClient, ResponseStream
from tfcluster.client.rpc.parallel import StreamContext, with_host
from tfcluster.client.rpc.reconnect import Reconnector, RetryPolicy
from tfcluster.core.forwarding import CertificateFacts
from tfcluster.core.hosts import OtherAccounts
from tfcluster.core.reconcile import ObservedState
from tfcluster.core.text import pluralize
from tfcluster.core.topology import PRIVATE, ClusterTopology
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.protocol.api import Request
from tfcluster.protocol.api.cluster import (
    Allocation,
    Observation,
    ObserveRequest,
    Preparation,
    PrepareRequest,
    ReachReply,
    ReachRequest,
)
from tfcluster.records import record_class

if TYPE_CHECKING:
    from tfcluster.transport.remote_transport import HostReport


E = TypeVar("E")
R = TypeVar("R")


class AgentInspector:
    """Sends the requests of a preflight to a host's agent, which runs at least until `close`.

    A `dry` one replaces no agent, and starts none that would find something of the cluster.

    Attributes:
        has_cluster: Whether the agent has got a cluster, so that it keeps running after `close`.
    """

    def __init__(self, client: AgentClient, *, dry: bool) -> None:
        self.has_cluster = False
        self._client = client
        self._dry = dry
        self._stream: ResponseStream[Any, Any] | None = None  # the latest one

    def observe(self) -> Observation:
        """Return what the cluster has on the host."""
        policy = RetryPolicy(settings.WAIT_AGENTS, timeout=0.0, retry_initial=False)
        reconnector: Reconnector[Any, Any] = Reconnector(
            self._client, StreamContext(self._client.transport.host), policy
        )
        # An agent may exit or die just as the request arrives.
        return reconnector.connect(lambda: self._request(ObserveRequest()).result())

    def has_changed(self, observed: ObservedState | None) -> bool:
        """Return whether the state of the host is another one than was observed, as far as its agent answers."""
        with contextlib.suppress(ClusterError):
            with contextlib.closing(self._client.stream(ObserveRequest(), dry=self._dry)) as response:
                now = response.result().observed
            return (now.revision if now else None) != (observed.revision if observed else None)
        return False

    def prepare(self, topology: ClusterTopology, *, listens: bool) -> Preparation:
        """Check the host for a topology; with `listens`, its allocated ports answer connections until `close`."""
        return next(self._request(PrepareRequest(topology, listens)))

    def reach(self, request: ReachRequest) -> ReachReply:
        """Connect to other hosts from the host."""
        with contextlib.closing(self._client.stream(request, dry=self._dry)) as response:
            return response.result()

    def close(self) -> None:
        """End what was started on the host for the preflight, and wait for its exit."""
        if self._stream is not None and self.has_cluster:
            with contextlib.suppress(ClusterError):
                self._stream.wait_for_agent_end()  # or that it has ended the request
        elif self._stream is not None:
            self._stream.close_and_reap()
        self._stream = None

    def _request(self, request: Request[E, R]) -> ResponseStream[E, R]:
        stream = self._client.stream(request, start=True, dry=self._dry)
        self._stream = stream
        return stream


@dataclass
class HostPreflight:
    """What a preflight has learned of a host.

    `problems` is everything that prevents the host from starting its tasks, each with the name of the check that
    failed.
    """

    report: HostReport | None = None  # of the first contact; None for this machine
    inspector: AgentInspector | None = None  # None if the host cannot be examined further
    observed: ObservedState | None = None  # None if the cluster is not up there, or it is not known
    may_be_up: bool = False  # it is not known whether the cluster is up there
    tensorflow: str | None = None  # the version; None if unknown
    allocation: Allocation = field(default_factory=lambda: Allocation({}, {}))
    problems: list[tuple[str, ClusterError]] = field(default_factory=list)
    warnings: list[tuple[str, ClusterError]] = field(default_factory=list)  # of failed checks that prevent no start
    certificate: CertificateFacts | None = None  # None if the host has none
    accounts: OtherAccounts | None = None  # other accounts that can connect to the host's servers
    python: str = ""  # the path of the Python there; empty if not known
    psutil_problem: str = ""  # why that Python cannot use psutil; empty if it can, or if that is not known
    cores: int = 0  # how many TensorFlow sees there
    cpu_quota: float | None = None  # how many of them its tasks can keep busy; None if all, or if that is not known
    unexamined: Sequence[str] = ()  # what a dry run could not examine, as it does not run the setup commands
    is_examined: bool = False  # the host's ports, GPUs, addresses and folders were examined

    @property
    def clock_offset(self) -> float:
        """Return the seconds by which the host's clock is ahead of this machine's (negative if it is behind).

        The offset is 0 if it is not larger than the error of its measurement.
        """
        if self.report is None or abs(self.report.clock_offset) <= self.report.clock_error:
            return 0.0
        return self.report.clock_offset

    def reach_problem(self) -> ClusterError | None:
        """Return why the host cannot be reached; None if it can."""
        return next((error for check, error in self.problems if check == "reach"), None)


ALL_HOSTS = "all"  # the `host` of a check that concerns all hosts together
VERSIONS = "versions"  # the name of the check that compares the hosts' versions of TensorFlow


class Severity(Enum):
    """What the result of a check means."""

    OK = "ok"
    NOTE = "note"  # it passed, and something can still be improved
    NOT_CHECKED = "not checked"  # it could not be made, as the setup commands have not been run
    WARNING = "warning"  # it failed, and the cluster can come up all the same
    ERROR = "error"  # it failed, and prevents the cluster from coming up


@record_class(frozen=True)
class CheckResult:
    """The result of one check."""

    host: str
    check: str
    severity: Severity
    result: str  # it may begin with the host's name
    hint: str = ""  # how to fix a problem; for a check that passed, what can still be improved
    exit_code: ExitCode = ExitCode.FAILED  # the exit code of a command that fails because of this result

    @property
    def is_ok(self) -> bool:
        """Return whether the check found no problem."""
        return self.severity not in (Severity.WARNING, Severity.ERROR)

    @property
    def text(self) -> str:
        """Return what the check found, without the host's name."""
        return self.result.removeprefix(f"host {self.host!r}: ").removeprefix(f"host {self.host!r} ")

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON values, as `doctor -o json` prints it."""
        return {
            "host": self.host,
            "check": self.check,
            "ok": self.is_ok,
            "result": self.text,
            "hint": self.hint,
            "examined": self.severity is not Severity.NOT_CHECKED,
        }


def check_problems(host: str, preflight: HostPreflight, topology: ClusterTopology) -> list[CheckResult]:
    """Return what the host itself reported: it cannot be reached, or lacks something that its tasks need."""
    return [failed_check(host, check, error) for check, error in preflight.problems]


def check_reach(host: str, preflight: HostPreflight, topology: ClusterTopology) -> Iterator[CheckResult]:
    """Yield how the host was reached."""
    if preflight.reach_problem() is None:
        report = preflight.report
        yield _passed(host, "reach", "this machine" if report is None else f"by {report.program}")


def check_warnings(host: str, preflight: HostPreflight, topology: ClusterTopology) -> Iterator[CheckResult]:
    """Yield what the host reported that does not keep its tasks from starting."""
    for check, error in preflight.warnings:
        yield CheckResult(host, check, Severity.WARNING, error.message, error.hint)


def check_host(host: str, preflight: HostPreflight, topology: ClusterTopology) -> Iterator[CheckResult]:
    """Yield the host's Python, TensorFlow and disk space, and what a dry run could not examine there."""
    report = preflight.report
    if preflight.reach_problem() is not None:
        return
    for note in preflight.unexamined:
        yield CheckResult(host, "host", Severity.NOT_CHECKED, note)
    if any(check == "host" for check, _ in preflight.problems) or (report is not None and not report.python):
        return
    words = [f"TensorFlow {preflight.tensorflow}"] if preflight.tensorflow else []
    if report is not None:
        words = [f"Python {report.python_version}", *words, f"{report.free_bytes >> 20} MiB free"]
    yield _passed(host, "host", ", ".join(words))


def check_clock(host: str, preflight: HostPreflight, topology: ClusterTopology) -> Iterator[CheckResult]:
    """Yield whether the clock of a remote host agrees with this machine's."""
    report, offset = preflight.report, preflight.clock_offset
    if report is None or not report.python:
        return
    if abs(offset) <= settings.CLOCK_OFFSET_MAX_SECONDS:
        yield _passed(host, "clock", f"{report.clock_offset:+.1f} s")
        return
    side = "ahead of" if offset > 0 else "behind"
    problem = f"its clock is {abs(offset):.0f} s {side} this machine's, and so are the times of its logs and events"
    hint = "`sudo timedatectl set-ntp true` synchronizes it with a time server."
    if any(each.name == host and each.connect is not None for each in topology.hosts):
        hint = "Synchronize it with a time server; a container has the clock of the machine that runs it."
    yield CheckResult(host, "clock", Severity.WARNING, problem, hint)


def check_tasks(host: str, preflight: HostPreflight, topology: ClusterTopology) -> Iterator[CheckResult]:
    """Yield whether the host's tasks can start, or run already."""
    if preflight.problems:
        return
    if not preflight.is_examined:
        what = "its ports, GPUs, addresses and folders: not checked, because that requires its Python with all packages"
        yield CheckResult(host, "tasks", Severity.NOT_CHECKED, what)
        return
    state = "up" if preflight.observed else "can start"
    yield _passed(host, "tasks", f"{pluralize(len(topology.on(host)), 'task')} {state}")


def check_accounts(host: str, preflight: HostPreflight, topology: ClusterTopology) -> Iterator[CheckResult]:
    """Yield a note on other accounts that can log in on the host, if servers listen there."""
    accounts = preflight.accounts
    is_container = any(each.image for each in topology.hosts)
    if accounts is not None and topology.network != PRIVATE and topology.has_servers and not is_container:
        names = ", ".join(accounts.names) + (", ..." if accounts.count > len(accounts.names) else "")
        who = "it" if accounts.count == 1 else "any of them"
        way = "through 127.0.0.1" if len(topology.hosts) == 1 and preflight.report is None else "from there"
        note = (
            f"{pluralize(accounts.count, 'other account')} can log in there ({names}): {who} can connect to this "
            f"cluster's servers {way} and run code as {accounts.user}"
        )
        hint = "`network: private` in the spec keeps them out."
        yield CheckResult(host, "accounts", Severity.NOTE, note, hint)


def check_usage(host: str, preflight: HostPreflight, topology: ClusterTopology) -> Iterator[CheckResult]:
    """Yield a note if the usage of the host and of its tasks cannot be measured."""
    if preflight.psutil_problem:
        note = f"its Python cannot use psutil ({preflight.psutil_problem}): `status`, `top` and `metrics` show no usage"
        install = shlex.join([preflight.python, "-m", "pip", "install", "psutil"])
        yield CheckResult(host, "usage", Severity.NOTE, note, f"`{install}` there installs it.")


def check_threads(host: str, preflight: HostPreflight, topology: ClusterTopology) -> Iterator[CheckResult]:
    """Yield a note if the host's tasks compute with more threads than its control groups allow to run at a time."""
    quota, threads = preflight.cpu_quota, [task.threads or preflight.cores for task in topology.on(host)]
    if quota is None or quota >= preflight.cores or sum(threads) <= quota or max(threads) == 1:
        return
    fitting = max(1, int(quota // len(threads)))
    note = (
        f"the quota of its control group is {quota:g} of {preflight.cores} cores, and "
        f"{pluralize(len(threads), 'task')} there compute with {sum(threads)} threads, which have to wait"
    )
    yield CheckResult(host, "threads", Severity.NOTE, note, f"Write `threads: {fitting}` for the jobs in the spec.")


#: The checks of each host, in the order in which `doctor` prints them.
HOST_CHECKS: tuple[Callable[[str, HostPreflight, ClusterTopology], Iterable[CheckResult]], ...] = (
    check_problems,
    check_reach,
    check_host,
    check_clock,
    check_tasks,
    check_warnings,
    check_accounts,
    check_usage,
    check_threads,
)


def check_each_host(topology: ClusterTopology, hosts: Mapping[str, HostPreflight]) -> list[CheckResult]:
    """Run the checks of each host for the desired topology, and compare the hosts' versions of TensorFlow."""
    results = [
        result
        for host, preflight in hosts.items()
        for check in HOST_CHECKS
        for result in check(host, preflight, topology)
    ]
    return [*results, *check_versions(hosts)]


def check_versions(hosts: Mapping[str, HostPreflight]) -> Iterator[CheckResult]:
    """Yield an error if the hosts have different versions of TensorFlow."""
    versions: dict[str, list[str]] = {}
    for host, preflight in hosts.items():
        if preflight.tensorflow is not None:
            versions.setdefault(preflight.tensorflow, []).append(host)
    if len(versions) > 1:
        words = "; ".join(f"{version} on {', '.join(names)}" for version, names in sorted(versions.items()))
        yield CheckResult(
            ALL_HOSTS,
            VERSIONS,
            Severity.ERROR,
            f"the hosts have different versions of TensorFlow: {words}",
            "Install the same version everywhere (`pip install tensorflow==VERSION`), or add --allow-version-mismatch.",
        )


def to_error(results: Sequence[CheckResult], *, is_local: bool) -> ClusterError | None:
    """Combine all errors among the results of checks into one; None if no result prevents the cluster from coming up.

    If the cluster is on this machine only (`is_local`), the messages need no host names.
    """
    errors = [result for result in results if result.severity is Severity.ERROR]
    if not errors:
        return None
    codes = [error.exit_code for error in errors]
    code = ExitCode.UNREACHABLE if ExitCode.UNREACHABLE in codes else codes[0]
    if is_local:
        hints = dict.fromkeys(error.hint for error in errors if error.hint)
        return ClusterError("\n".join(error.result for error in errors), hint=" ".join(hints), exit_code=code)
    lines = [f"Nothing was started; {pluralize(len(errors), 'problem')} found:"]
    for error in errors:
        message = error.result.splitlines() if error.host == ALL_HOSTS else with_host(error.host, error.result)
        lines += [f"  {line}" for line in message]
        lines += [f"    {line}" for line in error.hint.splitlines()]
    return ClusterError("\n".join(lines), hint="`tfcluster doctor` runs the same checks by itself.", exit_code=code)


def _passed(host: str, check: str, result: str) -> CheckResult:
    return CheckResult(host, check, Severity.OK, result)


def failed_check(host: str, check: str, error: ClusterError) -> CheckResult:
    """Return the result of a check that has failed with an error, and prevents the cluster from coming up."""
    return CheckResult(host, check, Severity.ERROR, error.message, error.hint, error.exit_code)
