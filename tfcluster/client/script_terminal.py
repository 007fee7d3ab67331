"""Pass on to a script what happens at the terminal of its command: Ctrl-Z, the return from it, and another size."""

from __future__ import annotations

import os
import signal

from tfcluster import settings
from tfcluster.client.caller import terminal_size
from tfcluster.client.cluster import Cluster
from tfcluster.client.parallel import map_hosts
from tfcluster.protocol.api.runs import TerminalChange, TerminalRequest


class ScriptTerminal:
    """The terminal of a command whose script runs in a session of its own, where no terminal's signals arrive.

    A script that has stopped does not take what the user then types into the shell.

    Args:
        cluster: The cluster, on whose leading host the script runs.
    """

    #: The signals that `on_signal` handles.
    SIGNALS = (signal.SIGTSTP, signal.SIGWINCH)

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._is_suspended = False
        self._size = terminal_size()

    def on_signal(self, number: int, run: str | None) -> None:
        """Note a signal; `handle` reacts to it. Without a script, or if `handle` is late, stop this process at once.

        Args:
            number: The signal.
            run: The id of the script's run; None if it is not known yet.
        """
        if number == signal.SIGTSTP:
            if run is None or self._is_suspended:
                os.kill(os.getpid(), signal.SIGSTOP)
            self._is_suspended = True

    def handle(self, run: str) -> None:
        """Pass on what has changed. If the user has typed Ctrl-Z, stop this process too, until it is continued.

        Args:
            run: The id of the script's run.
        """
        self._update_size(run)
        if self._is_suspended:
            self._send(run, TerminalChange.SUSPENDED)
            os.kill(os.getpid(), signal.SIGSTOP)
            self._is_suspended = False
            self._update_size(run)  # a process in the background gets no signal of it
            self._send(run, TerminalChange.RESUMED)

    def _update_size(self, run: str) -> None:
        size = terminal_size()
        if size != self._size:
            self._size = size
            self._send(run, TerminalChange.RESIZED)

    def _send(self, run: str, change: TerminalChange) -> None:
        """Send a change to the agent; one that cannot be reached is not waited for long, and no error."""
        request = TerminalRequest(run, change, *self._size)
        timeout = settings.TERMINAL_TIMEOUT_SECONDS
        map_hosts([self._cluster.head], lambda host: self._cluster.connect(host).call(request), timeout)
