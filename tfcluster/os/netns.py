"""Namespaces of the kernel for networks, which an ordinary user makes together with a user namespace."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from pathlib import Path

from tfcluster.os import libc, procfs

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
_CAP_SYS_ADMIN = 21
_CAPABILITY_VERSION_3 = 0x20080522
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1
_INTERFACE_FLAGS = struct.Struct("16sH14x")  # struct ifreq


def enter(fd: int, kind: int) -> None:
    """Have this thread enter a namespace by its descriptor and its kind, CLONE_…; raises OSError if it may not."""
    libc.call("setns", fd, kind)


def make_namespaces() -> None:
    """Move this process, which must have a single thread, into new namespaces with a loopback device; else OSError."""
    uid, gid = os.geteuid(), os.getegid()
    with_user = not _has_capability(_CAP_SYS_ADMIN)
    libc.call("unshare", CLONE_NEWNET | (CLONE_NEWUSER if with_user else 0))
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
    libc.call("capset", struct.pack("Ii", _CAPABILITY_VERSION_3, 0), bytes(24))


def _has_capability(capability: int) -> bool:
    return bool(int(procfs.read_status(os.getpid())["CapEff"], 16) >> capability & 1)
