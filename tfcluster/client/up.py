"""Bringing a cluster up or to another layout: prepare, plan, apply, wait until every task answers."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfcluster.client.connection import AgentGoneError, Connection
from tfcluster.client.logs import read_logs
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.model.change import Found, onto, scaled
from tfcluster.model.layout import Layout
from tfcluster.model.plan import Operation, losses, plan
from tfcluster.model.states import AT_REST, TaskState
from tfcluster.model.status import ClusterStatus, TaskStatus
from tfcluster.protocol.messages import Call
from tfcluster.transport import local
from tfcluster.transport.reach import not_running

_LAST_LINES = 8
# So many agents may die one after the other while somebody waits for a cluster.
_AGENTS = 3


@dataclass(frozen=True)
class Prepared:
    """What `up` or `scale` found and what it would do.

    Attributes:
        wanted: The cluster as it is wanted.
        base: The cluster that is up; None when none is.
        layout: The wanted cluster with every port chosen.
        operations: What there is to do.
        tensorflow: The host's TensorFlow version.
    """

    wanted: Layout
    base: Layout | None
    layout: Layout
    operations: tuple[Operation, ...]
    tensorflow: str

    def to_json(self) -> dict[str, Any]:
        """The plan as JSON values."""
        operations = [operation.to_json() for operation in self.operations]
        return {
            "cluster": self.layout.cluster,
            "tensorflow": self.tensorflow,
            "operations": operations,
            "lost": losses(self.operations),
        }


def begin() -> None:
    """Have an agent begin to start while the spec is still being read; nothing comes of it if no `prepare` follows."""
    local.begin()


def prepare(wanted: Layout, *, dry: bool) -> Prepared:
    """Examine the host and plan; starts the agent if there is none, and no task.

    Args:
        wanted: The layout of the spec.
        dry: Nothing will follow: an agent started for this ends again before this returns.

    Raises:
        ClusterError: The host cannot run the cluster.
    """
    arguments = {"layout": wanted.to_json(), "dry": dry}
    answer = Connection(wanted.cluster).stream(Call.PREPARE, start=True, **arguments)
    try:
        try:
            reply = answer.finish()
        except AgentGoneError:  # it went down, or died, just as we came: the next one answers
            answer = Connection(wanted.cluster).stream(Call.PREPARE, start=True, **arguments)
            reply = answer.finish()
    except BaseException:
        answer.leave()
        raise
    if dry or reply["problems"]:
        answer.leave()
    if problems := [ClusterError.from_json(problem) for problem in reply["problems"]]:
        hints = dict.fromkeys(problem.hint for problem in problems)
        raise ClusterError("\n".join(problem.message for problem in problems), hint=" ".join(hints))
    found = Found.from_json(reply["found"]) if reply["found"] else None
    layout = (wanted if found is None else onto(wanted, found)).with_choices(**reply["choices"])
    return Prepared(wanted, found.layout if found else None, layout, plan(layout, found), reply["tensorflow"])


def prepare_scaled(cluster: str, counts: Mapping[str, int], *, dry: bool) -> Prepared:
    """Plan another number of tasks in some jobs of a cluster that is up.

    Args:
        cluster: Its name.
        counts: The number of tasks by job.
        dry: Nothing will follow.

    Raises:
        ClusterError: It is not running, or cannot have so many tasks.
    """
    prepared = prepare(scaled(Layout.from_json(Connection(cluster).call(Call.LAYOUT)), counts), dry=dry)
    if prepared.base is None:  # it went down in between
        raise not_running(cluster)
    return prepared


def apply(prepared: Prepared, *, whatever_is_lost: bool) -> Iterator[ClusterStatus]:
    """Carry the plan out, giving the cluster's status at each change while it stops what it stops.

    When it ends, all that has to be started is being started.

    Args:
        prepared: The plan.
        whatever_is_lost: Also what the plan does not say, as a run that was submitted since.

    Raises:
        ClusterError: The agent could not, or found another cluster than the one that the plan was made from.
    """
    answer = Connection(prepared.layout.cluster).stream(
        Call.APPLY,
        wanted=prepared.wanted.to_json(),
        base=prepared.base and prepared.base.to_json(),
        layout=prepared.layout.to_json(),
        lost=None if whatever_is_lost else losses(prepared.operations),
    )
    with contextlib.closing(answer):
        try:
            for message in answer:
                yield ClusterStatus.from_json(message)
        except ClusterError:
            answer.leave()
            raise


def watch_until_ready(cluster: str, timeout: float, only: Collection[str] | None = None) -> Iterator[ClusterStatus]:
    """The cluster's status at each change, until every task that is waited for is ready.

    Args:
        cluster: Its name.
        timeout: Seconds to wait at most.
        only: Short names of the tasks to wait for; all when left out.

    Raises:
        ClusterError: A task failed for good, or time ran out; names the tasks, why, and the end of their logs.
    """
    connection = Connection(cluster)
    tasks: list[TaskStatus] = []
    for status in _watch(connection, timeout):
        yield status
        tasks = [task for task in status.tasks if only is None or task.short in only]
        if all(task.state is TaskState.READY for task in tasks):
            return
        if any(task.state in AT_REST for task in tasks):
            raise _not_ready(connection, tasks, "")
    raise _not_ready(connection, tasks, f" within {timeout:g} s")


def _watch(connection: Connection, timeout: float) -> Iterator[ClusterStatus]:
    """The cluster's status at each change for so many seconds, from one agent to the next."""
    deadline = time.monotonic() + timeout
    for left in reversed(range(_AGENTS)):
        try:
            # The watch has no end of its own once the cluster is ready: hang up.
            with contextlib.closing(connection.stream(Call.WATCH, timeout=deadline - time.monotonic())) as watch:
                for message in watch:
                    yield ClusterStatus.from_json(message)
            return
        except ClusterError as error:
            if error.exit_code is ExitCode.NOT_RUNNING:
                raise ClusterError(
                    f"cluster {connection.cluster!r} went down meanwhile",
                    hint="`tfcluster up` starts it again.",
                ) from None
            if not (isinstance(error, AgentGoneError) and left):
                raise


def _not_ready(connection: Connection, tasks: Sequence[TaskStatus], when: str) -> ClusterError:
    """Which of the tasks that were waited for are not ready, why, and what each said last."""
    waiting = [task for task in tasks if task.state is not TaskState.READY]
    failed = [task for task in waiting if task.state in AT_REST] or waiting
    told = [_why(connection, task) for task in failed]
    count = f"{len(tasks) - len(waiting)} of {len(tasks)} tasks are ready{when}"
    return ClusterError(
        f"cluster {connection.cluster!r} is not ready: {count}\n" + "\n".join(told),
        hint="`tfcluster up` tries the failed tasks again, `tfcluster down` stops the rest, "
        "`tfcluster logs TASK` shows a whole log.",
        exit_code=ExitCode.UNHEALTHY,
    )


def _why(connection: Connection, task: TaskStatus) -> str:
    text = f"{task.short} at {task.address} on {task.host} is {task.state.value}"
    if task.last_exit is not None:
        text += f" ({task.last_exit})"
        if task.last_exit.detail:
            text += f": {task.last_exit.detail}"
    said: Iterable[str]
    if task.state in AT_REST:
        said = task.last_exit.log if task.last_exit is not None else ()
    else:  # it takes its time: perhaps it says what it waits for
        said = (each["line"] for each in read_logs(connection.cluster, [task.short], lines=_LAST_LINES))
    return text + "".join(f"\n  {line}" for line in said)
