"""Fetch the files that a run has written to $TFCLUSTER_OUTPUT, from all hosts that have some."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

from tfcluster import settings
from tfcluster.client.cluster import Cluster, unknown_cluster
from tfcluster.client.rpc.agent_client import AgentClient
from tfcluster.client.rpc.parallel import host_timeout, map_hosts, unreachable
from tfcluster.client.runs.code import IGNORE_FILE
from tfcluster.core.code import is_inside
from tfcluster.core.runs import find_run
from tfcluster.core.text import summarize_list
from tfcluster.errors import ClusterError, ExitCode, usage_error
from tfcluster.protocol.api.files import OutputFile, OutputsRequest, ReadOutputsRequest

_PART = ".tfcluster-part"
_NOT_CODE = "# Fetched by tfcluster: this folder is not sent to other hosts with a script.\n*\n"


@dataclass(frozen=True)
class HostOutputs:
    """The files that a run has written on one host."""

    host: str
    run: str
    files: Sequence[OutputFile]


@dataclass
class Fetched:
    """What has been fetched."""

    run: str
    folder: str  # where the files are now
    files: int = 0  # how many were copied
    bytes: int = 0  # their size
    unchanged: int = 0  # how many were there already


def find_outputs(cluster: Cluster, run: str) -> tuple[list[HostOutputs], ClusterError | None]:
    """List the files of a run on all hosts; the cluster may be down.

    `run` is an id, or a unique prefix of one. With the files of each host that knows the run comes an error that names
    the hosts that cannot be reached; None if all answered.
    """
    unknown: dict[str, ClusterError] = {}
    replies, errors = map_hosts(cluster.hosts, partial(_query, cluster, run, unknown), host_timeout(cluster))
    outputs = {host: reply for host, reply in replies.items() if reply is not None}
    problem = unreachable(cluster, errors) if errors else None
    if not outputs:
        raise problem or (next(iter(unknown.values())) if unknown else unknown_cluster(cluster.name))
    run_id = find_run(run, {reply.run for reply in outputs.values()})
    return [outputs[host] for host in cluster.hosts if host in outputs and outputs[host].run == run_id], problem


def _query(cluster: Cluster, run: str, unknown: dict[str, ClusterError], host: str) -> HostOutputs | None:
    """List the files of a run on one host; None, with the reason in `unknown`, if it does not know the run."""
    client = cluster.connect(host)
    if not client.transport.has_state():
        return None
    files: list[OutputFile] = []
    response = client.stream(OutputsRequest(run), start=True)
    try:
        for event in response:
            files += event.files
        run_id = response.result().run
        if not is_inside(run_id) or "/" in run_id:  # it becomes the name of a folder
            raise ClusterError(f"{host} has answered with a run that cannot exist: {run_id!r:.80}")
        return HostOutputs(host, run_id, files)
    except ClusterError as error:
        if error.exit_code is not ExitCode.USAGE:
            raise
        unknown[host] = error
        return None
    finally:
        response.close_and_reap()


def fetch(cluster: Cluster, outputs: HostOutputs, folder: Path, progress: Callable[[int], None]) -> Fetched:
    """Copy the files of a run on one host to a folder here; each one appears when all of it has arrived.

    Files that are there already, with the same size and time, are not copied again; others are replaced.

    The folder is created; then it is marked as no code, which is not sent to other hosts.
    `progress` is called with the number of bytes that have arrived in addition.
    """
    result = Fetched(outputs.run, str(folder))
    new = [file for file in outputs.files if not _has(folder, file)]
    result.unchanged = len(outputs.files) - len(new)
    client = cluster.connect(outputs.host)
    try:
        if not folder.exists():
            folder.mkdir(parents=True)
            (folder / IGNORE_FILE).write_text(_NOT_CODE)
        for file in new:
            if file.link is not None:
                path = _place_of(folder, file)
                path.parent.mkdir(parents=True, exist_ok=True)
                part = _part_of(path)
                part.unlink(missing_ok=True)
                part.symlink_to(file.link)
                part.replace(path)
                result.files += 1
        files = [file for file in new if file.link is None]
        for start in range(0, len(files), settings.CODE_FILES_PER_TURN):
            batch = files[start : start + settings.CODE_FILES_PER_TURN]
            _copy(client, outputs.run, folder, batch, result, progress)
    except OSError as error:
        raise ClusterError(f"{error.filename or folder}: cannot write it: {error.strerror}") from error
    return result


def _has(folder: Path, file: OutputFile) -> bool:
    """Return whether a file has been fetched before, and has not changed since."""
    path = _place_of(folder, file)
    try:
        if file.link is not None:
            return os.readlink(path) == file.link
        status = path.lstat()
    except OSError:
        return False
    return (status.st_size, status.st_mtime_ns) == (file.size, file.modified_ns)


def _place_of(folder: Path, file: OutputFile) -> Path:
    """Return where a file of a run is to be here, which is in the folder whatever links the run has made.

    A place that is not in the folder, or is below a symbolic link there, raises a ClusterError.
    """
    if not is_inside(file.path):
        raise ClusterError(f"{file.path!r:.80} is not the path of a file that a run has written")
    path = folder / file.path
    for parent in path.relative_to(folder).parents:
        if parent.name and (folder / parent).is_symlink():
            raise ClusterError(
                f"{folder / parent} is a symbolic link: nothing is written below it",
                hint="Remove it, or name another folder.",
            )
    return path


def reject_conflicts(outputs: HostOutputs, folder: Path) -> None:
    """Raise an error if copying the files to the folder would replace other files."""
    existing = [file.path for file in outputs.files if not _has(folder, file) and os.path.lexists(folder / file.path)]
    if existing:
        raise usage_error(
            f"{folder} has other files of the same names: {summarize_list(existing)}",
            "Name another folder, or replace them with --overwrite.",
        )


def _copy(
    client: AgentClient,
    run: str,
    folder: Path,
    batch: Sequence[OutputFile],
    result: Fetched,
    progress: Callable[[int], None],
) -> None:
    """Copy some files by one request."""
    files = {file.path: file for file in batch}
    response = client.stream(ReadOutputsRequest(run, tuple(files)), start=True)
    target: BinaryIO | None = None
    try:
        for block in response:
            if block.path not in files:
                raise ClusterError(f"a file arrived that was not requested: {block.path!r:.80}")
            path = folder / block.path
            if target is not None and target.name != str(_part_of(path)):
                raise ClusterError(f"a file arrived before the one before it was complete: {block.path!r:.80}")
            if target is None:
                _place_of(folder, files[block.path]).parent.mkdir(parents=True, exist_ok=True)
                _part_of(path).unlink(missing_ok=True)  # it may be a link, to anywhere
                target = open(_part_of(path), "xb")  # noqa: SIM115 - closed at the end of the file, or below
            if block.data:
                progress(target.write(base64.b64decode(block.data)))
                continue
            result.files += 1
            result.bytes += target.tell()
            target.close()
            _finish(path, files[block.path])
            target = None
    except (ValueError, OverflowError) as error:  # data, a time or the target of a link that is none
        raise ClusterError(f"the host sent a file that cannot be written: {error}") from error
    finally:
        if target is not None:
            target.close()
            Path(target.name).unlink(missing_ok=True)
        response.close_and_reap()


def _part_of(path: Path) -> Path:
    """Return where a file is as long as not all of it has arrived."""
    return path.with_name(f"{path.name[: settings.FETCH_NAME_CHARACTERS]}{_PART}")


def _finish(path: Path, file: OutputFile) -> None:
    """Put a file that has arrived into its place."""
    part = _part_of(path)
    os.utime(part, ns=(file.modified_ns, file.modified_ns))
    if file.is_executable:
        part.chmod(part.stat().st_mode | 0o111)
    part.replace(path)
