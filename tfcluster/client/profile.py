"""Capture traces from the profilers of tasks on all their hosts, in the form that TensorBoard reads."""

from __future__ import annotations

import base64
import contextlib
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tfcluster import settings
from tfcluster.client.cluster import Cluster
from tfcluster.client.rpc.parallel import map_hosts, unreachable
from tfcluster.client.runs.locate import read_topology
from tfcluster.core.topology import matching_tasks
from tfcluster.errors import ClusterError
from tfcluster.protocol.api.processes import ProfileReply, ProfileRequest

# Where TensorBoard's profile plugin looks for traces, in a log folder.
_PLUGIN = Path("plugins", "profile")


@dataclass(frozen=True)
class Profile:
    """Traces of a moment."""

    folder: Path
    tasks: tuple[str, ...]  # short names of the tasks that have a trace, in the cluster's order
    idle: tuple[str, ...]  # short names of those on which nothing has run, so that they have none
    problem: ClusterError | None  # why other traces are missing; None if none is


def capture_profile(cluster: Cluster, names: Sequence[str], seconds: float, logdir: Path) -> Profile:
    """Capture the traces of tasks, all at the same time.

    Names are tasks or jobs; without names, it is all tasks.
    """
    hosts = {task.short: task.host for task in read_topology(cluster).tasks}
    tasks = matching_tasks(names, list(hosts))
    folder = logdir / _PLUGIN / time.strftime("%Y_%m_%d_%H_%M_%S")
    empty = [folder.parent, folder.parent.parent, *([] if logdir.exists() else [logdir])]
    partial = folder.with_name(f".{folder.name}")  # TensorBoard is to see all traces at once

    def capture(host: str) -> ProfileReply:
        own = tuple(task for task in tasks if hosts[task] == host)
        return _capture_on(cluster, host, ProfileRequest(own, seconds), partial)

    try:
        partial.mkdir(parents=True)
    except OSError as error:  # including that another command captures into this folder
        raise ClusterError(f"{partial}: cannot be made: {error.strerror}") from error
    try:
        replies, errors = map_hosts(dict.fromkeys(hosts[task] for task in tasks), capture, None)
        idle = {name for reply in replies.values() for name in reply.idle}
        failures = {name: why for reply in replies.values() for name, why in reply.failures.items()}
        traced = tuple(task for task in tasks if (partial / _name_of(task)).exists())
        problem = _describe(cluster, errors, failures)
        if not traced:
            raise problem or ClusterError(
                f"nothing ran on these tasks for {seconds:g} s, so there is no trace",
                hint="Capture while a run computes: `tfcluster run ... --detach` starts one, `tfcluster runs` lists "
                "them.",
            )
        partial.rename(folder)
    except OSError as error:
        raise ClusterError(f"{error.filename or folder}: cannot be written: {error.strerror}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        with contextlib.suppress(OSError):  # folders that this has made, if they stayed empty
            for each in empty:
                each.rmdir()
    return Profile(folder, traced, tuple(task for task in tasks if task in idle), problem)


def _capture_on(cluster: Cluster, host: str, request: ProfileRequest, folder: Path) -> ProfileReply:
    """Capture the traces of one host's tasks, and write them to files in a folder."""
    timeout = request.seconds + settings.PROFILE_COLLECT_SECONDS + settings.RPC_SLOW_TIMEOUT_SECONDS
    with contextlib.closing(cluster.connect(host).stream(request, timeout=timeout)) as response:
        for part in response:
            if part.task not in request.tasks or "/" in part.task:  # also the tasks' names are from hosts
                raise ClusterError(f"{host} sent a trace of {part.task!r:.80}, which was not requested")
            try:
                data = base64.b64decode(part.data)
            except ValueError as error:
                raise ClusterError(f"{host} sent a trace of {part.task} that cannot be decoded: {error}") from error
            with (folder / _name_of(part.task)).open("ab") as file:
                file.write(data)
        return response.result()


def _name_of(task: str) -> str:
    return f"{task.replace(':', '_')}.xplane.pb"


def _describe(cluster: Cluster, errors: dict[str, ClusterError], failures: dict[str, str]) -> ClusterError | None:
    """Return why traces are missing, of all hosts and tasks; None if none is."""
    away = unreachable(cluster, errors) if errors else None
    if not failures:
        return away
    lines = [f"there is no trace of {name}: {why}" for name, why in failures.items()]
    hint = "`tfcluster status` shows the tasks. A task has one profiler at a time."
    if away is None:
        return ClusterError("\n".join(lines), hint=hint)
    return ClusterError("\n".join([away.message, *lines]), hint=f"{away.hint} {hint}", exit_code=away.exit_code)
