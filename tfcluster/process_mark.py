"""The mark of a cluster in the environment of its processes, by which they are found without any file."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tfcluster.os import procfs
from tfcluster.os.process_handle import ProcessHandle

#: The environment variable that identifies the cluster to which an agent, or a process forked from it, belongs, and its
#: placeholder value before the agent knows its cluster. The agent overwrites the placeholder in its memory, so the
#: length of the value is fixed.
MARK = "TFCLUSTER_AGENT_MARK"
NO_MARK = "0" * 32


def mark_of(state_folder: Path) -> str:
    """Return the mark of the cluster and host to which a state directory belongs."""
    identity = f"{os.getuid()}:{os.path.realpath(state_folder)}"
    return hashlib.sha256(os.fsencode(identity)).hexdigest()[: len(NO_MARK)]


def lock_name(kind: str, state_folder: Path) -> str:
    """Return the name of a `NameLock` for what only one process may do for a cluster on a host.

    Containers may share a network and have state directories of equal paths, so the root directory is part of the name.
    """
    root = os.stat("/")
    return f"tfcluster-{kind}-{mark_of(state_folder)}-{root.st_dev}-{root.st_ino}"


def marked_processes(mark: str) -> list[ProcessHandle]:
    """List the processes of this user that have a mark, except this one and its descendants."""
    found = [process for process, own in processes_with_marks() if own == mark]
    return [process for process in found if os.getpid() not in procfs.ancestors(process.pid)]


def processes_with_marks() -> Iterator[tuple[ProcessHandle, str]]:
    """Yield the processes of this user, except zombies, that have a mark, each with its mark."""
    for pid in procfs.pids():
        with suppress(OSError):  # it has exited, or is another user's
            # Of a thousand processes, only those with a mark are looked at more closely. The start time is read before
            # the mark that counts: if the pid is reused in between, the handle does not match the new process.
            if _mark_in(pid) and _is_own(pid) and (process := ProcessHandle.from_pid(pid)) and (mark := _mark_in(pid)):
                yield process, mark


def is_marked(pid: int, mark: str) -> bool:
    """Return whether a process of this user has a mark; raises OSError if it has exited or cannot be read."""
    return _is_own(pid) and _mark_in(pid) == mark


def set_mark(mark: str) -> None:
    """Overwrite the mark in the environment with which this process, or the one that forked it, was started.

    The kernel shows that environment (/proc/PID/environ), and a fork has the same one as its parent: all processes that
    the agent forks, and that these fork, can be found by the mark. A program that is started by exec gets a new
    environment. NO_MARK is for a fork that does not belong to the cluster.
    """
    import ctypes  # only processes of agents need it, and this module is imported in each session on a host

    # The NUL in front excludes a variable whose name merely ends with this one's name.
    environment = b"\0" + procfs.environment(os.getpid())
    found = re.search(rb"\0%b=([0-9a-f]{%d})\0" % (MARK.encode(), len(NO_MARK)), environment)
    address = int(procfs.stat_fields(os.getpid())[procfs.ENV_START])  # 0 if the kernel hides it
    if found and address:
        ctypes.memmove(address + found.start(1) - 1, mark.encode(), len(mark))
    os.environ[MARK] = mark


def _mark_in(pid: int) -> str:
    """Return the mark in the environment of a process; empty if it has none, as a zombie."""
    _, _, rest = (b"\0" + procfs.environment(pid)).partition(f"\0{MARK}=".encode())
    return rest.partition(b"\0")[0].decode(errors="replace")


def _is_own(pid: int) -> bool:
    """Return whether a process is this user's and not in a container, whose state directories can have equal paths."""
    return procfs.owner(pid) == os.getuid() and procfs.has_same_root(pid)


def describe_process(process: ProcessHandle, cluster: str) -> str:
    """Describe a process of a cluster by its title and its pid, such as `ps:0 (pid 123)`."""
    return f"{process.title().removeprefix(f'tfcluster: {cluster} ') or 'process'} (pid {process.pid})"
