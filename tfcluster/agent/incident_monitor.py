"""Create notices: failed tasks, ended runs, unreachable hosts."""

from __future__ import annotations

import asyncio
import time

from tfcluster import settings
from tfcluster.agent.notices import Notifier
from tfcluster.agent.runs.outcome import result_event
from tfcluster.agent.runs.store import RunRecord
from tfcluster.agent.tasks.health_monitor import ProbeClient, ProbeOutcome
from tfcluster.agent.tasks.supervisor import Supervisor
from tfcluster.core.notices import host_notice, run_notice, task_notice
from tfcluster.core.run_events import to_record
from tfcluster.core.states import TaskState
from tfcluster.core.topology import ClusterTopology, Task


class IncidentMonitor:
    """Creates notices of incidents on this host, and of other hosts that are unreachable.

    A host is unreachable if none of its tasks answers, or refuses a connection, for some time. Tasks are probed only if
    the spec asks for such notices. Of the reachable hosts, the first one in the spec reports it. An isolated host sees
    all other hosts as unreachable and reports them, too. When it reaches another host again, it withdraws the notices
    that were not delivered.
    """

    def __init__(self, cluster: str, supervisor: Supervisor, prober: ProbeClient, notices: Notifier) -> None:
        self._cluster = cluster
        self._supervisor = supervisor
        self._prober = prober
        self._notices = notices
        self._silent_since: dict[str, float] = {}
        self._doubtful: set[str] = set()  # the ids of notices that were made while no other host answered
        self._checking: asyncio.Task[None] | None = None

    def note_end_of_run(self, record: RunRecord) -> None:
        """Make a notice of a run that has ended."""
        if not record.is_part:
            self._notices.add(run_notice(self._cluster, to_record(result_event(record))), command=record.options.notify)

    def note_failed_tasks(self) -> None:
        """Make a notice of each task on this host that has failed for good since."""
        failed = {
            f"{task.spec.short}:{task.last_exit.time}": (task, task.last_exit.time)
            for task in self._supervisor.tasks.values()
            if task.machine.state is TaskState.FAILED and task.last_exit is not None
        }
        self._notices.discard_outdated("task", failed)
        for identity in self._notices.new_since_last_report("task", failed):
            task, failed_at = failed[identity]
            notice = task_notice(
                self._cluster, self._supervisor.host, task.spec.short, task.describe_problem(), failed_at
            )
            self._notices.add(notice)

    def schedule_check(self) -> None:
        """Start a check of all other hosts in the background, unless one is in progress."""
        topology = self._supervisor.topology
        is_wanted = topology is not None and topology.notify is not None and "host-away" in topology.notify.events
        if topology is None or not is_wanted or not topology.has_servers:
            self._silent_since.clear()
        elif self._checking is None or self._checking.done():
            self._checking = asyncio.ensure_future(self._check(topology))

    def stop(self) -> None:
        """Cancel a check in progress, which would write the file of notices again after the agent has removed it."""
        if self._checking is not None:
            self._checking.cancel()

    async def _check(self, topology: ClusterTopology) -> None:
        others = [host.name for host in topology.hosts if host.name != self._supervisor.host and topology.on(host.name)]
        answers = await asyncio.gather(*(self._is_reachable(topology.on(host)) for host in others))
        now = time.time()
        for host in self._silent_since.keys() - set(others):  # it has left the cluster
            del self._silent_since[host]
        for host, is_reachable in zip(others, answers, strict=True):
            if is_reachable:
                self._silent_since.pop(host, None)
            else:
                self._silent_since.setdefault(host, now)
        if any(answers):
            self._notices.withdraw(self._doubtful)
            self._doubtful.clear()
        unreachable = [host for host, since in self._silent_since.items() if now - since >= settings.HOST_AWAY_SECONDS]
        # A host without tasks is not probed, so it is never known to be unreachable.
        reporters = (host.name for host in topology.hosts if topology.on(host.name) and host.name not in unreachable)
        reporter = next(reporters, self._supervisor.host)
        # Hosts that do not report discard too: one of them reports the next time if the reporter is unreachable.
        self._notices.discard_outdated("host", self._silent_since)
        if reporter != self._supervisor.host:
            return
        for host in self._notices.new_since_last_report("host", unreachable):
            notice = host_notice(self._cluster, host, settings.HOST_AWAY_SECONDS, self._silent_since[host])
            self._notices.add(notice)
            if not any(answers):
                self._doubtful.add(notice["id"])

    async def _is_reachable(self, tasks: tuple[Task, ...]) -> bool:
        """Return whether a task answers, the host refuses a connection for it, or the prober gives no result."""
        results = await asyncio.gather(
            *(self._prober.probe(task.address, settings.RUN_REMOTE_PROBE_SECONDS) for task in tasks)
        )
        return any(result.outcome is not ProbeOutcome.SILENT or result.refused for result in results)
