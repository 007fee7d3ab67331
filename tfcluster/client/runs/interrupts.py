"""Handle the signals of a command that follows a run: they cancel the run, or are passed on to its script."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from tfcluster import settings
from tfcluster.client.cluster import Cluster
from tfcluster.client.rpc.parallel import StreamContext, call_hosts
from tfcluster.core.run_events import InterruptEvent, MemberEvent
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.protocol.api.runs import CancelRequest, ScriptSignal, SignalRequest
from tfcluster.transport.channel import readable_fds


def terminal_size() -> os.terminal_size:
    """Return the size of the terminal that this process writes to; if there is none, what COLUMNS and LINES say."""
    for fd in (1, 2):
        if os.isatty(fd):
            return os.get_terminal_size(fd)
    return shutil.get_terminal_size()


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
        call_hosts(self._cluster, [self._cluster.head], request, settings.SIGNAL_TIMEOUT_SECONDS)


class GracefulInterrupt:
    """A context manager whose first SIGINT, SIGTERM or SIGHUP cancels a run while its events are still being read.

    SIGINT interrupts a script, which may continue. Several in a row cancel its run, and so does one that follows an
    interrupt which Python does not handle in time.

    A signal after that ends the reading too. The handler of the first one raises no exception, because an exception
    from a signal handler can occur anywhere, also between receiving an event and showing it. It only makes `fileno`
    readable; the code that waits for the run calls `handle` then. While there is no run to cancel (`run` is None until
    its id is known), the first signal ends the reading.

    With `is_script`, Ctrl-C interrupts the run before it is cancelled. The terminal passes other signals on to a
    script; None for another program.
    """

    def __init__(self, cluster: Cluster, terminal: ScriptTerminal | None = None, *, is_script: bool = False) -> None:
        self.run: str | None = None
        self._cluster = cluster
        self._terminal = terminal
        self._is_script = is_script
        self._is_requested = False  # whether the run was to be cancelled
        self._received: int | None = None
        self._is_cancelled = False
        # For each signal that `handle` has to react to, whether it interrupts a script rather than cancelling the run.
        self._due: list[bool] = []
        self._interrupts: list[float] = []  # when those in a row were received, in monotonic seconds
        self._late: set[str] = set()  # the members, by task, in which Python has not handled an interrupt
        self._previous: dict[int, Any] = {}
        self._event = -1

    def __enter__(self) -> GracefulInterrupt:
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            self._install(number, self._on_signal)
        if self._terminal is not None:
            for number in self._terminal.SIGNALS:
                self._install(number, self._on_terminal_signal)
        return self

    def _install(self, number: int, handler: Callable[[int, FrameType | None], None]) -> None:
        if signal.getsignal(number) is signal.SIG_IGN:  # started by nohup
            return
        if threading.current_thread() is threading.main_thread():  # not so in a program that uses tfcluster.connect()
            self._previous[number] = signal.signal(number, handler)

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        os.close(self._event)

    def fileno(self) -> int:
        """See `Interrupt.fileno`."""
        return self._event

    def cancel(self, *, interrupt: bool = False) -> None:
        """Cancel the run, if there is one; with `interrupt`, interrupt a script instead.

        Raises:
            ClusterError: The run's host cannot be reached, and the run continues there.
        """
        if self.run is None:
            return
        request = CancelRequest(self.run, interrupt=interrupt and self._is_script)
        self._is_requested = self._is_requested or not request.interrupt
        _, errors = call_hosts(self._cluster, [self._cluster.head], request, settings.CANCEL_TIMEOUT_SECONDS)
        for error in errors.values():
            if error.exit_code is ExitCode.UNREACHABLE:  # else the cluster went down meanwhile, which ended the run too
                first = error.hint or "Wait until the host can be reached."
                raise ClusterError(
                    f"run {self.run} continues: {error.message}",
                    hint=f"{first} Then `tfcluster cancel {self.run}` stops the run, "
                    f"`tfcluster attach {self.run}` shows it.",
                    exit_code=ExitCode.UNREACHABLE,
                )

    @contextlib.contextmanager
    def cancelling(self) -> Iterator[None]:
        """Cancel the run through the agent on the head's host if the body of the context raises an exception."""
        try:
            yield
        except BaseException:
            if not self._is_requested:
                self.cancel()
            raise

    def handle(self) -> None:
        """Cancel the run if a signal was received since the last call, or pass the signal on to the script.

        Raises:
            ClusterError: The run's host cannot be reached, and the run continues there.
        """
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._event)
        if self._terminal is not None and self.run is not None:
            self._terminal.handle(self.run)
        while self._due:
            self.cancel(interrupt=self._due.pop(0))

    def on_event(self, record: dict[str, Any]) -> bool:
        """Note whether Python has handled an interrupt, as an InterruptEvent says; return whether to show the event.

        An InterruptEvent is shown if it is news of the run as a whole: of several members, the first one that is late
        counts. If the user has sent another interrupt meanwhile, the run is cancelled.
        """
        if record["event"] == MemberEvent.event:  # a process that is late has ended, or another one has started
            self._late.discard(record["task"])
        if record["event"] != InterruptEvent.event:
            return True
        was_late, task = bool(self._late), record.get("task", "")
        (self._late.discard if record.get("is_handled") else self._late.add)(task)
        if self._late and self._has_interrupted_again():
            self._is_cancelled = True
            self._due.append(False)
            os.eventfd_write(self._event, 1)
            return False
        return was_late != bool(self._late)

    def _has_interrupted_again(self) -> bool:
        """Return whether the user has sent an interrupt after the one that an event says is late.

        The late one is older than the time that Python has to handle it. Of two that were sent shortly before, the
        second is the next one, though the event may have taken a while to arrive.
        """
        now, limit = time.monotonic(), settings.INTERRUPT_HANDLED_SECONDS
        recent = [each for each in self._interrupts if now - each < 2 * limit]
        return len(recent) > 1 or (len(recent) == 1 and now - recent[0] < limit)

    def raise_if_any(self) -> None:
        """Raise the exception that the received signal would have raised; do nothing if there was no signal."""
        if self._received == signal.SIGINT:
            raise KeyboardInterrupt
        if self._received is not None:
            raise SystemExit(int(ExitCode.TERMINATED))

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._received = number
        if self.run is None or self._is_cancelled:
            self.raise_if_any()
        is_the_scripts = self._is_script and number == signal.SIGINT and not self._is_last()
        self._is_cancelled = not is_the_scripts
        self._due.append(is_the_scripts)
        os.eventfd_write(self._event, 1)

    def _is_last(self) -> bool:
        """Return whether an interrupt is the last of those by which a user ends a script that does not end by one."""
        now = time.monotonic()
        is_in_a_row = bool(self._interrupts) and now - self._interrupts[-1] < settings.INTERRUPTS_ROW_SECONDS
        self._interrupts = [*(self._interrupts if is_in_a_row else []), now]
        return bool(self._late) or len(self._interrupts) >= settings.INTERRUPTS_TO_CANCEL

    def _on_terminal_signal(self, number: int, frame: FrameType | None) -> None:
        assert self._terminal is not None, "this is the handler of its signals"
        self._terminal.on_signal(number, self.run)
        os.eventfd_write(self._event, 1)


class InterruptibleContext(StreamContext):
    """The context of a stream in which a signal, as `interrupt` reports it, ends a pause."""

    def __init__(self, host: str, interrupt: GracefulInterrupt) -> None:
        super().__init__(host)
        self._interrupt = interrupt

    def sleep(self, seconds: float) -> None:
        """Wait for a number of seconds, or until a signal was handled."""
        readable_fds([self._interrupt.fileno()], seconds)
        self._interrupt.handle()
