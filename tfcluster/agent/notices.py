"""Create notices (failed tasks, ended runs, unreachable hosts), and deliver them to a webhook or a command.

Notices are in memory: if an agent dies, those that it has not delivered are lost. The process that delivers one, by
HTTP or by a command, may be killed.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tfcluster import settings
from tfcluster.agent.event_loop import BackgroundTasks
from tfcluster.agent.runs.manager import result_event
from tfcluster.agent.runs.store import RunRecord
from tfcluster.agent.state.journal import Record
from tfcluster.agent.subprocesses import run_in_child
from tfcluster.agent.tasks.health import ProbeClient, ProbeOutcome
from tfcluster.agent.tasks.supervisor import TaskSupervisor
from tfcluster.core.notices import Notice, environment_of, host_notice, run_notice, task_notice
from tfcluster.core.run_events import to_record
from tfcluster.core.states import TaskState
from tfcluster.core.topology import Notify, Task
from tfcluster.errors import ClusterError
from tfcluster.os.daemonize import set_parent_death_signal
from tfcluster.process_mark import MARK

# The exit code of timeout(1) when the time is over.
_TIMED_OUT = 124


def post(url: str, notice: Notice) -> str | None:
    """Send a notice to a webhook.

    Return why it was not accepted; None if it was. The URL is in no message.
    """
    import urllib.error
    import urllib.request

    class NoRedirect(urllib.request.HTTPRedirectHandler):
        """Follows no redirection, after which the notice would be missing."""

        def redirect_request(self, *arguments: object) -> None:
            """Refuse it, which raises an HTTPError."""

    data = json.dumps(notice).encode()
    headers = {"Content-Type": "application/json", "User-Agent": "tfcluster"}
    try:
        request = urllib.request.Request(url, data, headers)
        with urllib.request.build_opener(NoRedirect).open(request, timeout=settings.NOTICE_SECONDS):
            return None
    except urllib.error.HTTPError as error:
        return f"HTTP status {error.code}"
    except urllib.error.URLError as error:
        return str(error.reason)
    except Exception as error:  # such as a URL that http.client refuses, which its message contains
        return type(error).__name__


def run_notice_command(command: str, notice: Notice) -> str | None:
    """Run a command with a notice: as JSON on its standard input, and as environment variables.

    Return why it failed; None if it succeeded.
    """
    home = Path(os.path.expanduser("~"))  # unchanged for an account that has none
    environment = {**os.environ, **environment_of(notice)}
    environment.pop(MARK, None)  # what the command leaves behind does not belong to the cluster
    limit = settings.NOTICE_SECONDS
    with tempfile.TemporaryFile() as output:  # no pipe, which a process that the command leaves behind would hold open
        # If this process is killed, `timeout` gets SIGTERM, and ends the command with all that it has started.
        process = subprocess.Popen(
            ["timeout", "-k", "1", f"{limit:g}", "/bin/sh", "-c", command],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=home if home.is_dir() else "/",
            preexec_fn=partial(set_parent_death_signal, os.getpid(), signal.SIGTERM),
        )
        process.communicate(json.dumps(notice).encode() + b"\n")
        if process.returncode == 0:
            return None
        output.seek(0)
        lines = output.read(settings.IO_BLOCK_BYTES).decode(errors="replace").strip().splitlines()
    if process.returncode in (_TIMED_OUT, -signal.SIGKILL):
        return f"it did not end within {limit:g} s"
    ended = f"exit code {process.returncode}"
    return f"{ended}: {lines[-1]}" if lines else ended


_logger = logging.getLogger(__name__)


@dataclass(eq=False)
class _Delivery:
    """A notice on its way to one target."""

    notice: Notice
    command: str | None  # the command that gets it; None for the webhook of the spec
    failures: int = 0  # how often it could not be delivered

    @property
    def target(self) -> str:
        """What the log calls the target; a URL may hold a password."""
        return "the webhook" if self.command is None else f"the command {self.command!r}"


class Notifier:
    """Delivers the notices of an agent: to each target one after the other, and no target waits for another one.

    The topology of the supervisor says where notifications are sent.
    """

    def __init__(self, title: str, supervisor: TaskSupervisor) -> None:
        self._title = title
        self._supervisor = supervisor
        # By target; the first of each is being delivered. A target has a queue exactly as long as a task delivers it.
        self._queues: dict[str | None, list[_Delivery]] = {}
        self._background = BackgroundTasks()

    @property
    def waiting(self) -> list[_Delivery]:
        """The notices that were neither delivered nor dropped."""
        return list(itertools.chain.from_iterable(self._queues.values()))

    def _notify(self) -> Notify | None:
        topology = self._supervisor.topology
        return None if topology is None else topology.notify

    def add(self, notice: Notice, *, command: str | None = None) -> None:
        """Send a notice to the targets of the spec, if they want notices of its kind, and to its run's command."""
        notify = self._notify()
        if command is not None:
            self._queue(_Delivery(notice, command))
        if notify is not None and notice["event"] in notify.events:
            if notify.webhook is not None:
                self._queue(_Delivery(notice, None))
            if notify.command is not None:
                self._queue(_Delivery(notice, notify.command))

    def _queue(self, delivery: _Delivery) -> None:
        queue = self._queues.get(delivery.command)
        if queue is None:
            queue = self._queues[delivery.command] = []
            self._background.start(self._deliver_all, delivery.command, queue)
        queue.append(delivery)
        if len(queue) > settings.NOTICES_MAX:
            dropped = queue.pop(1)
            _logger.error("too many notices: %r to %s is dropped", dropped.notice["text"], dropped.target)

    async def flush(self, timeout: float) -> None:
        """Wait until all notices were delivered, or have failed to be, or the time is over; then drop the others.

        Those that wait for another attempt of one that has failed are dropped at once.
        """
        deadline = time.monotonic() + timeout
        while any(not queue[0].failures for queue in self._queues.values()) and time.monotonic() < deadline:
            await asyncio.sleep(settings.PROCESS_EXIT_POLL_SECONDS)
        for each in self.waiting:
            _logger.error("the cluster is down: %r was not delivered to %s", each.notice["text"], each.target)
        self._queues.clear()
        for delivering in self._background.tasks.values():
            delivering.cancel()

    async def _deliver_all(self, target: str | None, queue: list[_Delivery]) -> None:
        """Deliver the notices of a target, the oldest first, until none is left."""
        while queue:
            await self._deliver(queue[0])
            queue.pop(0)
        del self._queues[target]

    async def _deliver(self, delivery: _Delivery) -> None:
        """Deliver a notice; if that fails, try again after a while, and give up after the last attempt."""
        text, waits = delivery.notice["text"], settings.NOTICE_RETRY_SECONDS
        while (error := await self._attempt(delivery)) is not None:
            if delivery.failures == len(waits):
                _logger.error("could not notify %s of %r, giving up: %s", delivery.target, text, error)
                return
            wait = waits[delivery.failures]
            _logger.warning("could not notify %s of %r, retrying in %g s: %s", delivery.target, text, wait, error)
            delivery.failures += 1
            await asyncio.sleep(wait)
        _logger.info("notified %s: %s", delivery.target, text)

    async def _attempt(self, delivery: _Delivery) -> str | None:
        """Deliver a notice in a child process; return why that failed, or None."""
        notify = self._notify()
        url = None if notify is None else notify.webhook
        if delivery.command is None and url is None:
            return "the spec no longer has a webhook, or its URL was lost in a reboot"

        def send() -> str | None:
            if delivery.command is not None:
                return run_notice_command(delivery.command, delivery.notice)
            return post(url or "", delivery.notice)

        try:
            # The child ends by itself before.
            problem: str | None = await run_in_child(self._title, send, 2 * settings.NOTICE_SECONDS)
        except ClusterError as error:
            return error.message
        except Exception as error:  # the target's other notices are still delivered
            _logger.exception("a notice could not be delivered")
            return type(error).__name__
        return problem


class IncidentMonitor:
    """Creates notices of incidents on this host and, on the head task's host, of the other hosts.

    A host is unreachable if its first task does not answer, nor the host refuse the connection, for some time. Tasks
    are probed only if the spec asks for such notices.
    """

    def __init__(self, cluster: str, supervisor: TaskSupervisor, prober: ProbeClient, notices: Notifier) -> None:
        self._cluster = cluster
        self._supervisor = supervisor
        self._prober = prober
        self._notices = notices
        self._failed: frozenset[tuple[str, float]] = frozenset()  # the failures of tasks that are known
        self._silent_since: dict[str, float] = {}
        self._reported: set[str] = set()  # the hosts that are reported as unreachable, and still are
        self._checks = BackgroundTasks()

    def note_end_of_run(self, record: RunRecord) -> None:
        """Make a notice of a run that has ended."""
        if not record.is_part:
            self._notices.add(run_notice(self._cluster, to_record(result_event(record))), command=record.options.notify)

    def adopt(self, record: Record) -> None:
        """Make no notice of the tasks that had failed by an earlier agent's journal; that agent has made them."""
        failed = {name for name, task in record.tasks.items() if task.state is TaskState.FAILED}
        self._failed = frozenset(each for each in self._failures() if each[0] in failed)

    def note_failed_tasks(self) -> None:
        """Make a notice of each task on this host that has failed for good since."""
        failures = self._failures()
        for identity in sorted(failures.keys() - self._failed):
            self._notices.add(failures[identity])
        self._failed = frozenset(failures)

    def _failures(self) -> dict[tuple[str, float], Notice]:
        """Return the notices of the tasks that have failed, by the task's name and the time of its exit."""
        host = self._supervisor.host
        return {
            (name, task.last_exit.time): task_notice(
                self._cluster, host, task.spec.short, task.describe_problem(), task.last_exit.time
            )
            for name, task in self._supervisor.tasks.items()
            if task.machine.state is TaskState.FAILED and task.last_exit is not None
        }

    def schedule_check(self) -> None:
        """Start a check of the other hosts in the background, unless one is in progress."""
        topology, own = self._supervisor.topology, self._supervisor.host
        is_wanted = topology is not None and topology.notify is not None and "host-away" in topology.notify.events
        if topology is None or not is_wanted or not topology.has_servers or topology.head().host != own:
            self._silent_since.clear()
            self._reported.clear()
            return
        others = [host.name for host in topology.hosts if host.name != own and topology.on(host.name)]
        self._checks.start(self._check, {host: topology.on(host)[0] for host in others}, key="hosts")

    async def _check(self, tasks: Mapping[str, Task]) -> None:
        """Probe one task of each other host, and report the hosts that have been silent for too long."""
        probes = (self._prober.probe(task.address, settings.RUN_REMOTE_PROBE_SECONDS) for task in tasks.values())
        results = dict(zip(tasks, await asyncio.gather(*probes), strict=True))
        now = time.time()
        self._silent_since = {host: since for host, since in self._silent_since.items() if host in tasks}
        self._reported &= tasks.keys()
        for host, result in results.items():
            if result.outcome is ProbeOutcome.SILENT and not result.refused:
                since = self._silent_since.setdefault(host, now)
                if now - since >= settings.HOST_AWAY_SECONDS and host not in self._reported:
                    self._reported.add(host)
                    seconds = settings.HOST_AWAY_SECONDS
                    self._notices.add(host_notice(self._cluster, host, seconds, since, result.reason))
            elif result.outcome is not ProbeOutcome.UNKNOWN:  # which says nothing of the host
                self._silent_since.pop(host, None)
                if host in self._reported:
                    self._reported.remove(host)
                    _logger.info("host %s answers again", host)
