"""What the command line asks of an agent, and the kinds of line that an agent answers with.

A connection carries one request, behind which a file may follow (see Request.sends_file). The agent answers with any
number of `event` lines and one last line that is either a `reply` or an `error`; that says in `ends` whether the
agent has nothing left to do and ends now.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from tfcluster.errors import ClusterError
from tfcluster.protocol.codec import Message

#: Changes whenever an older command line could misunderstand a newer agent, or the other way round.
VERSION = 2


class Method(str, Enum):
    """The requests that an agent serves. What it tells of tasks, ports and GPUs is of its own host only."""

    # {settled: after a change} -> the whole ClusterTopology of what is up, with all that is secret in it
    TOPOLOGY = "topology"
    # Examine the host: {topology, dry} -> {tensorflow, choices, found: an ObservedState, problems: [each as an error is
    # told], accounts: the OtherAccounts that can connect to its servers}.
    PREPARE = "prepare"
    # Next, in a cluster of several hosts: can they dial each other's ports, on which no server listens yet?
    LISTEN = "listen"  # event: {ports: on which the agent lets connections come until the command hangs up}
    REACH = "reach"  # dial others: {addresses, timeout} -> {failures: {address: why}}
    # Carry a plan out: {wanted, base: the topology that PREPARE found on this host, topology, lost, ends: the tasks
    # whose processes it ends on any host}; events: a ClusterStatus at each change -> {topology: the one that is up now}
    APPLY = "apply"
    WATCH = "watch"  # {timeout}; events: a ClusterStatus at each change
    STATUS = "status"  # -> ClusterStatus
    DEVICES = "devices"  # -> {devices: [each as `devices -o json` has it], silent: [why a task gave none]}
    RESTART = "restart"  # end tasks and start them anew: {tasks, grace} -> {}
    DOWN = "down"  # stop everything: {grace}; events: ClusterStatus -> {} or {warning}
    # Of both: events {after: {log: position}}, and then {log, next, line}; `after` asks to go on behind such positions.
    LOGS = "logs"  # {tasks, lines, since, follow, after}; line: {task, time, line}
    EVENTS = "events"  # {lines, since, follow, after}; line: {time, event, task, detail}
    # Asked on the head's host: {program, parameters, patterns, gpus, strict, timeout, log_placement, detach, owned,
    # sent}; events: those of the run
    RUN = "run"
    RUNS = "runs"  # {lines} -> {runs: [{run, program, parameters, state, seconds, started, result, error}]}
    ATTACH = "attach"  # {run, events, output: how many to leave out, owned}; events: those of the run
    CANCEL = "cancel"  # {run} -> {run}


@dataclass(frozen=True)
class Request:
    """One request: the call and its arguments."""

    call: Method
    arguments: dict[str, Any]

    @property
    def has_upload(self) -> bool:
        """Whether a file follows, in blocks, once the first event of the answer has come: `sent` is its name."""
        return self.call is Method.RUN and self.arguments.get("sent") is not None

    def to_message(self) -> Message:
        """The request as a message."""
        return {"version": VERSION, "call": self.call.value, "arguments": self.arguments}

    @classmethod
    def from_message(cls, message: Message) -> Request:
        """The request that `to_message` described.

        Raises:
            ClusterError: The other side speaks another version, or the call is unknown.
        """
        version = message.get("version")
        if version != VERSION:
            raise ClusterError(
                f"the agent speaks version {VERSION} of the protocol, this command version {version}",
                hint="The cluster was started by another version of tfcluster: use that one to take it down.",
            )
        try:
            return cls(Method(message["call"]), {**message["arguments"]})
        except (KeyError, ValueError, TypeError) as error:
            # Not more of it: there are secrets in topologies.
            raise ClusterError(f"not a request: {message.get('call')!r:.200}") from error


def event(value: Message) -> Message:
    """A line with one event."""
    return {"event": value}


def reply(value: Message) -> Message:
    """The last line of a request that was carried out."""
    return {"reply": value}


def error(problem: ClusterError) -> Message:
    """The last line of a request that failed."""
    return {"error": problem.to_json()}
