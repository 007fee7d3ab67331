"""The methods about files: the code that a command sends, and what runs have written to $TFCLUSTER_OUTPUT."""

from __future__ import annotations

from tfcluster.protocol.api import Done, Request
from tfcluster.records import record_class


@record_class(frozen=True)
class CodeWanted:
    """What the host does not have, which the command is to send now."""

    # The digests of the contents, in the order in which they are to be sent, one right after the other.
    digests: tuple[str, ...]


@record_class(frozen=True)
class SendCodeRequest(Request[CodeWanted, Done], method="send-code", is_slow=True, changes=True):
    """Have the host get all files of a tree that it does not have; see `core/code.py`.

    The response has an event for the manifest, if the host does not have it, and one for the contents of files, if it
    lacks any. The reply says that the host has the whole tree.
    """

    tree: str  # the id of the tree: the digest of its manifest
    size: int  # the size of the manifest in bytes


@record_class(frozen=True)
class OutputFile:
    """A file or symbolic link that a run has written."""

    path: str  # the path in the run's folder of outputs. Bytes that are not UTF-8 are escaped, as `os.fsdecode` does
    size: int  # the size in bytes
    modified_ns: int  # when it was modified, in Unix nanoseconds
    is_executable: bool  # whether its owner may execute it
    link: str | None  # the target of a symbolic link; None for a file


@record_class(frozen=True)
class OutputFiles:
    """Some of the files that a run has written."""

    files: tuple[OutputFile, ...]  # the files


@record_class(frozen=True)
class OutputsReply:
    """The reply to `OutputsRequest`."""

    run: str  # the run's id


@record_class(frozen=True)
class OutputsRequest(Request[OutputFiles, OutputsReply], method="outputs"):
    """List the files that a run has written, even while it is running."""

    run: str  # the run's id, or a unique prefix of it


@record_class(frozen=True)
class OutputBlock:
    """A part of a file, or its end."""

    path: str  # the path of the file
    data: str  # the bytes in Base64; empty at the end of the file


@record_class(frozen=True)
class ReadOutputsRequest(Request[OutputBlock, Done], method="read-outputs"):
    """Send the contents of files that a run has written, one after the other."""

    run: str  # the run's id
    paths: tuple[str, ...]  # the paths of the files; one that does not exist any more is left out
