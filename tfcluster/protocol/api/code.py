"""The method of an agent by which a command sends code to its host; runs then name the tree by its id."""

from __future__ import annotations

from dataclasses import dataclass

from tfcluster.protocol.api import Done, Method, Request


@dataclass(frozen=True)
class CodeWanted:
    """What the host does not have, which the command is to send now.

    Attributes:
        digests: The digests of the contents, in the order in which they are to be sent, one right after the other.
    """

    digests: tuple[str, ...]


@dataclass(frozen=True)
class SendCodeRequest(Request[CodeWanted, Done], method=Method.SEND_CODE, is_slow=True, changes=True):
    """Have the host get all files of a tree that it does not have; see `core/code.py`.

    The response has an event for the manifest, if the host does not have it, and one for the contents of files, if it
    lacks any. The reply says that the host has the whole tree.

    Attributes:
        tree: The id of the tree: the digest of its manifest.
        size: The size of the manifest in bytes.
    """

    tree: str
    size: int
