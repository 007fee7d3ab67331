"""A process by its pid and start time, so that a pid that the kernel gave to a stranger is never touched."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import struct
from dataclasses import dataclass
from functools import cache
from pathlib import Path

# struct pidfd_info of Linux 6.13 in 64 bytes, and the request to have the exit code in it (6.15): linux/pidfd.h.
_PIDFD_INFO = struct.Struct("=QQ11Ii")
_PIDFD_GET_INFO = 3 << 30 | _PIDFD_INFO.size << 16 | 0xFF << 8 | 11
_PIDFD_INFO_EXIT = 1 << 3
#: The environment variable that tells which cluster an agent, or a process forked from it, belongs to; and its value
#: before the agent knows. The agent writes over that, so the length of the value is fixed.
MARK = "TFCLUSTER_AGENT_MARK"
NO_MARK = "0" * 32

# What reading a process's files raises when there is no such process; all else says nothing of it.
_GONE = (FileNotFoundError, ProcessLookupError)
_CORE_DUMPED = 0x80  # in waitpid's status


@dataclass(frozen=True)
class ProcessHandle:
    """One process, told apart from any later one with the same pid.

    Attributes:
        pid: Its pid.
        start_time: When it started, in clock ticks since boot (field 22 of /proc/PID/stat).
    """

    pid: int
    start_time: int

    @classmethod
    def of(cls, pid: int) -> ProcessHandle | None:
        """The process that has the pid now, though it be a zombie; None where there is none.

        Raises:
            OSError: There is no descriptor left to look with.
        """
        try:
            return cls(pid, int(_fields(pid)[19]))
        except _GONE:
            return None

    def exists(self) -> bool:
        """Whether the pid is still this process's: it runs, or has ended and is not reaped yet.

        Raises:
            OSError: There is no descriptor left to look with.
        """
        return ProcessHandle.of(self.pid) == self

    def alive(self) -> bool:
        """Whether this very process still runs.

        Raises:
            OSError: There is no descriptor left to look with.
        """
        try:
            fields = _fields(self.pid)
        except _GONE:
            return False
        return fields[0] not in "ZX" and int(fields[19]) == self.start_time

    def leads_session(self) -> bool:
        """Whether this very process still runs, and has begun a session of its own.

        Raises:
            OSError: There is no descriptor left to look with.
        """
        try:
            return self.alive() and int(_fields(self.pid)[3]) == self.pid
        except _GONE:
            return False

    def kill(self) -> None:
        """Send SIGKILL to this very process; nothing happens when it is gone.

        Raises:
            OSError: There are not two descriptors left.
        """
        pidfd = self.open()
        if pidfd is not None:
            send(pidfd, signal.SIGKILL)
            os.close(pidfd)

    def open(self) -> int | None:
        """A pidfd of this very process, to wait on and to signal; None when it is gone.

        Raises:
            OSError: There are not two descriptors left, one to keep and one to look with.
        """
        try:
            fd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return None
        try:
            # The pid may have been given away between our record and the open; not after it.
            if self.exists():
                return fd
        except OSError:
            os.close(fd)
            raise
        os.close(fd)
        return None


def _fields(pid: int) -> list[str]:
    """/proc/PID/stat from its third field, the state, on."""
    stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    # The second field is the command in parentheses and may itself hold spaces and parentheses.
    return stat.rpartition(")")[2].split()


def environment_address() -> int:
    """Where the environment that this process was started with is in its memory; 0 where the kernel does not tell."""
    return int(_fields(os.getpid())[47])  # env_start, field 50 of proc(5)


@cache
def boot_id() -> str:
    """What tells this boot of the machine from every other one; empty where the kernel does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def network_namespace() -> int:
    """The number of the network namespace that this process is in; 0 where the kernel does not tell."""
    try:
        return os.stat("/proc/self/ns/net").st_ino
    except OSError:
        return 0


def exit_status(process: ProcessHandle, pidfd: int) -> int | None:
    """How an ended process ended, as waitpid says it; a child is reaped, nobody else's child is.

    Args:
        process: The process.
        pidfd: Its pidfd, which tells that it has ended.

    Returns:
        None where it is somebody else's child that was reaped on a kernel before 6.15.
    """
    try:
        # By the pidfd: the pid of somebody else's child that was reaped may be a child's of ours by now.
        ended = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
    except ChildProcessError:
        pass
    else:
        return None if ended is None else _wait_status(ended)
    try:  # a zombie whose parent has not looked yet
        fields = _fields(process.pid)
        if int(fields[19]) == process.start_time:
            return int(fields[49])
    except OSError:
        pass
    information = bytearray(_PIDFD_INFO.pack(_PIDFD_INFO_EXIT, *[0] * 13))
    try:
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, information)
    except OSError:
        return None
    mask, *_, status = _PIDFD_INFO.unpack(information)
    return int(status) if mask & _PIDFD_INFO_EXIT else None


def _wait_status(ended: os.waitid_result) -> int:
    """What waitpid would have said."""
    if ended.si_code == os.CLD_EXITED:
        return ended.si_status << 8
    return ended.si_status | (_CORE_DUMPED if ended.si_code == os.CLD_DUMPED else 0)


def send(pidfd: int, signal_number: signal.Signals) -> None:
    """Signal the process behind a pidfd; one that has ended already is fine."""
    try:
        signal.pidfd_send_signal(pidfd, signal_number)
    except ProcessLookupError:
        return


def peer_credentials(connection: socket.socket) -> tuple[int, int]:
    """The pid and uid of the process on the other end of a Unix socket, as the kernel knows them."""
    size = struct.calcsize("3i")
    pid, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return pid, uid


def was_killed(status: int | None) -> bool:
    """Whether SIGKILL ended a process, or may have: None where only its end is known."""
    return status is None or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL)


def reason(status: int | None) -> str:
    """In words how a process ended.

    Args:
        status: What waitpid says; None where only the end is known.
    """
    if status is None:
        return "unknown exit"
    if os.WIFSIGNALED(status):
        try:
            return signal.Signals(os.WTERMSIG(status)).name
        except ValueError:
            return f"signal {os.WTERMSIG(status)}"
    return f"exit code {os.WEXITSTATUS(status)}"
