"""One request to a cluster's agent: sent, and its answer read line by line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tfcluster.errors import ClusterError, ExitCode
from tfcluster.places import journal_path
from tfcluster.protocol.framing import Decoder, Message, encode
from tfcluster.protocol.messages import Call, Request
from tfcluster.transport import local

# A command can meet an agent that is about to end; then it needs the next one.
_ATTEMPTS = 5


class Connection:
    """A cluster's agents, for one command after another."""

    def __init__(self, cluster: str) -> None:
        self.cluster = cluster

    def call(self, call: Call, **arguments: Any) -> Message:
        """Carry a request out and return its reply; its events are passed over.

        Raises:
            ClusterError: What the agent says, or that it went away.
        """
        answer = Answer(self._open(), call, arguments)
        for _ in answer:
            continue
        return answer.reply

    def stream(self, call: Call, **arguments: Any) -> Answer:
        """Carry a request out and iterate over its events."""
        return Answer(self._open(), call, arguments)

    def start(self) -> None:
        """See to it that there is an agent.

        Raises:
            ClusterError: It could not be started.
        """
        agent = local.connect(self.cluster)
        if agent is None:
            local.start(self.cluster)
        else:
            agent.connection.close()

    def _open(self) -> local.Agent:
        """Connect; an agent that died while its cluster is up is replaced by one that goes on with it."""
        for _ in range(_ATTEMPTS):
            agent = local.connect(self.cluster)
            if agent is not None:
                return agent
            if not journal_path(self.cluster).exists():
                break
            local.start(self.cluster)
        raise not_running(self.cluster)


class Answer:
    """The answer to one request: iterate over its events, then take its reply."""

    def __init__(self, agent: local.Agent, call: Call, arguments: dict[str, Any]) -> None:
        self.reply: Message = {}
        self._agent = agent
        self._request = Request(call, arguments)

    def __iter__(self) -> Iterator[Message]:
        decoder = Decoder()
        connection = self._agent.connection
        with connection:
            connection.sendall(encode(self._request.to_message()))
            while data := connection.recv(1 << 16):
                for message in decoder.feed(data):
                    if "event" in message:
                        yield message["event"]
                    elif "error" in message:
                        raise ClusterError.from_json(message["error"])
                    else:
                        self.reply = message["reply"]
                        return
        raise ClusterError(
            "the agent went away before it answered",
            hint="`tfcluster status` starts another one, which finds the tasks.",
        )

    def wait_for_agent_end(self, timeout: float | None = None) -> None:
        """Return when the agent that answered has ended, or after `timeout` seconds."""
        self._agent.wait_for_end(timeout)


def not_running(cluster: str) -> ClusterError:
    """That there is no such cluster, or it is down."""
    return ClusterError(
        f"cluster {cluster!r} is not running",
        hint="Start it with `tfcluster up`, or choose another with -c NAME.",
        exit_code=ExitCode.NOT_RUNNING,
    )
