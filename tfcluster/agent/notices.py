"""Deliver notices to a webhook or a command, with retries.

The queue is a file, so that the next agent delivers what this one could not. A notice is delivered at least once: an
agent that dies before it has recorded a delivery leaves the notice to its successor.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from tfcluster import settings
from tfcluster.agent.subprocesses import run_in_child
from tfcluster.agent.timeout import wait_for
from tfcluster.core.notices import Notice
from tfcluster.core.topology import ClusterTopology, Notify
from tfcluster.os.atomic_file import write_atomically
from tfcluster.processes.notice_sender import post, run_command
from tfcluster.protocol.codec import Message
from tfcluster.protocol.serialization import decode
from tfcluster.protocol.stored import check_format, to_stored

_logger = logging.getLogger(__name__)
# The format of the queue, see `protocol.stored`.
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

    `topology` returns the topology, which says where notifications are sent; None if there is no cluster.
    """

    def __init__(self, title: str, path: Path, topology: Callable[[], ClusterTopology | None]) -> None:
        self._title = title
        self._path = path
        self._topology = topology
        self._state = _State()
        self._changed = asyncio.Event()

    def _notify(self) -> Notify | None:
        topology = self._topology()
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

    def withdraw(self, identities: Collection[str]) -> None:
        """Drop the notices with some ids as far as they were not accepted yet."""
        withdrawn = [each for each in self._state.queue if each.notice["id"] in identities]
        for each in withdrawn:
            _logger.info("a notice to %s is withdrawn: %s", each.target, each.notice["text"])
        if withdrawn:
            self._state.queue = [each for each in self._state.queue if each not in withdrawn]
            self._save()

    def new_since_last_report(self, kind: str, present: Collection[str]) -> Iterator[str]:
        """Yield what has come since the last call, such as tasks that have failed, and record it as reported.

        What an earlier agent has reported is not yielded again. The new identities are recorded when all were yielded.

        Args:
            kind: What it is, with which each of the identities begins in the record.
            present: The identities of what is so now.
        """
        added = {f"{kind}:{identity}" for identity in present} - self._state.reported
        for identity in sorted(added):
            yield identity.removeprefix(f"{kind}:")
        if added:
            self._state.reported |= added
            self._save()

    def discard_outdated(self, kind: str, present: Collection[str]) -> None:
        """Discard what was reported and is not so any more; the arguments are those of `new_since_last_report`."""
        kept = {f"{kind}:{identity}" for identity in present}
        outdated = {each for each in self._state.reported if each.startswith(f"{kind}:")} - kept
        if outdated:
            self._state.reported -= outdated
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
            return "the spec has no webhook any more, or its URL was lost with the machine's memory"

        def send() -> Message:
            if delivery.command is not None:
                return {"error": run_command(delivery.command, delivery.notice)}
            return {"error": post(url or "", delivery.notice)}

        try:
            # The child ends by itself before.
            reply = await run_in_child(self._title, send, 2 * settings.NOTICE_SECONDS)
        except OSError as error:
            return f"no process could be started: {error.strerror}"
        return "its process was killed" if reply is None else reply["error"]

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
