"""Carrying out what `up` and `scale` have planned, on all hosts of a cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Mapping
from functools import partial

from tfcluster.client import book
from tfcluster.client.cluster import Cluster
from tfcluster.client.connection import AgentGoneError
from tfcluster.client.down import stop_on
from tfcluster.client.examining import let_go
from tfcluster.client.fan_out import Strand, merged
from tfcluster.client.look import lines_of
from tfcluster.client.notice import tell
from tfcluster.client.up import Prepared
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.model.hosts import Host
from tfcluster.model.layout import Layout
from tfcluster.model.plan import ended_by, losses
from tfcluster.model.status import ClusterStatus
from tfcluster.model.whole import Absent, whole
from tfcluster.protocol.messages import Call

# Between TERM and KILL, for the tasks of a host that the cluster leaves.
_GRACE = 5.0


def apply(prepared: Prepared, *, whatever_is_lost: bool) -> Iterator[ClusterStatus]:
    """Carry the plan out, giving the cluster's status at each change while it stops what it stops.

    When it ends, all that has to be started is being started.

    Args:
        prepared: The plan.
        whatever_is_lost: Also what the plan does not say, as a run that was submitted since.

    Raises:
        ClusterError: An agent could not, or found another cluster than the one that the plan was made from.
    """
    lost = None if whatever_is_lost else losses(prepared.operations)
    if prepared.cluster.is_here and prepared.leaving is None:
        if prepared.operations:
            head = prepared.cluster.head
            yield from _apply_on(prepared, prepared.layout, lost, head, Strand(head))
        return
    yield from _apply_everywhere(prepared, lost)


def _apply_everywhere(prepared: Prepared, lost: list[str] | None) -> Iterator[ClusterStatus]:
    """One host first, which refuses one of two commands at a time before anything has changed; then all others."""
    # Before anything starts: whatever becomes of this command, the next one knows where to look.
    noted = book.read(prepared.cluster.name) is not None
    leaving = tuple(prepared.leaving.hosts.values()) if prepared.leaving else ()
    _note(prepared, leaving)
    layout = prepared.base or prepared.layout
    try:
        if prepared.operations:
            first = _decisive_host(prepared)
            told: dict[str, ClusterStatus | Absent] = {}
            deciding = _apply_on(prepared, prepared.layout, lost, first, Strand(first))
            try:
                while True:
                    told[first] = next(deciding)
                    yield whole(layout, told)
            except StopIteration as end:
                decided: Layout = end.value  # of two commands at a time the other one's, with its ports
            except ClusterError as error:
                is_certain = not isinstance(error, AgentGoneError) and error.exit_code is not ExitCode.UNREACHABLE
                if is_certain and prepared.base is None and not noted:
                    book.remove(prepared.cluster.name)
                raise
            others = [host for host in prepared.examined if host != first]
            streams = {host: partial(_apply_on, prepared, decided, lost, host) for host in others}
            for _ in _carry_on(told, streams):
                yield whole(layout, told)
            _note(prepared, leaving)  # somebody may have looked before anything was up, and forgotten the cluster
        if prepared.leaving is not None:
            _note(prepared, tuple(prepared.leaving.hosts[host] for host in _leave(prepared, prepared.leaving)))
    finally:
        let_go(prepared.examined)


def _decisive_host(prepared: Prepared) -> str:
    decisive = (prepared.base or prepared.layout).head().host
    return decisive if decisive in prepared.examined else prepared.cluster.head


def _note(prepared: Prepared, besides: tuple[Host, ...]) -> None:
    """Note where the cluster is, and where there is something of it besides."""
    cluster = prepared.cluster
    if cluster.is_here and not besides:
        book.remove(cluster.name)
    else:
        book.write(Cluster(cluster.name, (*cluster.hosts.values(), *besides), cluster.head))


def _carry_on(
    told: dict[str, ClusterStatus | Absent], streams: Mapping[str, Callable[[Strand], Iterator[ClusterStatus]]]
) -> Iterator[None]:
    """Add what hosts tell to what others have told; something at each change.

    Raises:
        ClusterError: Some could not; all others have by then.
    """
    if not streams:
        return
    wrong: dict[str, ClusterError] = {}
    with contextlib.closing(merged(streams)) as statuses:
        for host, status in statuses:
            if isinstance(status, ClusterError):
                wrong[host] = status
            else:
                told[host] = status
                yield
    if wrong:
        hints = dict.fromkeys(error.hint for error in wrong.values() if error.hint)
        raise ClusterError(
            "\n".join([*lines_of(wrong), "the other hosts are changed, and go on"]),
            hint=" ".join([*hints, "`tfcluster up` again does what is left, `tfcluster down` stops all of it."]),
            exit_code=max(error.exit_code for error in wrong.values()),
        )


def _apply_on(
    prepared: Prepared, layout: Layout, lost: list[str] | None, host: str, strand: Strand
) -> Generator[ClusterStatus, None, Layout]:
    """One host's status at each change, while it stops what it stops; returns the layout that it has then."""
    found = prepared.examined[host].found
    connection = prepared.everywhere.connect(host)
    answer = connection.stream(
        Call.APPLY,
        start=found is None,
        wanted=prepared.wanted.to_json(),
        base=found and found.layout.to_json(),
        layout=layout.to_json(),
        lost=lost,
        ends=ended_by(prepared.operations),
    )
    with contextlib.closing(answer):
        try:
            for message in strand.events(answer):
                yield ClusterStatus.from_json(message)
            return Layout.from_json(answer.finish()["layout"])
        except ClusterError as error:
            answer.leave()
            if isinstance(error, AgentGoneError) and found is None and not connection.reach.is_up():
                raise AgentGoneError(
                    f"the agent of {prepared.wanted.cluster!r} on {host} died before it had started a task: none runs",
                    hint="Type the command again.",
                ) from None
            raise


def _leave(prepared: Prepared, leaving: Cluster) -> list[str]:
    """Have nothing more of the cluster on hosts that it leaves; those where something may be left."""
    left = [host for host in leaving.hosts if host not in prepared.examined]
    for host, status in stop_on(leaving, [host for host in leaving.hosts if host not in left], _GRACE):
        if isinstance(status, ClusterError):
            tell("\n".join(lines_of({host: status})))
            left.append(host)
    return left
