"""The schema of a spec: frozen models, and the rules that each value has to keep."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    StrictInt,
    StrictStr,
    model_validator,
)

from tfcluster.places import CLUSTER_NAME, MAX_TASKS
from tfcluster.spec.basis import Frozen, complaint
from tfcluster.spec.logs import Logs
from tfcluster.spec.restart import JobRestart, Restart

_ADDRESS = re.compile(r"(\[[^\]]*\]|[^\s:\[\]]+)(?::([^:]*))?")
_NULL = object()  # stands for a null in a YAML list; None stands for a task whose address is chosen later


def _matches(pattern: str, kind: Literal["found", "key"], expected: str) -> AfterValidator:
    compiled = re.compile(pattern)

    def check(text: str) -> str:
        if not compiled.fullmatch(text):
            raise complaint(kind, f"expected {expected}")
        return text

    return AfterValidator(check)


def _environment_value(text: str) -> str:
    if "\0" in text:
        raise complaint("plain", "the value of an environment variable cannot hold a NUL character")
    return text


ClusterName = Annotated[
    StrictStr,
    _matches(
        CLUSTER_NAME.pattern,
        "found",
        "a name of at most 63 letters, digits, _, . and - that starts with a letter or digit",
    ),
]
JobName = Annotated[
    StrictStr,
    _matches(
        r"[A-Za-z][A-Za-z0-9_]*",
        "key",
        "the name of a job to be letters, digits and _, and to start with a letter",
    ),
]
VariableName = Annotated[
    StrictStr,
    _matches(
        r"[A-Za-z_][A-Za-z0-9_]*",
        "key",
        "the name of a variable to be letters, digits and _, and not to start with a digit",
    ),
]
VariableValue = Annotated[StrictStr, AfterValidator(_environment_value)]


def _local(host: str, port: str = "PORT") -> str:
    """The host, if it is this machine."""
    if host in ("localhost", "::1"):
        return host
    try:
        if ipaddress.IPv4Address(host).is_loopback:
            return host
    except ValueError:
        pass
    message = f"the task's address is not on this machine: {host!r}"
    raise complaint("plain", message, f"write localhost:{port}")


class Address(Frozen):
    """Where a task listens.

    Attributes:
        host: `localhost`, an address in 127.0.0.0/8, or `::1`.
        port: None when it is to be chosen.
    """

    host: Annotated[StrictStr, AfterValidator(_local)]
    port: Annotated[StrictInt, Field(ge=1, le=65535)] | None = None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Address:
        """The address that is written `localhost:2222`, or `localhost` when the port is to be chosen.

        Raises:
            PydanticCustomError: It is no address, or not one of this machine.
        """
        match = _ADDRESS.fullmatch(text)
        if match is None:
            raise complaint("found", "expected an address such as localhost:2222 or [::1]:2222")
        host, port = match[1].strip("[]"), match[2]
        number = int(port) if port and re.fullmatch("[0-9]{1,9}", port) else 0
        _local(host, str(number or "PORT"))
        if port is None:
            return cls(host=host)
        if not 1 <= number <= 65535:
            raise complaint("found", "expected a port from 1 to 65535")
        return cls(host=host, port=number)


def _address(item: Any) -> Address | None:
    if item is None or isinstance(item, Address):
        return item
    if isinstance(item, str):
        return Address.parse(item)
    hint = ""
    if isinstance(item, dict) and len(item) == 1:
        host, port = next(iter(item.items()))
        hint = f"write {host}:{port} without the space" if isinstance(port, int) else ""
    raise complaint("found", "expected an address such as localhost:2222", hint)


def _tasks(value: Any) -> Any:
    """Tell tasks apart from what they were written as: a number, or a list of addresses."""
    if isinstance(value, (list, tuple)):
        if not 1 <= len(value) <= MAX_TASKS:
            raise complaint("found", f"expected 1 to {MAX_TASKS} addresses")
        return value if isinstance(value, tuple) else tuple(_NULL if item is None else item for item in value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise complaint("found", "expected a whole number or a list of addresses")
    if not 1 <= value <= MAX_TASKS:
        raise complaint("found", "must be 1 or more" if value < 1 else f"must be {MAX_TASKS} or less")
    return (None,) * value


def _plain_tasks(tasks: tuple[Address | None, ...]) -> int | list[str]:
    if not any(tasks):
        return len(tasks)
    return [str(address or "localhost") for address in tasks]


class Job(Frozen):
    """The tasks of one job.

    Attributes:
        tasks: The address of each task; None where host and port are to be chosen.
        max: For so many tasks addresses are chosen and kept from the start; None for as many as there are.
        cpus: The logical CPU devices of each task.
        gpus: The GPUs of the host that each task has to itself.
        env: What is added to the environment of each task.
        restart: What it says of restarts instead of the cluster.
    """

    tasks: Annotated[
        tuple[Annotated[Address | None, BeforeValidator(_address)], ...],
        BeforeValidator(_tasks),
        PlainSerializer(_plain_tasks),
    ]
    max: Annotated[StrictInt, Field(ge=1, le=MAX_TASKS)] | None = None
    cpus: Annotated[StrictInt, Field(ge=1, le=256)] = 1
    gpus: Annotated[StrictInt, Field(ge=0)] = 0
    env: Mapping[VariableName, VariableValue] = Field(default_factory=dict)
    restart: JobRestart = JobRestart()

    @model_validator(mode="before")
    @classmethod
    def _from_list(cls, value: Any) -> Any:
        """Accept the notation of TensorFlow's ClusterSpec, a list of addresses."""
        if isinstance(value, (list, tuple)):
            return {"tasks": value}
        if isinstance(value, (dict, Job)):
            return value
        hint = f"write {{tasks: {value}}}" if type(value) is int else ""
        raise complaint("found", "expected keys such as tasks:, or a list of addresses", hint)

    @model_validator(mode="after")
    def _in_order(self) -> Job:
        if self.max is not None and self.max < len(self.tasks):
            raise complaint("plain", f"max ({self.max}) must be the number of tasks ({len(self.tasks)}) or more")
        return self


class Spec(Frozen):
    """What one cluster is to be. `Spec.model_validate(spec.model_dump())` equals `spec`.

    Attributes:
        name: The cluster's name, by which the commands find it.
        jobs: The jobs by name, in the order of the file.
        network: `closed`: the tasks can be reached from this machine only; `open`: from everywhere.
        restart: When a task that exits is started again; a job's own keys override it.
        logs: How much of what each task prints is kept.
    """

    name: ClusterName
    jobs: Annotated[Mapping[JobName, Job], Field(min_length=1)]
    network: Literal["closed", "open"] = "closed"
    restart: Restart = Restart()
    logs: Logs = Logs()

    def restart_of(self, job: Job) -> Restart:
        """When a task of one of the jobs is started again."""
        return job.restart.over(self.restart)
