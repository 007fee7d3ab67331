"""Asking again where a connection broke: a host elsewhere may be away for a while, and what it does goes on."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from tfcluster.client.parallel import StreamContext
from tfcluster.client.rpc import AgentClient, AgentDisconnectedError
from tfcluster.errors import ClusterError, ExitCode

T = TypeVar("T")

_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 3.0


class ReconnectPolicy:
    """One answer after another to the same request, across agents and connections that break.

    Args:
        connection: The host's agents.
        strand: Says on standard error when the host is lost, once, and when it is back.
        agents: So many agents may die one after the other, without an event from any, before it is an error; of a
            host elsewhere nobody counts them, as a link that breaks looks the same.
        patience: For so many seconds a host elsewhere that was lost is tried again; None for as long as it takes.
        insistent: So it is too where it could not be reached in the first place.
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
        self._pause = _FIRST_PAUSE

    def opened(self, open_answer: Callable[[], T]) -> T:
        """What `open_answer` gives, as soon as the host can be reached.

        Raises:
            ClusterError: It failed for another reason, or the host, if elsewhere, stayed away for too long.
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
        """Something has come: what was lost before is forgotten."""
        self._lost_agents = 0
        self._pause = _FIRST_PAUSE

    def lost(self, error: AgentDisconnectedError) -> None:
        """An answer broke off; returns when it is time to ask again.

        Raises:
            AgentGoneError: There is no point in asking again.
        """
        self._lost_agents += 1
        if self._connection.elsewhere and self._time_is_left():
            self._is_away(f"{self._strand.host}: connection lost")
        elif self._connection.elsewhere or self._lost_agents >= self._agents:
            raise error
        else:
            self._strand.pause(_FIRST_PAUSE)

    def _is_away(self, why: str) -> None:
        if self._away_since is None:
            self._away_since = time.monotonic()
            self._strand.tell(f"{why}, trying again")
        self._strand.pause(self._pause)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)

    def _time_is_left(self) -> bool:
        since = self._away_since
        return self._patience is None or since is None or time.monotonic() < since + self._patience
