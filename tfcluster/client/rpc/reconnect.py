"""Reconnect and retry with back-off when an agent dies or a connection breaks; tasks and runs continue meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Generic, TypeVar

from tfcluster import settings
from tfcluster.client.rpc.agent_client import AgentClient, AgentDisconnectedError, ResponseStream
from tfcluster.client.rpc.parallel import StreamContext
from tfcluster.errors import ClusterError, ExitCode

E = TypeVar("E")
R = TypeVar("R")
T = TypeVar("T")


@dataclass(frozen=True)
class RetryPolicy:
    """How often and for how long a request is repeated.

    `agents` is the number of agents in a row that may die without sending an event before that is an error. For a
    remote host they are not counted, because a broken connection looks the same.
    """

    agents: int
    timeout: float | None = None  # seconds for which a remote host that was lost is retried; None for no limit
    retry_initial: bool = True  # also retry if the host could not be reached in the first place


class Reconnector(Generic[E, R]):
    """Repeats a request to one host by a policy.

    The context prints a message once when the host is lost and when it is back. `stream` is the latest response that
    `events` has read; None if there was none.
    """

    def __init__(self, client: AgentClient, context: StreamContext, policy: RetryPolicy) -> None:
        self.stream: ResponseStream[E, R] | None = None
        self._client = client
        self._context = context
        self._policy = policy
        self._retry_initial = policy.retry_initial
        self._dead_agents = 0
        self._lost_since: float | None = None
        self._delay = settings.RECONNECT_INITIAL_SECONDS

    def events(
        self, open_stream: Callable[[], ResponseStream[E, R]], *, reap_agent: bool = False
    ) -> Generator[E | None, None, None]:
        """Send a request, and again whenever its response breaks off, until a response is complete.

        With `reap_agent`, wait for the exit of an agent that was started for this request only.

        Yields:
            Each event; None each time when the response has broken off.

        Raises:
            ClusterError: The request failed, or the limit of the policy is exceeded.
        """
        while True:
            stream = self.stream = self.connect(open_stream)
            try:
                for event in self._context.events(stream):
                    self._dead_agents, self._delay = 0, settings.RECONNECT_INITIAL_SECONDS
                    yield event
                return
            except AgentDisconnectedError as error:
                failure = error
            finally:
                if reap_agent:
                    stream.close_and_reap()
                else:
                    stream.close()
            self._wait_after(failure)
            yield None

    def connect(self, operation: Callable[[], T]) -> T:
        """Call an operation until the host can be reached and its agent responds.

        Raises:
            ClusterError: It failed for another reason, or the limit of the policy is exceeded.
        """
        while True:
            try:
                value = operation()
            except AgentDisconnectedError as error:
                self._wait_after(error)
                continue
            except ClusterError as error:
                is_lost = self._client.transport.is_remote and error.exit_code is ExitCode.UNREACHABLE
                if not (is_lost and self._retry_initial and self._has_time()):
                    raise
                self._back_off(error.message)
                continue
            self._retry_initial = True
            if self._lost_since is not None:
                self._lost_since = None
                self._context.on_connected()
            return value

    def _wait_after(self, error: AgentDisconnectedError) -> None:
        """Wait until it is time to retry after a disconnection; raise it if the limit of the policy is exceeded."""
        self._dead_agents += 1
        if self._client.transport.is_remote and self._has_time():
            self._back_off(f"{self._context.host}: connection lost")
        elif self._client.transport.is_remote or self._dead_agents >= self._policy.agents:
            raise error
        else:
            self._context.sleep(settings.RECONNECT_INITIAL_SECONDS)

    def _back_off(self, reason: str) -> None:
        if self._lost_since is None:
            self._lost_since = time.monotonic()
            self._context.on_lost(reason)
        self._context.sleep(self._delay)
        self._delay = min(2 * self._delay, settings.RECONNECT_MAX_SECONDS)

    def _has_time(self) -> bool:
        timeout, since = self._policy.timeout, self._lost_since
        return timeout is None or since is None or time.monotonic() < since + timeout
