"""Handles of processes by pid and start time, so that a process that reuses a pid is never signalled by mistake.

The processes of a cluster have a mark in their environment, by which they can be found without any file.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import select
import signal
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tfcluster import settings

# struct pidfd_info of Linux 6.13, 64 bytes, and the flag that requests the exit code in it (6.15); see linux/pidfd.h.
_PIDFD_INFO = struct.Struct("=QQ11Ii")
_PIDFD_GET_INFO = 3 << 30 | _PIDFD_INFO.size << 16 | 0xFF << 8 | 11
_PIDFD_INFO_EXIT = 1 << 3
#: The environment variable that identifies the cluster to which an agent, or a process forked from it, belongs, and its
#: placeholder value before the agent knows its cluster. The agent overwrites the placeholder in its memory, so the
#: length of the value is fixed.
MARK = "TFCLUSTER_AGENT_MARK"
NO_MARK = "0" * 32

# The errors of reading a process's files in /proc if the process does not exist; other errors do not tell whether it
# exists.
_NO_PROCESS = (FileNotFoundError, ProcessLookupError)
_CORE_DUMPED = 0x80  # in waitpid's status


@dataclass(frozen=True)
class ProcessHandle:
    """Identifies one process, distinct from any later process with the same pid.

    Its methods raise an OSError if fewer than two file descriptors are available: one for a pidfd and one to read
    /proc.
    """

    pid: int
    start_time: int  # clock ticks since boot (field 22 of /proc/PID/stat)

    @classmethod
    def from_pid(cls, pid: int) -> ProcessHandle | None:
        """Return the process that has the pid now, possibly a zombie; None if no process has it."""
        try:
            return cls(pid, int(_fields(pid)[19]))
        except _NO_PROCESS:
            return None

    def exists(self) -> bool:
        """Return whether the pid still belongs to this process, which runs or is a zombie that is not reaped yet."""
        return ProcessHandle.from_pid(self.pid) == self

    def is_alive(self) -> bool:
        """Return whether this process (not another one with the same pid) still runs."""
        try:
            fields = _fields(self.pid)
        except _NO_PROCESS:
            return False
        return fields[0] not in "ZX" and int(fields[19]) == self.start_time

    def leads_session(self) -> bool:
        """Return whether this process still runs and is a session leader (it has called setsid)."""
        try:
            return self.is_alive() and int(_fields(self.pid)[3]) == self.pid
        except _NO_PROCESS:
            return False

    def title(self) -> str:
        """Return the process title, such as `tfcluster: demo ps:0`; empty if the process has exited."""
        try:
            return Path(f"/proc/{self.pid}/cmdline").read_bytes().split(b"\0")[0].decode(errors="replace")
        except OSError:
            return ""

    def describe(self, cluster: str) -> str:
        """Describe this process of a cluster by its title and its pid, such as `ps:0 (pid 123)`."""
        return f"{self.title().removeprefix(f'tfcluster: {cluster} ') or 'process'} (pid {self.pid})"

    def kill(self) -> None:
        """Send SIGKILL to this process; do nothing if it no longer exists."""
        pidfd = self.open()
        if pidfd is not None:
            send_signal(pidfd, signal.SIGKILL)
            os.close(pidfd)

    def terminate(self, grace: float) -> bool:
        """End this process by SIGTERM, or by SIGKILL after the grace period (seconds), and wait until it has exited.

        Return whether it has exited: a process in uninterruptible sleep does not, even after SIGKILL.
        """
        pidfd = self.open()
        if pidfd is None:
            return True
        exited = select.poll()
        exited.register(pidfd, select.POLLIN)
        try:
            for number, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, settings.AGENT_EXIT_SECONDS)):
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
            fd = os.pidfd_open(self.pid)
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


def _fields(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat, starting with the third one, the state."""
    stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    # The second field is the command name in parentheses, which may itself contain spaces and parentheses.
    return stat.rpartition(")")[2].split()


def is_frozen(pid: int) -> bool:
    """Return whether a signal, such as SIGSTOP, or a debugger has stopped a process."""
    try:
        return _fields(pid)[0] in "tT"
    except OSError:
        return False


def tracer_of(pid: int) -> int | None:
    """Return the pid of the debugger that traces a process, such as gdb or strace; None if there is none."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except OSError:
        return None
    return int(status.partition("\nTracerPid:")[2].partition("\n")[0] or 0) or None


def is_stopped_by_signal(pid: int) -> bool:
    """Return whether a signal, such as SIGSTOP, has stopped a process that no debugger traces."""
    return is_frozen(pid) and tracer_of(pid) is None


def environment_address() -> int:
    """Return the memory address of the environment that this process was started with; 0 if the kernel hides it."""
    return int(_fields(os.getpid())[47])  # env_start, field 50 of proc(5)


@cache
def boot_id() -> str:
    """Return the unique id of the current boot of the machine; empty if the kernel does not provide it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def network_namespace() -> int:
    """Return the inode number of this process's network namespace; 0 if the kernel does not provide it."""
    try:
        return os.stat("/proc/self/ns/net").st_ino
    except OSError:
        return 0


def exit_status(process: ProcessHandle, pidfd: int) -> int | None:
    """Return the wait status of an exited process, in the format of waitpid.

    A child of this process is reaped; a child of another process is not.

    The pidfd has reported that the process exited. None means that the status is unknown: the process is a child of
    another process that reaped it, and the kernel is older than 6.15.
    """
    try:
        # Wait by pidfd, not by pid: if the process was a child of another process and was reaped, the kernel may have
        # reused its pid for one of our own children.
        result = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
    except ChildProcessError:
        pass
    else:
        return None if result is None else _wait_status(result)
    try:  # a zombie that its parent has not reaped yet
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


def _wait_status(result: os.waitid_result) -> int:
    """Convert the result of waitid to the wait status that waitpid would return."""
    if result.si_code == os.CLD_EXITED:
        return result.si_status << 8
    return result.si_status | (_CORE_DUMPED if result.si_code == os.CLD_DUMPED else 0)


def send_signal(pidfd: int, signal_number: int) -> None:
    """Send a signal to the process of a pidfd; do nothing if the process has exited already."""
    try:
        signal.pidfd_send_signal(pidfd, signal_number)
    except ProcessLookupError:
        return


def peer_credentials(connection: socket.socket) -> tuple[int, int]:
    """Return the pid and uid of the peer of a Unix socket, as reported by the kernel (SO_PEERCRED)."""
    size = struct.calcsize("3i")
    pid, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return pid, uid


def was_killed(status: int | None) -> bool:
    """Return whether SIGKILL ended a process, or may have ended it, which is so for the status None."""
    return status is None or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL)


def format_exit_status(status: int | None) -> str:
    """Describe how a process ended, for example `exit code 1` or `SIGKILL`.

    For the status None, only the fact that the process exited is known.
    """
    if status is None:
        return "unknown exit"
    if os.WIFSIGNALED(status):
        try:
            return signal.Signals(os.WTERMSIG(status)).name
        except ValueError:
            return f"signal {os.WTERMSIG(status)}"
    return f"exit code {os.WEXITSTATUS(status)}"


def mark_of(state_folder: Path) -> str:
    """Return the mark of the cluster and host to which a state directory belongs."""
    place = f"{os.getuid()}:{os.path.realpath(state_folder)}"
    return hashlib.sha256(os.fsencode(place)).hexdigest()[: len(NO_MARK)]


def marked_processes(mark: str) -> list[ProcessHandle]:
    """List the processes of this user that have a mark, except this one and its descendants."""
    return [process for process, found in processes_with_marks() if found == mark and not _is_descendant(process.pid)]


def processes_with_marks() -> Iterator[tuple[ProcessHandle, str]]:
    """Yield the processes of this user, except zombies, that have a mark, each with its mark."""
    with os.scandir("/proc") as entries:
        pids = sorted(int(entry.name) for entry in entries if entry.name.isdigit())
    for pid in pids:
        with suppress(OSError):  # it has exited, or is another user's
            # Of a thousand processes, only those with a mark are looked at more closely. The start time is read before
            # the mark that counts: if the pid is reused in between, the handle does not match the new process.
            if _mark_in(pid) and _is_own(pid) and (process := ProcessHandle.from_pid(pid)) and (mark := _mark_in(pid)):
                yield process, mark


def is_marked(pid: int, mark: str) -> bool:
    """Return whether a process of this user has a mark.

    An OSError says that it has exited, or that its environment cannot be read.
    """
    return _is_own(pid) and _mark_in(pid) == mark


def _mark_in(pid: int) -> str:
    """Return the mark in the environment of a process; empty if it has none, as a zombie."""
    with open(f"/proc/{pid}/environ", "rb", buffering=0) as file:
        _, _, rest = (b"\0" + file.readall()).partition(f"\0{MARK}=".encode())
    return rest.partition(b"\0")[0].decode(errors="replace")


def _is_own(pid: int) -> bool:
    """Return whether a process belongs to this user and is not in a container.

    A process in a container does not belong to this cluster, even if its state directory has the same path.

    An OSError says that it has exited, or is another user's.
    """
    is_users = os.stat(f"/proc/{pid}").st_uid == os.getuid()
    return is_users and os.path.samestat(os.stat(f"/proc/{pid}/root"), os.stat("/"))


def _is_descendant(pid: int) -> bool:
    """Return whether a process is this one or descends from it."""
    seen: set[int] = set()
    while pid not in (0, os.getpid(), *seen):  # a pid that is reused meanwhile could lead in a circle
        seen.add(pid)
        try:
            pid = int(_fields(pid)[1])
        except OSError:
            return False
    return pid == os.getpid()
