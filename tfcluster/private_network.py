"""A cluster's private network on a host: a kernel network namespace, which only the cluster's owner can enter.

Only processes in the namespace can connect to a port that is opened there. An ordinary user can make one together
with a user namespace, in which their own account is the only one. A process with CAP_SYS_ADMIN, such as root's, makes
no user namespace: it would lose its power over the files of other accounts in it. Entering the namespaces requires
CAP_SYS_ADMIN in them, which only the owner and root have.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tfcluster.errors import ClusterError
from tfcluster.os import netns, procfs
from tfcluster.os.daemonize import ask_in_fork
from tfcluster.os.process_handle import ProcessHandle

#: The alternatives to a private network, each with its drawback.
ALTERNATIVES = (
    "Or choose another network in the spec: `network: closed` keeps other machines out, and lets every account of this "
    "machine connect and run code as you; `network: open` lets every machine connect."
)
_MADE = b"0"
# The switches that forbid namespaces, with the value that forbids them and a value that allows them.
_SWITCHES = (
    ("user.max_user_namespaces", "0", "15000"),
    ("user.max_net_namespaces", "0", "15000"),
    ("kernel.unprivileged_userns_clone", "0", "1"),
    ("kernel.apparmor_restrict_unprivileged_userns", "1", "0"),
)


@dataclass(frozen=True)
class PrivateNetwork:
    """The namespaces of a private network."""

    holder: ProcessHandle  # is in the namespaces, and keeps them while no other one is
    user: int  # inode number of the user namespace
    net: int  # inode number of the network namespace

    @property
    def socket_tables(self) -> Path:
        """Return the folder of the kernel's socket tables of the network."""
        return Path(f"/proc/{self.holder.pid}/net")

    def contains_this_process(self) -> bool:
        """Return whether this process is in the network."""
        return procfs.namespace("net") == self.net

    def enter(self) -> None:
        """Move this process into the network; raises OSError if it has several threads, or the network is gone."""
        fds = self.open(self.holder)
        try:
            self.enter_opened(fds)
        finally:
            for fd in fds:
                os.close(fd)

    def open(self, process: ProcessHandle) -> tuple[int, int]:
        """Open the user and network namespace of a process in the network; the descriptors keep both.

        Raises OSError if the process has exited, is in another network, or belongs to another account.
        """
        fds: list[int] = []
        try:
            for kind, inode in (("user", self.user), ("net", self.net)):
                fds.append(os.open(f"/proc/{process.pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC))
                if os.fstat(fds[-1]).st_ino != inode:
                    raise ProcessLookupError(errno.ESRCH, "the cluster's private network no longer exists")
        except OSError:
            for fd in fds:
                os.close(fd)
            raise
        return fds[0], fds[1]

    def enter_opened(self, fds: tuple[int, int]) -> None:
        """Enter the namespaces from `open`, as `enter` does."""
        own_user_namespace = procfs.namespace("user")
        for fd, inode, own, kind in (
            (fds[0], self.user, own_user_namespace, netns.CLONE_NEWUSER),
            (fds[1], self.net, procfs.namespace("net"), netns.CLONE_NEWNET),
        ):
            if inode != own:
                _enter(fd, kind)
        if own_user_namespace != self.user:
            netns.drop_capabilities()

    def enter_user_namespace(self, fd: int) -> None:
        """Enter the user namespace by its descriptor, and keep the power over its network: see `enter_network`."""
        if procfs.namespace("user") != self.user:
            _enter(fd, netns.CLONE_NEWUSER)


def enter_network(fd: int) -> None:
    """Have this thread enter a network namespace, where it creates its sockets from now on."""
    _enter(fd, netns.CLONE_NEWNET)


def _enter(fd: int, kind: int) -> None:
    try:
        netns.enter(fd, kind)
    except OSError as error:
        text = f"the cluster's private network cannot be entered: {error.strerror}"
        raise OSError(error.errno, text) from error


def find_obstacle() -> ClusterError | None:
    """Try in a fork whether a private network can be made here; return an error that names what forbids it."""

    def make() -> bytes:
        try:
            netns.make_namespaces()
        except OSError as error:
            return str(error.errno).encode()
        return _MADE

    result = ask_in_fork(make)
    return None if result == _MADE else explain_failure(int(result or errno.EPERM))


def explain_failure(number: int) -> ClusterError:
    """Return the error for users that no private network can be made; it names the cause, for example a sysctl."""
    what = "this machine does not let you make a private network for the cluster"
    for name, forbidding, allowing in _SWITCHES:
        with suppress(OSError):
            if Path("/proc/sys", *name.split(".")).read_text().strip() == forbidding:
                hint = f"The root user of the machine, not of a container, allows it by `sysctl -w {name}={allowing}`."
                return ClusterError(f"{what}: the switch {name} is {forbidding}", hint=f"{hint} {ALTERNATIVES}")
    if number == errno.ENOSPC:
        why = "the limit user.max_user_namespaces or user.max_net_namespaces is reached"
        hint = "An administrator of the machine can raise these limits (sysctl)."
    elif number in (errno.EPERM, errno.EACCES) and procfs.read_status(os.getpid()).get("Seccomp", "0") != "0":
        why = "a seccomp filter of this container, or of this session, forbids unshare()"
        hint = (
            "Run the container with a seccomp profile that allows namespaces, such as `docker run --security-opt "
            "seccomp=unconfined`. The network of a container that only you can enter is already private."
        )
    else:
        why = f"the kernel refuses a user namespace with a network ({os.strerror(number)})"
        hint = "It must be built with CONFIG_USER_NS and CONFIG_NET_NS, and no security module may forbid them."
    return ClusterError(f"{what}: {why}", hint=f"{hint} {ALTERNATIVES}")
