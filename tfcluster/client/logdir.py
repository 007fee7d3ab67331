"""Find where the data for TensorBoard is: a folder here or on a host, or what a run writes to."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from tfcluster.client.cluster import Cluster
from tfcluster.client.environment import Place, request_environment
from tfcluster.client.runs.leader import locate_run
from tfcluster.client.runs.runs import list_runs
from tfcluster.core.runs import find_run, matching_runs
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.paths import LOCAL_HOST, state_folder
from tfcluster.protocol.api.runs import RunsRequest, RunSummary

# The options by which scripts name the folder for their summaries.
_OPTIONS = ("logdir", "log_dir", "tensorboard_dir", "summary_dir", "model_dir", "output_dir")


@dataclass(frozen=True)
class LogFolder:
    """Where data may be."""

    host: str  # LOCAL_HOST for this machine
    folders: tuple[str, ...]  # the log folder: the first of these that exists
    run_folder: str | None  # the run's own folder, which may have the data; None if it is not of a run
    name: str  # what the user asked for


def find_here(name: str) -> LogFolder | None:
    """Return the folder of a name if that is one on this machine, for which no cluster is needed; else None."""
    return LogFolder(LOCAL_HOST, (os.path.abspath(name),), None, name) if os.path.isdir(name) else None


def find_folders(cluster: Cluster, name: str | None) -> list[LogFolder]:
    """Return where the data of a name may be, in the order in which to look.

    A name is a run's id or a unique prefix of it, a path, or `HOST:PATH`; None means the latest run that names a
    folder, or else the latest run.
    """
    host, _, path = (name or "").partition(":")
    if path and host in cluster.hosts:
        return [LogFolder(host, (path,), None, str(name))]
    if name is not None and "/" in name:
        return [LogFolder(host, (name,), None, name) for host in cluster.hosts if host != LOCAL_HOST]
    run, host = _find_run(cluster, name)
    folder = os.path.join(_state_folder(cluster, host), "runs", run.run)
    named = tuple(named_folders(run.parameters, folder))
    return [LogFolder(host, named, folder, run.run)]


def _find_run(cluster: Cluster, name: str | None) -> tuple[RunSummary, str]:
    """Return a run, and the host that has its record."""
    if name is None:
        runs, _ = list_runs(cluster, None)
        if not runs:
            raise ClusterError(
                f"there is no run of {cluster.name}",
                hint="Name a folder: tfcluster tensorboard LOGDIR, or HOST:LOGDIR.",
                exit_code=ExitCode.USAGE,
            )
        name = str(next((run for run in reversed(runs) if any(named_folders(run["parameters"], ""))), runs[-1])["run"])
    leader, run_id = locate_run(cluster, name, start=True)
    summaries = {run.run: run for run in leader.connect_head().call(RunsRequest(None), start=True).runs}
    if not matching_runs(run_id, summaries):
        raise ClusterError(
            f"there is no folder and no run {name!r}",
            hint="`tfcluster runs` lists the runs. A folder on another host is HOST:LOGDIR.",
            exit_code=ExitCode.USAGE,
        )
    return summaries[find_run(run_id, summaries)], leader.head


def _state_folder(cluster: Cluster, host: str) -> str:
    if host == LOCAL_HOST:
        return str(state_folder(cluster.name))
    return request_environment(cluster, Place(host)).state


def named_folders(parameters: Mapping[str, Any], run_folder: str) -> Iterator[str]:
    """Yield the log folders that a run's parameters name.

    A script runs in `run_folder` if the user's folder does not exist on the host.
    """
    if isinstance(logdir := parameters.get("logdir"), str):
        yield logdir
    words = parameters.get("args")
    for option, value in _options_in([str(word) for word in words] if isinstance(words, list) else []):
        if "{" in value:  # each process of `launch` has a folder of its own: all of them are in this one
            value = os.path.dirname(value.partition("{")[0])
        if option in _OPTIONS and value:
            yield str(Path(str(parameters.get("cwd", "")), value))
            yield str(Path(run_folder, value))


def _options_in(words: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the options of a command line with their values, both `--name=value` and `--name value`."""
    for word, following in zip_longest(words, words[1:], fillvalue=""):
        if word.startswith("-"):
            name, equals, value = word.lstrip("-").partition("=")
            yield name.replace("-", "_"), value if equals else following
