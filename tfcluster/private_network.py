"""A cluster's private network on a host: a network namespace of the kernel, which only the cluster's owner can enter.

A port that is opened in the namespace can be connected to from inside alone. An ordinary user may make one together
with a user namespace, in which their own account is the only one. A process with CAP_SYS_ADMIN, such as root's, makes
no user namespace: it would lose its power over the files of other accounts in it. To enter the namespaces takes
CAP_SYS_ADMIN in them, which only the owner and root have.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tfcluster.errors import ClusterError
from tfcluster.process_handle import ProcessHandle

#: What there is instead of a private network, with its price.
ALTERNATIVES = (
    "Or choose another network in the spec: `network: closed` keeps other machines out, and lets every account of this "
    "machine connect and run code as you; `network: open` lets every machine connect."
)
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_CAP_SYS_ADMIN = 21
_CAPABILITY_VERSION_3 = 0x20080522
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1
_INTERFACE_FLAGS = struct.Struct("16sH14x")  # struct ifreq
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
        """Return the folder of the kernel's tables of the sockets in the network."""
        return Path(f"/proc/{self.holder.pid}/net")

    def contains_this_process(self) -> bool:
        """Return whether this process is in the network."""
        return os.stat("/proc/self/ns/net").st_ino == self.net

    def enter(self) -> None:
        """Move this process, which must have a single thread, into the network; processes that it starts are there too.

        Raises:
            OSError: It has more threads, or the network no longer exists.
        """
        fds = self.open(self.holder)
        try:
            self.enter_opened(fds)
        finally:
            for fd in fds:
                os.close(fd)

    def open(self, process: ProcessHandle) -> tuple[int, int]:
        """Open the user and the network namespace of a process in the network; the descriptors keep both.

        An OSError says that the process has exited, is in another network, or belongs to another account.
        """
        fds: list[int] = []
        try:
            for kind, inode in (("user", self.user), ("net", self.net)):
                fds.append(os.open(f"/proc/{process.pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC))
                if os.fstat(fds[-1]).st_ino != inode:
                    raise ProcessLookupError(errno.ESRCH, "the private network of the cluster is gone")
        except OSError:
            for fd in fds:
                os.close(fd)
            raise
        return fds[0], fds[1]

    def enter_opened(self, fds: tuple[int, int]) -> None:
        """Enter the namespaces from `open`, as `enter` does."""
        own_user_namespace = os.stat("/proc/self/ns/user").st_ino
        for fd, inode, own, kind in (
            (fds[0], self.user, own_user_namespace, _CLONE_NEWUSER),
            (fds[1], self.net, os.stat("/proc/self/ns/net").st_ino, _CLONE_NEWNET),
        ):
            if inode != own:
                _enter(fd, kind)
        if own_user_namespace != self.user:
            drop_capabilities()

    def enter_user_namespace(self, fd: int) -> None:
        """Enter the user namespace, and keep the power over its network that a process gets there: see `enter_network`.

        Args:
            fd: Its descriptor.

        Raises:
            OSError: It cannot be entered.
        """
        if os.stat("/proc/self/ns/user").st_ino != self.user:
            _enter(fd, _CLONE_NEWUSER)


def enter_network(fd: int) -> None:
    """Have this thread enter a network namespace, where it creates its sockets from now on."""
    _enter(fd, _CLONE_NEWNET)


def _enter(fd: int, kind: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(fd, kind):
        number = ctypes.get_errno()
        raise OSError(number, f"the cluster's private network cannot be entered: {os.strerror(number)}")


def make_namespaces() -> None:
    """Move this process, which must have a single thread, into new namespaces, whose loopback device it starts.

    Raises:
        OSError: The machine forbids it.
    """
    uid, gid = os.geteuid(), os.getegid()
    with_user = not _has_capability(_CAP_SYS_ADMIN)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET | (_CLONE_NEWUSER if with_user else 0)):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    if with_user:
        # The kernel lets an ordinary user map a group only if the process can no longer give up groups.
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            Path(f"/proc/self/{name}").write_text(text)
    with socket.socket() as any_socket:
        request = _INTERFACE_FLAGS.pack(b"lo", 0)
        _, flags = _INTERFACE_FLAGS.unpack(fcntl.ioctl(any_socket, _SIOCGIFFLAGS, request))
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, _INTERFACE_FLAGS.pack(b"lo", flags | _IFF_UP))
    if with_user:
        drop_capabilities()


def drop_capabilities() -> None:
    """Give up all capabilities, which a process has in a user namespace that it has made or entered."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = struct.pack("Ii", _CAPABILITY_VERSION_3, 0)
    if libc.capset(header, bytes(24)):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def find_obstacle() -> ClusterError | None:
    """Try in a child process whether a private network can be made here; return an error that names what forbids it.

    Raises:
        OSError: The child process cannot be forked.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            make_namespaces()
            os.write(writing, b"0")
        except OSError as error:
            os.write(writing, str(error.errno or errno.EPERM).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        result = pipe.read()
    os.waitpid(pid, 0)
    return None if result == b"0" else explain_failure(int(result or errno.EPERM))


def explain_failure(number: int) -> ClusterError:
    """Return the error for users that no private network can be made, for the error number of the kernel.

    It names the switch that forbids it.
    """
    what = "this machine does not let you make a private network for the cluster"
    for name, forbidding, allowing in _SWITCHES:
        with suppress(OSError):
            if Path("/proc/sys", *name.split(".")).read_text().strip() == forbidding:
                hint = f"An administrator of the machine allows it by `sudo sysctl -w {name}={allowing}`."
                return ClusterError(f"{what}: the switch {name} is {forbidding}", hint=f"{hint} {ALTERNATIVES}")
    if number == errno.ENOSPC:
        why = "as many namespaces exist as user.max_user_namespaces or user.max_net_namespaces allows"
        hint = "An administrator of the machine can raise these switches (sysctl)."
    elif number in (errno.EPERM, errno.EACCES) and _is_filtered():
        why = "a seccomp filter of this container, or of this session, forbids unshare()"
        hint = (
            "Run the container with a seccomp profile that allows namespaces, such as `docker run --security-opt "
            "seccomp=unconfined`. In a container that only you can enter, its own network is a private one already."
        )
    else:
        why = f"the kernel refuses a user namespace with a network ({os.strerror(number)})"
        hint = "It must be built with CONFIG_USER_NS and CONFIG_NET_NS, and no security module may forbid them."
    return ClusterError(f"{what}: {why}", hint=f"{hint} {ALTERNATIVES}")


def _has_capability(capability: int) -> bool:
    """Return whether this process has an effective capability."""
    return bool(int(_status_of_this_process()["CapEff"], 16) >> capability & 1)


def _is_filtered() -> bool:
    """Return whether system calls of this process pass a seccomp filter."""
    return _status_of_this_process().get("Seccomp", "0") != "0"


def _status_of_this_process() -> dict[str, str]:
    lines = Path("/proc/self/status").read_text(errors="replace").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
