"""A process by its pid and start time, so that a pid that the kernel gave to a stranger is never touched."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ProcessId:
    """One process, told apart from any later one with the same pid.

    Attributes:
        pid: Its pid.
        start_time: When it started, in clock ticks since boot (field 22 of /proc/PID/stat).
    """

    pid: int
    start_time: int

    @classmethod
    def of(cls, pid: int) -> ProcessId | None:
        """The process that has the pid now; None where there is none or only a zombie."""
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        except OSError:
            return None
        # The second field is the command in parentheses and may itself hold spaces and parentheses.
        fields = stat.rpartition(")")[2].split()
        return None if fields[0] in "ZX" else cls(pid, int(fields[19]))

    def alive(self) -> bool:
        """Whether this very process still runs."""
        return ProcessId.of(self.pid) == self

    def open(self) -> int | None:
        """A pidfd of this very process, to wait on and to signal; None when it has ended."""
        try:
            fd = os.pidfd_open(self.pid)
        except OSError:
            return None
        # The pid may have been given away between our record and the open; not after it.
        if not self.alive():
            os.close(fd)
            return None
        return fd


def send(pidfd: int, signal_number: signal.Signals) -> None:
    """Signal the process behind a pidfd; one that has ended already is fine."""
    try:
        signal.pidfd_send_signal(pidfd, signal_number)
    except ProcessLookupError:
        return


def reason(status: int | None) -> str:
    """In words how a process ended.

    Args:
        status: What waitpid said; None where somebody else's child was watched and only its end is known.
    """
    if status is None:
        return "unknown exit"
    if os.WIFSIGNALED(status):
        try:
            return signal.Signals(os.WTERMSIG(status)).name
        except ValueError:
            return f"signal {os.WTERMSIG(status)}"
    return f"exit code {os.WEXITSTATUS(status)}"
