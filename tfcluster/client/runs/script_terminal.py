"""Pass on to a script what its command receives: Ctrl-Z, `fg`, a new size of the window, SIGUSR1 and SIGUSR2."""

from __future__ import annotations

import os
import signal

from tfcluster import settings
from tfcluster.client.cluster import Cluster
from tfcluster.client.rpc.parallel import map_hosts
from tfcluster.client.runs.caller import terminal_size
from tfcluster.protocol.api.runs import ScriptSignal, SignalRequest


class ScriptTerminal:
    """The terminal of a command whose script runs in a session of its own, where no terminal's signals arrive.

    A script that has stopped does not take what the user then types into the shell.
    """

    #: The signals that `on_signal` handles.
    SIGNALS = (signal.SIGTSTP, signal.SIGWINCH, signal.SIGUSR1, signal.SIGUSR2)

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._is_suspended = False
        self._size = terminal_size()
        self._received: list[ScriptSignal] = []

    def on_signal(self, number: int, run: str | None) -> None:
        """Note a signal; `handle` reacts to it. Without a script, or if `handle` is late, stop this process at once.

        `run` is None while it is not known.
        """
        if number == signal.SIGTSTP:
            if run is None or self._is_suspended:
                os.kill(os.getpid(), signal.SIGSTOP)
            self._is_suspended = True
        elif number != signal.SIGWINCH:
            self._received.append(ScriptSignal(signal.Signals(number).name))

    def handle(self, run: str) -> None:
        """Pass on what has been received.

        If the user has typed Ctrl-Z, stop this process too, until it is continued.
        """
        self._update_size(run)
        while self._received:
            self._send(run, self._received.pop(0))
        if self._is_suspended:
            self._send(run, ScriptSignal.TSTP)
            os.kill(os.getpid(), signal.SIGSTOP)
            self._is_suspended = False
            self._update_size(run)  # a process in the background gets no signal of it
            self._send(run, ScriptSignal.CONT)

    def _update_size(self, run: str) -> None:
        size = terminal_size()
        if size != self._size:
            self._size = size
            self._send(run, ScriptSignal.WINCH)

    def _send(self, run: str, number: ScriptSignal) -> None:
        """Send a signal to the agent; one that cannot be reached is not waited for long, and no error."""
        request = SignalRequest(run, number, *self._size)
        timeout = settings.SIGNAL_TIMEOUT_SECONDS
        map_hosts([self._cluster.head], lambda host: self._cluster.connect(host).call(request), timeout)
