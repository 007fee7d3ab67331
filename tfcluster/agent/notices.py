"""Create notices (failed tasks, ended runs, unreachable hosts), and deliver them to a webhook or a command.

The queue is a file, so that the next agent delivers what this one could not. A notice is delivered at least once: an
agent that dies before it has recorded a delivery leaves the notice to its successor. The process that delivers one, by
HTTP or by a command, may be killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from tfcluster import settings
from tfcluster.agent.event_loop import BackgroundTasks, wait_for
from tfcluster.agent.runs.manager import result_event
from tfcluster.agent.runs.store import RunRecord
from tfcluster.agent.subprocesses import run_in_child
from tfcluster.agent.tasks.health import ProbeClient, ProbeOutcome
from tfcluster.agent.tasks.supervisor import TaskSupervisor
from tfcluster.core.notices import Notice, environment_of, host_notice, run_notice, task_notice
from tfcluster.core.run_events import to_record
from tfcluster.core.states import TaskState
from tfcluster.core.topology import ClusterTopology, Notify, Task
from tfcluster.errors import ClusterError
from tfcluster.os.daemonize import set_parent_death_signal
from tfcluster.os.files import write_atomically
from tfcluster.process_mark import MARK
from tfcluster.protocol.serialization import check_format, decode, to_stored

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
# The format of the queue, see `protocol.serialization`.
_FORMAT = 1


@dataclass(frozen=True)
class _Delivery:
    """A notice that waits to be delivered to one target."""

    notice: Notice
    command: str | None  # the command that gets it; None for the webhook of the spec
    failures: int = 0  # how often it could not be delivered
    due: float = 0.0  # Unix time of the next attempt in seconds

    @property
    def target(self) -> str:
        """What the log calls the target; a URL may hold a password."""
        return "the webhook" if self.command is None else f"the command {self.command!r}"


@dataclass
class _State:
    """What the file holds."""

    queue: list[_Delivery] = field(default_factory=list)  # the oldest first
    reported: set[str] = field(default_factory=set)  # what was notified and is still so: failed tasks, hosts away


class Notifier:
    """Delivers the notices of an agent; `path` is the file of the queue.

    The topology of the supervisor says where notifications are sent.
    """

    def __init__(self, title: str, path: Path, supervisor: TaskSupervisor) -> None:
        self._title = title
        self._path = path
        self._supervisor = supervisor
        self._state = _State()
        self._changed = asyncio.Event()

    def _notify(self) -> Notify | None:
        topology = self._supervisor.topology
        return None if topology is None else topology.notify

    def load(self) -> None:
        """Take over the queue of an earlier agent."""
        try:
            state = json.loads(self._path.read_bytes())
            check_format(state, _FORMAT)
            queue = decode(list[_Delivery], state["queue"], lenient=True)
            reported = set(decode(list[str], state["reported"]))
            self._state = _State([each for each in queue if {"id", "text"} <= each.notice.keys()], reported)
        except FileNotFoundError:
            return
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            aside = self._path.with_suffix(".unreadable")
            _logger.error("%s: notices that cannot be read are kept in %s: %s", self._path, aside.name, error)
            with contextlib.suppress(OSError):
                self._path.replace(aside)

    def add(self, notice: Notice, *, command: str | None = None) -> None:
        """Queue a notice for the targets of the spec, if they want notices of its kind, and for its run's command."""
        notify = self._notify()
        deliveries = [] if command is None else [_Delivery(notice, command)]
        if notify is not None and notice["event"] in notify.events:
            deliveries += [_Delivery(notice, None)] if notify.webhook is not None else []
            deliveries += [_Delivery(notice, notify.command)] if notify.command is not None else []
        if not deliveries:
            return
        queued = {(each.notice["id"], each.command) for each in self._state.queue}
        self._state.queue += [each for each in deliveries if (notice["id"], each.command) not in queued]
        for dropped in self._state.queue[: -settings.NOTICES_MAX]:
            _logger.error("too many notices: %r to %s is dropped", dropped.notice["text"], dropped.target)
        del self._state.queue[: -settings.NOTICES_MAX]
        self._save()

    def report(self, kind: str, notices: Mapping[str, Notice], ongoing: Collection[str]) -> None:
        """Add a notice of each incident that was not reported yet, and forget the incidents that are over.

        What an earlier agent has reported is not added again. A new incident is recorded after its notice was added.

        Args:
            kind: The kind of the incidents, with which their identities begin in the record.
            notices: The notices of the present incidents, by the identities of these.
            ongoing: The identities of the incidents that are not over, whether or not they are to be reported.
        """
        before, lasting = self._state.reported, {f"{kind}:{identity}" for identity in ongoing}
        kept = {each for each in before if each in lasting or not each.startswith(f"{kind}:")}
        for identity, notice in sorted(notices.items()):
            if f"{kind}:{identity}" not in kept:
                self.add(notice)
        self._state.reported = kept | {f"{kind}:{identity}" for identity in notices}
        if self._state.reported != before:
            self._save()

    async def run(self) -> None:
        """Deliver notices until cancelled, one at a time."""
        while True:
            self._changed.clear()
            delivery = min(self._state.queue, key=lambda each: each.due, default=None)
            delay = None if delivery is None else delivery.due - time.time()
            if delivery is None or (delay is not None and delay > 0):
                with contextlib.suppress(asyncio.TimeoutError):
                    await wait_for(self._changed.wait(), delay)
                continue
            try:
                error = await self._deliver(delivery)
            except Exception as problem:
                _logger.exception("a notice could not be delivered")
                error = type(problem).__name__
            self._finish(delivery, error)

    async def flush(self, timeout: float) -> None:
        """Wait until each notice was delivered, or has failed to be, or the time is over; then drop the others."""
        deadline = time.monotonic() + timeout
        while any(not each.failures for each in self._state.queue) and time.monotonic() < deadline:
            await asyncio.sleep(settings.PROCESS_EXIT_POLL_SECONDS)
        for each in self._state.queue:
            _logger.error("the cluster is down: %r was not delivered to %s", each.notice["text"], each.target)
        self._state = _State()
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)

    async def _deliver(self, delivery: _Delivery) -> str | None:
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
        return problem

    def _finish(self, delivery: _Delivery, error: str | None) -> None:
        """Remove a notice from the queue that was delivered, or put off the next attempt."""
        queue, text = self._state.queue, delivery.notice["text"]
        if delivery not in queue:  # the cluster is down
            return
        position = queue.index(delivery)
        if error is None:
            _logger.info("notified %s: %s", delivery.target, text)
        elif delivery.failures == len(settings.NOTICE_BACKOFF_SECONDS):
            _logger.error("could not notify %s of %r, giving up: %s", delivery.target, text, error)
        else:
            wait = settings.NOTICE_BACKOFF_SECONDS[delivery.failures]
            _logger.warning("could not notify %s of %r, retrying in %g s: %s", delivery.target, text, wait, error)
            queue[position] = replace(delivery, failures=delivery.failures + 1, due=time.time() + wait)
            self._save()
            return
        del queue[position]
        self._save()

    def _save(self) -> None:
        """Write the file; without it, notices are delivered as long as this agent lives."""
        self._changed.set()
        state = to_stored(self._state, _FORMAT)
        with contextlib.suppress(OSError):
            write_atomically(self._path, json.dumps(state).encode())


class IncidentMonitor:
    """Creates notices of incidents on this host, and of the hosts that it watches (`hosts_watched_by`).

    A host is unreachable if its first task does not answer, nor the host refuse the connection, for some time. Tasks
    are probed only if the spec asks for such notices.
    """

    def __init__(self, cluster: str, supervisor: TaskSupervisor, prober: ProbeClient, notices: Notifier) -> None:
        self._cluster = cluster
        self._supervisor = supervisor
        self._prober = prober
        self._notices = notices
        self._silent_since: dict[str, float] = {}
        self._checks = BackgroundTasks()

    def note_end_of_run(self, record: RunRecord) -> None:
        """Make a notice of a run that has ended."""
        if not record.is_part:
            self._notices.add(run_notice(self._cluster, to_record(result_event(record))), command=record.options.notify)

    def note_failed_tasks(self) -> None:
        """Make a notice of each task on this host that has failed for good since."""
        host = self._supervisor.host
        notices = {
            f"{task.spec.short}:{task.last_exit.time}": task_notice(
                self._cluster, host, task.spec.short, task.describe_problem(), task.last_exit.time
            )
            for task in self._supervisor.tasks.values()
            if task.machine.state is TaskState.FAILED and task.last_exit is not None
        }
        self._notices.report("task", notices, ongoing=notices)

    def schedule_check(self) -> None:
        """Start a check of the watched hosts in the background, unless one is in progress."""
        topology = self._supervisor.topology
        is_wanted = topology is not None and topology.notify is not None and "host-away" in topology.notify.events
        if topology is None or not is_wanted or not topology.has_servers:
            self._silent_since.clear()
        else:
            hosts = hosts_watched_by(self._supervisor.host, topology)
            self._checks.start(self._check, {host: topology.on(host)[0] for host in hosts}, key="hosts")

    def stop(self) -> None:
        """Cancel a check in progress, which would write the file of notices again after the agent has removed it."""
        for checking in self._checks.tasks.values():
            checking.cancel()

    async def _check(self, tasks: Mapping[str, Task]) -> None:
        """Probe one task of each watched host, and report the hosts that have been silent for too long."""
        probes = (self._prober.probe(task.address, settings.RUN_REMOTE_PROBE_SECONDS) for task in tasks.values())
        results = dict(zip(tasks, await asyncio.gather(*probes), strict=True))
        now = time.time()
        self._silent_since = {
            host: self._silent_since.get(host, now)
            for host, result in results.items()
            if result.outcome is ProbeOutcome.SILENT and not result.refused
        }
        notices = {
            host: host_notice(self._cluster, host, settings.HOST_AWAY_SECONDS, since, results[host].reason)
            for host, since in self._silent_since.items()
            if now - since >= settings.HOST_AWAY_SECONDS
        }
        self._notices.report("host", notices, ongoing=self._silent_since)


def hosts_watched_by(host: str, topology: ClusterTopology) -> Sequence[str]:
    """Return the hosts with tasks that a host watches.

    The head task's host watches all others, and the next host of the spec watches only that one.
    """
    leading = topology.head().host
    hosts = sorted((each.name for each in topology.hosts if topology.on(each.name)), key=lambda name: name != leading)
    return dict(zip(hosts, (hosts[1:], hosts[:1]), strict=False)).get(host, ())
