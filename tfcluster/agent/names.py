"""Names that the kernel holds for a process and lets go of with it: abstract Unix sockets, which are no files.

They belong to the network namespace, so nothing that happens to folders takes one away.
"""

from __future__ import annotations

import errno
import socket


def take(name: str) -> socket.socket | None:
    """A datagram socket by that name; None when a process has it, perhaps this one.

    Raises:
        OSError: For another reason than somebody having it.
    """
    held = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    held.setblocking(False)
    try:
        held.bind(_address(name))
    except OSError as error:
        held.close()
        if error.errno == errno.EADDRINUSE:
            return None
        raise
    return held


def call(name: str) -> None:
    """Send whoever has the name an empty datagram; nothing happens when they cannot take it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as caller:
        caller.setblocking(False)
        try:
            caller.sendto(b"", _address(name))
        except OSError:  # they have just gone, or are called enough already
            return


def _address(name: str) -> str:
    return f"\0tfcluster-{name}"
