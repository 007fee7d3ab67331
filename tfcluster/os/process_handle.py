"""Handles of processes by pid and start time, so that a process that reuses a pid is never signalled by mistake."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import socket
import struct

from tfcluster.os import libc, procfs
from tfcluster.os.procfs import EXIT_STATUS, SESSION, START_TICKS, STATE, THREADS
from tfcluster.records import record_class

# struct pidfd_info of Linux 6.13, 64 bytes, and the flag that requests the exit code in it (6.15); see linux/pidfd.h.
_PIDFD_INFO = struct.Struct("=QQ11Ii")
_PIDFD_GET_INFO = 3 << 30 | _PIDFD_INFO.size << 16 | 0xFF << 8 | 11
_PIDFD_INFO_EXIT = 1 << 3

# The errors of reading a process's files in /proc if the process does not exist; other errors do not tell whether it
# exists.
_NO_PROCESS = (FileNotFoundError, ProcessLookupError)
_CORE_DUMPED = 0x80  # in waitpid's status


@record_class(frozen=True)
class ProcessHandle:
    """Identifies one process, distinct from any later process with the same pid.

    Its methods raise an OSError if no two descriptors are left, one for a pidfd and one to read /proc.
    """

    pid: int
    start_time: int  # clock ticks since boot (field 22 of /proc/PID/stat)

    @classmethod
    def from_pid(cls, pid: int) -> ProcessHandle | None:
        """Return the process that has the pid now, possibly a zombie; None if no process has it."""
        try:
            return cls(pid, int(procfs.stat_fields(pid)[START_TICKS]))
        except _NO_PROCESS:
            return None

    def exists(self) -> bool:
        """Return whether the pid still belongs to this process, which runs or is a zombie that is not reaped yet."""
        return ProcessHandle.from_pid(self.pid) == self

    def is_alive(self) -> bool:
        """Return whether this process (not another one with the same pid) still runs."""
        try:
            fields = procfs.stat_fields(self.pid)
        except _NO_PROCESS:
            return False
        # A process whose first thread has ended is in state Z, and has its ports, until its other threads have ended.
        has_ended = fields[STATE] in "ZX" and int(fields[THREADS]) <= 1
        return not has_ended and int(fields[START_TICKS]) == self.start_time

    def leads_session(self) -> bool:
        """Return whether this process still runs and is a session leader (it has called setsid)."""
        try:
            return self.is_alive() and int(procfs.stat_fields(self.pid)[SESSION]) == self.pid
        except _NO_PROCESS:
            return False

    def title(self) -> str:
        """Return the process title, such as `tfcluster: demo ps:0`; empty if the process has exited."""
        return next(iter(procfs.arguments(self.pid)), "")

    def kill(self) -> None:
        """Send SIGKILL to this process; do nothing if it no longer exists."""
        pidfd = self.open()
        if pidfd is not None:
            send_signal(pidfd, signal.SIGKILL)
            os.close(pidfd)

    def terminate(self, grace: float, kill_wait: float) -> bool:
        """End this process by SIGTERM, or by SIGKILL after the grace period (seconds), and wait until it has exited.

        Return False if it has not exited `kill_wait` seconds after SIGKILL, as in uninterruptible sleep.
        """
        pidfd = self.open()
        if pidfd is None:
            return True
        exited = select.poll()
        exited.register(pidfd, select.POLLIN)
        try:
            for number, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, kill_wait)):
                send_signal(pidfd, number)
                send_signal(pidfd, signal.SIGCONT)  # a stopped process does not handle SIGTERM
                if exited.poll(1000 * seconds):
                    return True
            return False
        finally:
            os.close(pidfd)

    def open(self) -> int | None:
        """Open a pidfd to wait for the exit of this process and to signal it; return None if it no longer exists."""
        try:
            fd = libc.pidfd_open(self.pid)
        except ProcessLookupError:
            return None
        try:
            # The kernel may have reused the pid before pidfd_open. It does not matter if it is reused afterwards,
            # because the pidfd keeps referring to the process for which it was opened.
            if self.exists():
                return fd
        except OSError:
            os.close(fd)
            raise
        os.close(fd)
        return None


def supports_pidfds() -> bool:
    """Return whether this system has all that pidfds are used for here, which Linux 5.4 was the first to have."""
    with contextlib.suppress(OSError):
        pidfd = libc.pidfd_open(os.getpid())
        try:
            os.waitid(libc.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)  # Linux 5.3 fails with EINVAL
        except ChildProcessError:  # this process is not its own child
            return True
        finally:
            os.close(pidfd)
    return False


def is_frozen(pid: int) -> bool:
    """Return whether a signal, such as SIGSTOP, or a debugger has stopped a process."""
    try:
        return procfs.stat_fields(pid)[STATE] in "tT"
    except OSError:
        return False


def tracer_of(pid: int) -> int | None:
    """Return the pid of the debugger that traces a process, such as gdb or strace; None if there is none."""
    return int(procfs.read_status(pid).get("TracerPid", "0")) or None


def is_stopped_by_signal(pid: int) -> bool:
    """Return whether a signal, such as SIGSTOP, has stopped a process that no debugger traces."""
    return is_frozen(pid) and tracer_of(pid) is None


def exit_status(process: ProcessHandle, pidfd: int) -> int | None:
    """Return the wait status of an exited process, as waitpid does, after its pidfd has reported the exit.

    It reaps a child of this process, but no other. None means unknown: another process reaped it, and the kernel is
    older than 6.15.
    """
    try:
        # Wait by pidfd, not by pid: if the process was a child of another process and was reaped, the kernel may have
        # reused its pid for one of our own children.
        result = os.waitid(libc.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
    except ChildProcessError:
        pass
    else:
        return None if result is None else _wait_status(result)
    try:  # a zombie that its parent has not reaped yet
        fields = procfs.stat_fields(process.pid)
        if int(fields[START_TICKS]) == process.start_time:
            return int(fields[EXIT_STATUS])
    except OSError:
        pass
    information = bytearray(_PIDFD_INFO.pack(_PIDFD_INFO_EXIT, *[0] * 13))
    try:
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, information)
    except OSError:
        return None
    mask, *_, status = _PIDFD_INFO.unpack(information)
    return int(status) if mask & _PIDFD_INFO_EXIT else None


def _wait_status(result: os.waitid_result) -> int:
    """Convert the result of waitid to the wait status that waitpid would return."""
    if result.si_code == os.CLD_EXITED:
        return result.si_status << 8
    return result.si_status | (_CORE_DUMPED if result.si_code == os.CLD_DUMPED else 0)


def send_signal(pidfd: int, signal_number: int) -> None:
    """Send a signal to the process of a pidfd; do nothing if the process has exited already."""
    try:
        libc.pidfd_send_signal(pidfd, signal_number)
    except ProcessLookupError:
        return


def peer_credentials(connection: socket.socket) -> tuple[int, int]:
    """Return the pid and uid of the peer of a Unix socket, as reported by the kernel (SO_PEERCRED)."""
    size = struct.calcsize("3i")
    pid, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return pid, uid


def was_killed(status: int | None) -> bool:
    """Return whether SIGKILL ended a process, or could have, if the status is None."""
    return status is None or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL)


def format_exit_status(status: int | None) -> str:
    """Describe how a process ended, for example `exit code 1` or `SIGKILL`; None stands for an unknown status."""
    if status is None:
        return "exit status unknown"
    if os.WIFSIGNALED(status):
        try:
            return signal.Signals(os.WTERMSIG(status)).name
        except ValueError:
            return f"signal {os.WTERMSIG(status)}"
    return f"exit code {os.WEXITSTATUS(status)}"
