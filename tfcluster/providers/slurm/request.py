"""The schema of `slurm:`, the allocation whose nodes are the hosts of a cluster; their names."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field, StrictInt, StrictStr

from tfcluster import settings
from tfcluster.providers.request import HostRequest
from tfcluster.spec.base import Key, Matches, validation_error
from tfcluster.spec.diagnostics import KeyPath
from tfcluster.spec.yaml_source import YamlDocument

_SLURM: KeyPath = ("slurm",)
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


class SlurmSpec(HostRequest):
    """The request for an allocation; in one that exists, only `nodes` counts."""

    key: ClassVar[str] = "slurm"
    noun: ClassVar[str] = "node"
    numbers: ClassVar[tuple[str, ...]] = ("nodes", "gpus", "grace")

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

    @classmethod
    def is_in(cls, source: YamlDocument) -> bool:
        """Return whether a spec requests nodes; `slurm:` without keys does, too."""
        return cls.key in source.value

    @classmethod
    def normalize(cls, source: YamlDocument, others: Iterable[str]) -> None:
        """Name the nodes as the hosts; problems go to the document."""
        value = source.value
        value[cls.key] = {} if value[cls.key] is None else value[cls.key]
        count = _node_count(value[cls.key], source)
        why = "each node has its own, which Slurm provides"
        if cls.name_hosts(source, count, others=others, fixed=_WAYS, why=why):
            value.setdefault("network", "private")  # an ordinary user has no capability for `closed`
            source.values["network",] = source.values.get(("network",), source.keys[_SLURM])


def _node_count(slurm: Any, source: YamlDocument) -> int | None:
    """Return the number of nodes; None if it is not valid."""
    written = slurm.get("nodes") if isinstance(slurm, dict) else None
    job = source.environment.allocation.get("SLURM_JOB_ID", "")
    allocated = source.environment.allocation.get("SLURM_JOB_NUM_NODES", "") if job.isdecimal() else ""
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
