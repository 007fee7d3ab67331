"""Reconnect and retry with back-off after a connection broke: a remote host's tasks and runs continue meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from tfcluster import settings
from tfcluster.client.parallel import StreamContext
from tfcluster.client.rpc import AgentClient, AgentDisconnectedError
from tfcluster.errors import ClusterError, ExitCode

T = TypeVar("T")


class ReconnectPolicy:
    """The policy by which a command repeats a request when the agent dies or the connection breaks.

    Args:
        connection: The host's agent.
        strand: The context of the stream; prints a message once when the host is lost and when it is back.
        agents: The number of agents in a row that may die without sending an event before that is an error. For a
            remote host they are not counted, because a broken connection looks the same.
        patience: The number of seconds for which a remote host that was lost is retried; None for no limit.
        insistent: Also retry if the host could not be reached in the first place.
    """

    def __init__(
        self,
        connection: AgentClient,
        strand: StreamContext,
        agents: int,
        *,
        patience: float | None = None,
        insistent: bool = True,
    ) -> None:
        self._connection = connection
        self._strand = strand
        self._agents = agents
        self._patience = patience
        self._insistent = insistent
        self._lost_agents = 0
        self._away_since: float | None = None
        self._pause = settings.RECONNECT_INITIAL_SECONDS

    def opened(self, open_answer: Callable[[], T]) -> T:
        """Call `open_answer` until the host can be reached.

        Args:
            open_answer: Sends the request.

        Returns:
            The value that `open_answer` returned.

        Raises:
            ClusterError: It failed for another reason, or a remote host could not be reached in time.
        """
        while True:
            try:
                answer = open_answer()
            except AgentDisconnectedError as error:
                self.lost(error)
                continue
            except ClusterError as error:
                is_away = self._connection.elsewhere and error.exit_code is ExitCode.UNREACHABLE
                if not (is_away and self._insistent and self._time_is_left()):
                    raise
                self._is_away(error.message)
                continue
            self._insistent = True
            if self._away_since is not None:
                self._away_since = None
                self._strand.tell(f"{self._strand.host}: connected again")
            return answer

    def heard(self) -> None:
        """Reset the count of dead agents and the back-off, as an event was received."""
        self._lost_agents = 0
        self._pause = settings.RECONNECT_INITIAL_SECONDS

    def lost(self, error: AgentDisconnectedError) -> None:
        """Handle a response that broke off: wait until it is time to retry.

        Args:
            error: The error by which the response ended.

        Raises:
            AgentDisconnectedError: The limit of agents or of time is exceeded.
        """
        self._lost_agents += 1
        if self._connection.elsewhere and self._time_is_left():
            self._is_away(f"{self._strand.host}: connection lost")
        elif self._connection.elsewhere or self._lost_agents >= self._agents:
            raise error
        else:
            self._strand.pause(settings.RECONNECT_INITIAL_SECONDS)

    def _is_away(self, why: str) -> None:
        if self._away_since is None:
            self._away_since = time.monotonic()
            self._strand.tell(f"{why}, trying again")
        self._strand.pause(self._pause)
        self._pause = min(2 * self._pause, settings.RECONNECT_MAX_SECONDS)

    def _time_is_left(self) -> bool:
        since = self._away_since
        return self._patience is None or since is None or time.monotonic() < since + self._patience
