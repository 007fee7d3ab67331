"""What the kernel says of processes and of this machine, mostly in /proc.

The functions raise an OSError if the process has exited, if this user may not read its file, or if no descriptor is
left; those that say what they return for a process that has exited return it in all these cases.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

from tfcluster import settings

#: The folder that the kernel serves.
ROOT = "/proc"
# The positions in `stat_fields`: the numbers of proc(5), minus the three fields up to the state.
STATE, PARENT, GROUP, SESSION = 0, 1, 2, 3
USER_TICKS, SYSTEM_TICKS, WAITED_SYSTEM_TICKS = 11, 12, 14
THREADS, START_TICKS = 17, 19
ARG_START, ARG_END, ENV_START, EXIT_STATUS = 45, 46, 47, 49
#: The clock ticks of a second.
TICKS = os.sysconf("SC_CLK_TCK")


def pids() -> list[int]:
    """List the processes, in ascending order."""
    return sorted(int(name) for name in os.listdir(ROOT) if name.isdigit())


def stat_fields(pid: int, thread: int | None = None) -> list[str]:
    """Return the fields of a process's or thread's /proc/PID/stat, from its state on."""
    # The command name before the state is in parentheses, and may itself contain spaces and parentheses.
    return _read(_folder(pid, thread), "stat").rpartition(")")[2].split()


def read_status(pid: int, thread: int | None = None) -> dict[str, str]:
    """Return the fields of a process's or thread's status by their names; empty if it has exited."""
    try:
        text = _read(_folder(pid, thread), "status")
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}


def ancestors(pid: int) -> Iterator[int]:
    """Yield a process, its parent, the parent of that and so on, as far as they are in this pid namespace."""
    seen: set[int] = set()
    while pid and pid not in seen:  # a pid that is reused meanwhile could lead in a circle
        seen.add(pid)
        yield pid
        try:
            pid = int(stat_fields(pid)[PARENT])
        except (OSError, ValueError, IndexError):
            return


def threads(pid: int) -> list[int]:
    """Return the threads of a process, in ascending order; none if it has exited."""
    try:
        return sorted(map(int, os.listdir(f"{ROOT}/{pid}/task")))
    except OSError:
        return []


def thread_name(pid: int, thread: int) -> str:
    """Return the name of a thread."""
    return _read(_folder(pid, thread), "comm").removesuffix("\n")


def waits_in(pid: int, thread: int) -> str:
    """Return the kernel function that a thread waits in; empty if it runs, or the kernel does not say."""
    text = _read(_folder(pid, thread), "wchan").strip()
    return "" if text == "0" else text


def children(pid: int) -> list[int]:
    """Return the child processes of a process; none if it has exited."""
    found: list[int] = []
    with suppress(OSError):
        for thread in threads(pid):
            found += map(int, _read(_folder(pid, thread), "children").split())
    return found


def arguments(pid: int) -> list[str]:
    """Return the arguments, or the title that a process has given itself; none if it has exited."""
    try:
        text = _read(f"{ROOT}/{pid}", "cmdline").rstrip("\0")
    except OSError:
        return []
    return text.split("\0") if text else []


def environment(pid: int) -> bytes:
    """Return the environment that a process was started with, as `NAME=VALUE`, each with a NUL at its end."""
    with open(f"{ROOT}/{pid}/environ", "rb", buffering=0) as file:
        return file.readall()


def owner(pid: int) -> int:
    """Return the user id of a process's owner."""
    return os.stat(f"{ROOT}/{pid}").st_uid


def has_same_root(pid: int) -> bool:
    """Return whether a process has the same root folder as this one; one in a container does not."""
    return os.path.samestat(os.stat(f"{ROOT}/{pid}/root"), os.stat("/"))


def descriptors(pid: int) -> list[int]:
    """Return the file descriptors of a process."""
    return list(map(int, os.listdir(f"{ROOT}/{pid}/fd")))


def open_files(pid: int) -> Iterator[str]:
    """Yield what the descriptors of a process lead to: paths, or such as `socket:[INODE]`; none if it has exited."""
    with suppress(OSError):
        for fd in descriptors(pid):
            with suppress(OSError):  # it was closed meanwhile
                yield os.readlink(f"{ROOT}/{pid}/fd/{fd}")


def anonymous_memory() -> list[tuple[int, int]]:
    """Return the bounds of each region of private memory of this process that can be written and that no file backs."""
    rows = (line.split() for line in _read(f"{ROOT}/self", "maps").splitlines())
    bounds = (addresses.split("-") for addresses, access, _, _, inode, *_ in rows if (access, inode) == ("rw-p", "0"))
    return [(int(start, 16), int(end, 16)) for start, end in bounds]


def namespace(kind: str, pid: int | None = None) -> int:
    """Return the inode number of a namespace, such as `net`, of a process (by default this one); 0 if unknown."""
    try:
        return os.stat(f"{ROOT}/{pid or 'self'}/ns/{kind}").st_ino
    except OSError:
        return 0


@cache
def boot_id() -> str:
    """Return the unique id of the current boot of the machine; empty if the kernel does not provide it."""
    try:
        return _read(f"{ROOT}/sys/kernel/random", "boot_id").strip()
    except OSError:
        return ""


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process since its start."""
    fields = stat_fields(pid)
    return (int(fields[USER_TICKS]) + int(fields[SYSTEM_TICKS])) / TICKS


def _folder(pid: int, thread: int | None) -> str:
    return f"{ROOT}/{pid}" if thread is None else f"{ROOT}/{pid}/task/{thread}"


def _read(folder: str, name: str) -> str:
    with open(f"{folder}/{name}", "rb", buffering=0) as file:
        return file.readall().decode(errors="replace")


_PROC_FOLDER = Path("/proc")
_GROUPS = Path("/sys/fs/cgroup")


class OomDetector:
    """Samples the OOM counters that concern one process, from the start of the process on.

    The kernel does not report which process the OOM killer ended: it counts the kills per memory control group (cgroup)
    and per host.

    `now` is in monotonic seconds, here and in `sample`.
    """

    def __init__(self, pid: int, now: float, proc: Path = _PROC_FOLDER, groups: Path = _GROUPS) -> None:
        # The group must be found now: after the process has exited, the kernel no longer shows it.
        self._group = _find_counter_of_group(proc / str(pid) / "cgroup", groups)
        self._host = proc / "vmstat"
        self._samples = deque([self._read()], maxlen=settings.OOM_SAMPLES)
        self._sampled = now

    def sample(self, now: float) -> None:
        """Sample the counters if the sampling interval has passed."""
        if now - self._sampled >= settings.OOM_SAMPLE_INTERVAL_SECONDS:
            self._samples.append(self._read())
            self._sampled = now

    def describe(self) -> str:
        """Describe the OOM kills that may explain the process's end by a SIGKILL that this agent did not send.

        Return text to append to the reason of the process's end; empty if there was no OOM kill.
        """
        (group, host), (group_now, host_now) = self._samples[0], self._read()
        if group is not None and group_now is not None:  # it counts the kills for any lack of memory
            return " (out of memory)" if group_now > group else ""
        if host is not None and host_now is not None and host_now > host:
            return ", while the kernel's out-of-memory (OOM) killer killed processes on this host"
        return ""

    def _read(self) -> tuple[int | None, int | None]:
        """Return how many processes were ended so far, in the group and on the host; None for what is not counted."""
        return _read_kills(self._group), _read_kills(self._host)


def _find_counter_of_group(memberships: Path, groups: Path) -> Path | None:
    """Return the file that counts the OOM kills in a process's memory control group, or None if there is none.

    `memberships` is /proc/PID/cgroup: a line `NUMBER:CONTROLLERS:GROUP` for each hierarchy.
    """
    try:
        lines = memberships.read_text().splitlines()
    except OSError:  # it has exited
        return None
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if "memory" in controllers.split(","):
            counter = groups / "memory" / group.lstrip("/") / "memory.oom_control"
        elif not controllers:  # cgroup v2 has one hierarchy for all controllers
            counter = groups / group.lstrip("/") / "memory.events"
        else:
            continue
        if counter.exists():
            return counter
    return None


def _read_kills(counter: Path | None) -> int | None:
    """Return the number of kills in memory.events, memory.oom_control or /proc/vmstat; None if it is not known.

    All three have a line `oom_kill N`. The file of a group is removed with it, or may not be readable for this user.
    """
    with suppress(OSError):
        for line in counter.read_text().splitlines() if counter is not None else ():
            key, _, count = line.partition(" ")
            if key == "oom_kill":
                return int(count)
    return None
