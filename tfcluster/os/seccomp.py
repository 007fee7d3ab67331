"""Trap the system call listen() of this process and its children by seccomp user notification, seccomp_unotify(2).

From listen() on, a port accepts connections. A supervisor that restricts which machines can connect has to act before
that, and executes listen() itself: if the kernel continued the call of the program, another thread of the program could
meanwhile give the descriptor to another socket. What would evade the trap or undo the restriction is refused: io_uring,
which can listen from Linux 6.11 on, and the options by which root binds a socket to another device, or to none.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import socket
import struct
from dataclasses import dataclass

from tfcluster.os import bpf
from tfcluster.os.bpf import JUMP_IF_EQUAL, JUMP_IF_NOT_BELOW, LOAD_WORD, RETURN

# From linux/seccomp.h.
_SET_MODE_FILTER = 1
_FLAG_SPEC_ALLOW, _FLAG_NEW_LISTENER = 1 << 2, 1 << 3
_RET_KILL_PROCESS, _RET_ERRNO, _RET_USER_NOTIF, _RET_ALLOW = 0x80000000, 0x50000, 0x7FC00000, 0x7FFF0000
_PR_SET_NO_NEW_PRIVS = 38
# struct seccomp_notif: id, pid, flags, and struct seccomp_data: nr, arch, instruction_pointer, args[6].
_NOTIF = struct.Struct("=QII iIQ 6Q")
# struct seccomp_notif_resp: id, val, error, flags.
_RESPONSE = struct.Struct("=QqiI")
_IOCTL_RECEIVE = 3 << 30 | _NOTIF.size << 16 | ord("!") << 8 | 0
_IOCTL_SEND = 3 << 30 | _RESPONSE.size << 16 | ord("!") << 8 | 1
_IOCTL_ID_VALID = 1 << 30 | 8 << 16 | ord("!") << 8 | 2
# Offsets in struct seccomp_data; of arguments, the lower half, as listen() and setsockopt() take 32-bit integers.
_NR, _ARCH, _LEVEL, _OPTION = 0, 4, 24, 32
_SO_BINDTODEVICE, _SO_BINDTOIFINDEX = 25, 62  # from asm-generic/socket.h
_IO_URING_SETUP = 425  # on every architecture
# x32 programs use the system call numbers of x86-64 with this bit set.
_X32_BIT = 0x40000000


@dataclass(frozen=True)
class _Architecture:
    audit: int  # the constant AUDIT_ARCH_*, by which a filter recognises the architecture
    seccomp: int  # the number of the system call seccomp()
    listen: int  # the number of the system call listen()
    setsockopt: int  # the number of the system call setsockopt()


# The architectures that TensorFlow is built for on Linux, as platform.machine() returns them.
_ARCHITECTURES = {
    "x86_64": _Architecture(audit=0xC000003E, seccomp=317, listen=50, setsockopt=54),
    "aarch64": _Architecture(audit=0xC00000B7, seccomp=277, listen=201, setsockopt=208),
}


class SeccompError(Exception):
    """The kernel refuses a trap; the message says why."""


@dataclass(frozen=True)
class Notification:
    """A trapped call of listen() that waits for an answer."""

    id: int  # the kernel's id of the call
    tid: int  # the thread that called listen()
    fd: int  # the descriptor that it passed
    backlog: int


def trap_listen() -> int:
    """Trap listen() in the calling thread, and in all threads and processes that it starts from now on.

    The trap cannot be removed. Without CAP_SYS_ADMIN the kernel requires PR_SET_NO_NEW_PRIVS first, which keeps
    programs such as sudo from gaining privileges. Raises SeccompError if the kernel refuses.

    Returns a descriptor, closed on exec, from which `receive` reads the calls. After its last duplicate is closed,
    listen() fails with ENOSYS.
    """
    architecture = _architecture()
    instructions = b"".join(_program(architecture))
    code = ctypes.create_string_buffer(instructions, len(instructions))
    program = struct.pack("HP", len(instructions) // 8, ctypes.addressof(code))
    # Without SPEC_ALLOW, kernels before 5.16 restrict speculative execution, which slows the whole process down.
    flags = _FLAG_NEW_LISTENER | _FLAG_SPEC_ALLOW
    libc = ctypes.CDLL(None, use_errno=True)

    def install() -> int:
        return int(libc.syscall(architecture.seccomp, _SET_MODE_FILTER, flags, program))

    fd = install()
    if fd < 0 and ctypes.get_errno() == errno.EACCES:
        libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        fd = install()
    if fd < 0:
        raise SeccompError(_explain(ctypes.get_errno()))
    return fd


def receive(listener: int) -> Notification | None:
    """Wait for a call of listen(); return None if its caller was killed or interrupted, or this thread was.

    Raises OSError if all threads with the trap have exited.
    """
    notification = bytearray(_NOTIF.size)
    try:
        fcntl.ioctl(listener, _IOCTL_RECEIVE, notification)
    except (FileNotFoundError, InterruptedError):  # before Linux 6.6, SIGSTOP and SIGCONT too interrupt the wait
        return None
    identity, tid, _, _, _, _, fd, backlog, *_ = _NOTIF.unpack(notification)
    return Notification(identity, tid, fd & 0xFFFFFFFF, backlog & 0xFFFFFFFF)


def is_waiting(listener: int, notification: Notification) -> bool:
    """Return whether a caller is still waiting; if it is, its tid has not been reused for another thread."""
    try:
        fcntl.ioctl(listener, _IOCTL_ID_VALID, struct.pack("=Q", notification.id))
    except OSError:
        return False
    return True


def answer(listener: int, notification: Notification, error: int = 0) -> None:
    """Have a trapped call succeed without executing it, or fail with an errno; no effect if the caller has exited."""
    try:
        fcntl.ioctl(listener, _IOCTL_SEND, _RESPONSE.pack(notification.id, 0, -error, 0))
    except FileNotFoundError:
        return


def _architecture() -> _Architecture:
    try:
        return _ARCHITECTURES[platform.machine()]
    except KeyError:
        raise SeccompError(f"system calls of {platform.machine()} are not known to tfcluster") from None


def _program(architecture: _Architecture) -> list[bytes]:
    """Return a filter, one item per instruction.

    It traps listen(), kills callers of another architecture, refuses what would evade the trap or undo a restriction,
    and allows all other calls.
    """
    return [
        bpf.instruction(LOAD_WORD, _ARCH),
        bpf.instruction(JUMP_IF_EQUAL, architecture.audit, yes=1),
        bpf.instruction(RETURN, _RET_KILL_PROCESS),  # a 32-bit program, whose listen() has another number
        bpf.instruction(LOAD_WORD, _NR),
        bpf.instruction(JUMP_IF_NOT_BELOW, _X32_BIT, no=1),
        bpf.instruction(RETURN, _RET_KILL_PROCESS),
        bpf.instruction(JUMP_IF_EQUAL, architecture.listen, no=1),
        bpf.instruction(RETURN, _RET_USER_NOTIF),
        bpf.instruction(JUMP_IF_EQUAL, _IO_URING_SETUP, no=1),
        bpf.instruction(RETURN, _RET_ERRNO | errno.ENOSYS),  # programs then use other calls, as on older kernels
        bpf.instruction(JUMP_IF_EQUAL, architecture.setsockopt, no=6),
        bpf.instruction(LOAD_WORD, _LEVEL),
        bpf.instruction(JUMP_IF_EQUAL, socket.SOL_SOCKET, no=4),
        bpf.instruction(LOAD_WORD, _OPTION),
        bpf.instruction(JUMP_IF_EQUAL, _SO_BINDTODEVICE, yes=1),
        bpf.instruction(JUMP_IF_EQUAL, _SO_BINDTOIFINDEX, no=1),
        bpf.instruction(RETURN, _RET_ERRNO | errno.EPERM),
        bpf.instruction(RETURN, _RET_ALLOW),
    ]


def _explain(number: int) -> str:
    if number == errno.EBUSY:
        return "another program (such as a container manager) traps system calls of this process already"
    if number in (errno.ENOSYS, errno.EINVAL):
        return "this kernel has no seccomp user notification, which came with Linux 5.0"
    return f"the kernel refused a seccomp filter ({os.strerror(number)})"
