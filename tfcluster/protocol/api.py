"""The RPC methods that an agent serves, and the kinds of line in its response.

A connection carries one request, which a file upload may follow (see Request.has_upload). The agent responds with any
number of `event` lines and one final line, which is either a `reply` or an `error`. The field `ends` of the final line
says whether the agent has nothing left to do and exits now.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from tfcluster.errors import ClusterError
from tfcluster.protocol.codec import Message

#: The protocol version. It changes whenever an older command line could misunderstand a newer agent, or vice versa.
VERSION = 2


class Method(str, Enum):
    """The RPC methods that an agent serves. An agent reports tasks, ports and GPUs of its own host only."""

    # {settled: wait until no plan is being executed} -> the complete ClusterTopology that is up, including all secrets
    TOPOLOGY = "topology"
    # Preflight of the host: {topology, dry} -> {tensorflow, choices: the allocated ports and GPUs, found: an
    # ObservedState, problems: [each as ClusterError.to_json has it], accounts: the OtherAccounts that can connect to
    # its servers}.
    PREPARE = "prepare"
    # The connectivity check that follows in a cluster of several hosts: each host connects to the ports of the others,
    # on which no server listens yet.
    LISTEN = "listen"  # event: {ports: those on which the agent accepts connections until the command disconnects}
    REACH = "reach"  # connect to other hosts: {addresses, timeout: in seconds} -> {failures: {address: the cause}}
    # Execute a plan: {wanted, base: the topology that PREPARE observed on this host, topology, lost: the accepted
    # losses, or null to accept any, ends: the tasks on any host whose processes the plan terminates}; events: a
    # ClusterStatus at each change -> {topology: the one that is up now}
    APPLY = "apply"
    WATCH = "watch"  # {timeout: in seconds}; events: a ClusterStatus at each change
    STATUS = "status"  # -> ClusterStatus
    DEVICES = "devices"  # -> {devices: [each as `devices -o json` has it], silent: [why a task reported no devices]}
    RESTART = "restart"  # stop tasks and start them again: {tasks, grace: in seconds} -> {}
    DOWN = "down"  # stop everything: {grace: in seconds}; events: ClusterStatus -> {} or {warning}
    # LOGS and EVENTS respond with an event {after: {log: position}}, then with events {log, next, line}. The argument
    # `after` resumes the stream after such positions.
    LOGS = "logs"  # {tasks, lines, since, follow, after}; line: {task, time, line}
    EVENTS = "events"  # {lines, since, follow, after}; line: {time, event, task, detail}
    # Sent to the host of the head task: {program, parameters, patterns, gpus, strict, timeout: in seconds,
    # log_placement, detach, owned: the run is cancelled when the command disconnects, sent: the name of an uploaded
    # file}; events: those of the run
    RUN = "run"
    RUNS = "runs"  # {lines} -> {runs: [{run, program, parameters, state, seconds, started, result, error}]}
    # {run, events: how many events to skip, output: how many lines of output to skip, owned: as for RUN}; events: those
    # of the run
    ATTACH = "attach"
    CANCEL = "cancel"  # {run} -> {run}


@dataclass(frozen=True)
class Request:
    """One request: the RPC method and its arguments."""

    call: Method
    arguments: dict[str, Any]

    @property
    def has_upload(self) -> bool:
        """Return whether a file upload follows; the argument `sent` is the name of the file.

        The command sends the file in chunks after it has received the first event of the response.
        """
        return self.call is Method.RUN and self.arguments.get("sent") is not None

    def to_message(self) -> Message:
        """Return the request as a message."""
        return {"version": VERSION, "call": self.call.value, "arguments": self.arguments}

    @classmethod
    def from_message(cls, message: Message) -> Request:
        """Return the request that `to_message` encoded.

        Raises:
            ClusterError: The peer uses another version of the protocol, the method is unknown, or the message is
                malformed.
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
            # The error shows no more of the message, because topologies contain secrets.
            raise ClusterError(f"not a request: {message.get('call')!r:.200}") from error


def event(value: Message) -> Message:
    """Return a line with one event."""
    return {"event": value}


def reply(value: Message) -> Message:
    """Return the final line of the response to a request that succeeded."""
    return {"reply": value}


def error(problem: ClusterError) -> Message:
    """Return the final line of the response to a request that failed."""
    return {"error": problem.to_json()}
