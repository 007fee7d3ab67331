"""What /proc says of processes and of this machine.

The functions raise an OSError if the process has exited, if this user may not read its file, or if no descriptor is
left; those that say what they return for a process that has exited return it in all these cases.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

#: The folder that the kernel serves.
ROOT = "/proc"
# The positions in `stat_fields`: the numbers of proc(5), minus the three fields up to the state.
STATE, PARENT, GROUP, SESSION = 0, 1, 2, 3
USER_TICKS, SYSTEM_TICKS, WAITED_USER_TICKS, WAITED_SYSTEM_TICKS = 11, 12, 13, 14
START_TICKS, RSS_PAGES = 19, 21
ARG_START, ARG_END, ENV_START, EXIT_STATUS = 45, 46, 47, 49
#: The clock ticks of a second.
TICKS = os.sysconf("SC_CLK_TCK")
# The fields of the first line of /proc/stat that count no work: idle, iowait; those of guests are in user and nice.
_IDLE_FIELDS, _HOST_FIELDS = (3, 4), 8


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


@dataclass(frozen=True)
class HostTime:
    """The CPU time of a host, in seconds, summed over all cores since boot."""

    busy: float
    total: float


def host_time() -> HostTime | None:
    """Return the CPU time of this host; None if the kernel does not say."""
    with suppress(OSError, ValueError):
        ticks = [int(text) for text in _read(ROOT, "stat").partition("\n")[0].split()[1 : 1 + _HOST_FIELDS]]
        total = sum(ticks) / TICKS
        return HostTime(total - sum(ticks[number] for number in _IDLE_FIELDS) / TICKS, total)
    return None


def host_memory() -> tuple[int, int] | None:
    """Return the unavailable and the total memory of this host, in bytes; None if the kernel does not say."""
    with suppress(OSError, ValueError, KeyError):
        lines = (line.split() for line in _read(ROOT, "meminfo").splitlines())
        values = {name: int(value) * 1024 for name, value, *_ in lines}
        return values["MemTotal:"] - values["MemAvailable:"], values["MemTotal:"]
    return None


def _folder(pid: int, thread: int | None) -> str:
    return f"{ROOT}/{pid}" if thread is None else f"{ROOT}/{pid}/task/{thread}"


def _read(folder: str, name: str) -> str:
    with open(f"{folder}/{name}", "rb", buffering=0) as file:
        return file.readall().decode(errors="replace")
