"""A machine that forbids something, played for one command: `python -m tests.forbidden FUNCTION COMMAND...`.

The function has the kernel refuse it: `pidfd_getfd` as Docker does without CAP_SYS_PTRACE, `no_pidfd_getfd` and
`no_pidfd_open` as older kernels do. `switched` has a switch say why, in a mount namespace of its own.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tfcluster.os.bpf import instruction

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2
_SYS_UNSHARE, _SYS_IOCTL = {"x86_64": 272, "aarch64": 97}, {"x86_64": 16, "aarch64": 29}
_SIOCSIFFLAGS = 0x8914
_LOAD, _IF_EQUAL, _RETURN, _ALLOW, _ERRNO = 0x20, 0x15, 0x06, 0x7FFF0000, 0x00050000
_EPERM, _ENOSYS = 1, 38
_SYS_PIDFD_OPEN, _SYS_PIDFD_GETFD = 434, 438  # on every architecture
# A switch that this kernel does not have cannot be added to /proc/sys: another folder takes the place of that folder.
_FAKE = """
folder=/proc/sys/{folder}; fake=$(mktemp -d)
for file in $folder/*; do
  if [ -d $file ]; then mkdir $fake/${{file##*/}}; mount --bind $file $fake/${{file##*/}}
  else cat $file > $fake/${{file##*/}} 2>/dev/null || true; fi
done
echo {value} > $fake/{name}
chmod 755 $fake
mount --rbind $fake $folder
exec "$@"
"""


def forbid_unshare() -> None:
    """Have the kernel refuse unshare() to this process, as the default profile of Docker does."""
    deny(_SYS_UNSHARE[os.uname().machine], _EPERM)


def deny(number: int, error: int) -> None:
    """Have a system call of this process, and of those that it starts, fail with an errno."""
    _filter(
        instruction(_LOAD, 0),  # the number of the system call
        instruction(_IF_EQUAL, number, no=1),
        instruction(_RETURN, _ERRNO | error),
        instruction(_RETURN, _ALLOW),
    )


def withhold_capabilities() -> None:
    """Have the kernel refuse this process the start of a network device, as AppArmor does in a user namespace."""
    _filter(
        instruction(_LOAD, 0),
        instruction(_IF_EQUAL, _SYS_IOCTL[os.uname().machine], no=3),
        instruction(_LOAD, 24),  # the lower half of its second argument
        instruction(_IF_EQUAL, _SIOCSIFFLAGS, no=1),
        instruction(_RETURN, _ERRNO | _EPERM),
        instruction(_RETURN, _ALLOW),
    )


def _filter(*program: bytes) -> None:
    """Have the system calls of this process, and of those that it starts, pass a filter."""
    code = ctypes.create_string_buffer(b"".join(program))

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))

    libc = ctypes.CDLL(None)
    assert libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    filters = Program(len(program), ctypes.addressof(code))
    assert libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(filters), 0, 0) == 0


def switched(folder: Path, switch: str, value: str) -> tuple[str, ...]:
    """Return the beginning of a command line that runs a command, as root, on a machine whose switch has a value.

    Args:
        folder: A folder for the files that take the place of the kernel's.
        switch: The name of the switch, as sysctl has it.
        value: The value.
    """
    place, _, name = switch.rpartition(".")
    script = _FAKE.format(folder=place.replace(".", "/"), name=name, value=value)
    return ("unshare", "--mount", "env", f"TMPDIR={folder}", "sh", "-ec", script, "sh", "env", "-u", "TMPDIR")


REFUSALS: dict[str, Callable[[], None]] = {
    "forbid_unshare": forbid_unshare,
    "withhold_capabilities": withhold_capabilities,
    "pidfd_getfd": partial(deny, _SYS_PIDFD_GETFD, _EPERM),
    "no_pidfd_getfd": partial(deny, _SYS_PIDFD_GETFD, _ENOSYS),
    "no_pidfd_open": partial(deny, _SYS_PIDFD_OPEN, _ENOSYS),
}

if __name__ == "__main__":
    REFUSALS[sys.argv[1]]()
    os.execvp(sys.argv[2], sys.argv[2:])
