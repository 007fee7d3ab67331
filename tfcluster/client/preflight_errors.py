"""Format the problems, warnings and notes of a preflight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tfcluster import settings
from tfcluster.client.connectivity import ConnectivityFailure
from tfcluster.client.preflight import HostPreflight
from tfcluster.client.snapshot import with_host
from tfcluster.core.accounts import OtherAccounts
from tfcluster.core.text import pluralize
from tfcluster.errors import ClusterError, ExitCode


@dataclass(frozen=True)
class PreflightProblem:
    """A problem that prevents a cluster from coming up.

    Attributes:
        host: The host that has the problem; empty for a problem between hosts.
        error: The problem, with a hint what to type.
    """

    host: str
    error: ClusterError

    @property
    def lines(self) -> list[str]:
        """Return the lines of the problem's message, each with the host's name."""
        return with_host(self.host, self.error) if self.host else self.error.message.splitlines()


def told(problems: Sequence[PreflightProblem], *, alone: bool) -> ClusterError:
    """Combine all problems into one error.

    Args:
        problems: The problems, at least one.
        alone: The cluster is on this machine only, so that the messages need no host names.
    """
    hints = dict.fromkeys(problem.error.hint for problem in problems if problem.error.hint)
    codes = {problem.error.exit_code for problem in problems}
    code = ExitCode.UNREACHABLE if ExitCode.UNREACHABLE in codes else problems[0].error.exit_code
    if alone:
        return ClusterError(
            "\n".join(problem.error.message for problem in problems), hint=" ".join(hints), exit_code=code
        )
    lines = [f"{pluralize(len(problems), 'problem')}, and nothing was started"]
    for problem in problems:
        lines += [f"  {line}" for line in problem.lines]
        lines += [f"    {line}" for line in problem.error.hint.splitlines()]
    return ClusterError(
        "\n".join(lines), hint="`tfcluster doctor` makes the same examination by itself.", exit_code=code
    )


def different_versions(examined: Mapping[str, HostPreflight]) -> list[PreflightProblem]:
    """Return a problem if the hosts have different versions of TensorFlow."""
    hosts: dict[str, list[str]] = {}
    for host, each in examined.items():
        if each.tensorflow is not None:
            hosts.setdefault(each.tensorflow, []).append(host)
    if len(hosts) < 2:
        return []
    words = "; ".join(f"{version} on {', '.join(names)}" for version, names in sorted(hosts.items()))
    return [
        PreflightProblem(
            "",
            ClusterError(
                f"the hosts have different versions of TensorFlow: {words}",
                hint="Install the same everywhere (`pip install tensorflow==VERSION`), or say --mixed-tensorflow.",
            ),
        )
    ]


def refused_connections(
    refused: Sequence[ConnectivityFailure], wrong: Mapping[str, ClusterError]
) -> list[PreflightProblem]:
    """Convert the results of `check_connectivity` into problems.

    Args:
        refused: The connections that failed.
        wrong: The error of each host that could not be asked, by host.
    """
    unreached = [PreflightProblem("", ClusterError(str(each), hint=each.rule)) for each in refused]
    return [*(PreflightProblem(host, error) for host, error in wrong.items()), *unreached]


def clock_warning(examined: HostPreflight) -> str | None:
    """Return a warning if a host's clock differs too much from this machine's; None otherwise."""
    offset = examined.clock_offset
    if abs(offset) <= settings.CLOCK_OFFSET_MAX_SECONDS:
        return None
    side = "ahead of" if offset > 0 else "behind"
    return f"its clock is {abs(offset):.0f} s {side} this machine's, and so are the times of its logs and events"


def accounts_note(accounts: OtherAccounts, *, alone: bool) -> str:
    """Format a note on the other accounts that can log in on a host, and what they can do to the cluster.

    Args:
        accounts: The other accounts on the host.
        alone: The cluster is on this machine only.
    """
    names = ", ".join(accounts.names) + (", ..." if accounts.count > len(accounts.names) else "")
    who = "it" if accounts.count == 1 else "any of them"
    way = "through 127.0.0.1" if alone else "from there"
    return (
        f"{pluralize(accounts.count, 'other account')} can log in there ({names}): {who} can connect to this cluster's "
        f"servers {way} and run code as {accounts.user}"
    )


#: What can be done about other accounts on a host.
ACCOUNTS_HINT = "Use a machine, or a container with its own network, on which only you have an account."
