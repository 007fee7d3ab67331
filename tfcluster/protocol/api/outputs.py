"""The methods of an agent by which a command fetches the files that runs have written to $TFCLUSTER_OUTPUT."""

from __future__ import annotations

from dataclasses import dataclass

from tfcluster.protocol.api import Done, Method, Request


@dataclass(frozen=True)
class OutputFile:
    """A file or symbolic link that a run has written.

    Attributes:
        path: The path in the run's folder of outputs. Bytes that are not UTF-8 are escaped, as `os.fsdecode` does.
        size: The size in bytes.
        modified_ns: When it was modified, in Unix nanoseconds.
        is_executable: Whether its owner may execute it.
        link: The target of a symbolic link; None for a file.
    """

    path: str
    size: int
    modified_ns: int
    is_executable: bool
    link: str | None


@dataclass(frozen=True)
class OutputFiles:
    """Some of the files that a run has written.

    Attributes:
        files: The files.
    """

    files: tuple[OutputFile, ...]


@dataclass(frozen=True)
class OutputsReply:
    """The reply to `OutputsRequest`.

    Attributes:
        run: The run's id.
    """

    run: str


@dataclass(frozen=True)
class OutputsRequest(Request[OutputFiles, OutputsReply], method=Method.OUTPUTS):
    """List the files that a run has written, even while it is running.

    Attributes:
        run: The run's id, or a unique prefix of it.
    """

    run: str


@dataclass(frozen=True)
class OutputBlock:
    """A part of a file, or its end.

    Attributes:
        path: The path of the file.
        data: The bytes in Base64; empty at the end of the file.
    """

    path: str
    data: str


@dataclass(frozen=True)
class ReadOutputsRequest(Request[OutputBlock, Done], method=Method.READ_OUTPUTS):
    """Send the contents of files that a run has written, one after the other.

    Attributes:
        run: The run's id.
        paths: The paths of the files; one that does not exist any more is left out.
    """

    run: str
    paths: tuple[str, ...]
