"""The schema of `slurm:`, the allocation whose nodes are the hosts of a cluster; their names."""

from __future__ import annotations

import os
import re
from typing import Annotated, Any

from pydantic import AfterValidator, Field, StrictInt, StrictStr

from tfcluster import settings
from tfcluster.spec.base import FrozenModel, Key, Matches, validation_error
from tfcluster.spec.diagnostics import KeyPath
from tfcluster.spec.requested_hosts import name_hosts
from tfcluster.spec.yaml_source import YamlDocument

_SLURM: KeyPath = ("slurm",)
_HOST: KeyPath = ("host",)
# The keys of a host that are not for the nodes of an allocation, as the allocation says it.
_WAYS = ("address", "ssh", "connect", "tls_port")
_TIME = re.compile(r"[0-9]{1,4}-[0-9]{1,2}(:[0-9]{1,2}){0,2}|[0-9]{1,6}(:[0-9]{1,2}){1,2}")
_OPTION = re.compile(r"--?[A-Za-z][^\x00-\x1f\x7f]*")
# Options of sbatch that a key of `slurm:` replaces, or with which the job would not be one that commands can use.
_TAKEN = re.compile(
    r"(--(nodes|time|partition|gres|output|error|parsable|no-requeue|requeue|array|wait|wrap|test-only|signal)\b"
    r"|-[NtpoeaW]).*"
)


def _option(text: str) -> str:
    if not _OPTION.fullmatch(text):
        raise validation_error("expected", "expected an option of sbatch such as --account=physics")
    if _TAKEN.fullmatch(text):
        raise validation_error("complete", "tfcluster sets this option itself", "delete it, or use a key of slurm:")
    return text


class SlurmSpec(FrozenModel):
    """The request for an allocation; in one that exists, only `nodes` counts."""

    nodes: Annotated[
        Annotated[StrictInt, Field(ge=1, le=settings.MAX_TASKS)] | None,
        Key("1 to 1000", "How many nodes.", "4", "all of the current allocation, otherwise 1"),
    ] = None
    time: Annotated[
        Annotated[StrictStr, Matches(_TIME, "expected", 'a time such as "8:00:00" or "2-12:00:00"')] | None,
        Key("`HOURS:MINUTES:SECONDS` or `DAYS-HOURS:…`, in quotes", "The time limit.", '"8:00:00"', "the partition's"),
    ] = None
    partition: Annotated[
        Annotated[StrictStr, Matches(re.compile(r"[\w.,-]+"), "expected", "the name of a partition")] | None,
        Key("a name", "The partition.", "gpu", "Slurm's default"),
    ] = None
    gpus: Annotated[StrictInt, Field(ge=0), Key("0 or more", "How many GPUs on each node.", "2")] = 0
    options: Annotated[
        tuple[Annotated[StrictStr, AfterValidator(_option)], ...],
        Key("a list of options of sbatch", "What else to request.", '["--account=physics", "--cpus-per-task=8"]'),
    ] = ()
    grace: Annotated[
        StrictInt,
        Field(ge=0, le=3600),
        Key("0 to 3600 seconds", "How long before the time limit runs get SIGTERM.", "300"),
    ] = 120


def normalize_slurm(source: YamlDocument) -> None:
    """Name the nodes of `slurm:` as the hosts; problems go to the document."""
    value = source.value
    if "slurm" not in value:
        if value.get("host") is not None:
            source.report_key(_HOST, "it applies to each node of slurm:", "name the hosts under hosts:")
            source.broken.add(_HOST)
        return
    value["slurm"] = {} if value["slurm"] is None else value["slurm"]
    count = _node_count(value["slurm"], source)
    if name_hosts(source, "slurm", "node", count, _WAYS, "each node has its own, which Slurm provides"):
        value.setdefault("network", "private")  # an ordinary user has no capability for `closed`
        source.values["network",] = source.values.get(("network",), source.keys[_SLURM])


def _node_count(slurm: Any, source: YamlDocument) -> int | None:
    """Return the number of nodes; None if it is not valid."""
    written = slurm.get("nodes") if isinstance(slurm, dict) else None
    job = os.environ.get("SLURM_JOB_ID", "")
    allocated = os.environ.get("SLURM_JOB_NUM_NODES", "") if job.isdecimal() else ""
    available = int(allocated) if re.fullmatch("[1-9][0-9]{0,3}", allocated) else None
    if written is None:
        return available or 1
    if type(written) is not int or not 1 <= written <= settings.MAX_TASKS:
        return None
    if available is not None and written > available:
        path: KeyPath = (*_SLURM, "nodes")
        message = f"Slurm job {job}, which SLURM_JOB_ID names, has {available}"
        hint = "`env -u SLURM_JOB_ID tfcluster up` submits another job"
        source.problems.append(source.problem(path, message, hint, source.values[path]))
    return written
