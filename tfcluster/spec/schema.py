"""The schema of a spec: frozen models, and the rules that each value has to keep."""

from __future__ import annotations

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

from tfcluster.paths import CLUSTER_NAME, LOCAL_HOST, MAX_TASKS
from tfcluster.spec.base import FrozenModel, Seconds, matches, validation_error
from tfcluster.spec.environment import Secret, VariableName, VariableValue
from tfcluster.spec.hosts import LOCAL_ONLY, Host, Hosts, host_of, is_loopback
from tfcluster.spec.logs import Logs
from tfcluster.spec.restart import JobRestart, Restart

_ADDRESS = re.compile(r"(\[[^\]]*\]|[^\s:\[\]]+)(?::([^:]*))?")
_NULL = object()  # stands for a null in a YAML list; None stands for a task whose address is chosen later

ClusterName = Annotated[
    StrictStr,
    AfterValidator(
        matches(
            CLUSTER_NAME,
            "found",
            "a name of at most 63 letters, digits, _, . and - that starts with a letter or digit",
        )
    ),
]
JobName = Annotated[
    StrictStr,
    AfterValidator(
        matches(
            re.compile(r"[A-Za-z][A-Za-z0-9_]*"),
            "key",
            "the name of a job to be letters, digits and _, and to start with a letter",
        )
    ),
]


class Address(FrozenModel):
    """Where a task listens.

    Attributes:
        host: The name of a host, or its address.
        port: None when it is to be chosen.
    """

    host: StrictStr
    port: Annotated[StrictInt, Field(ge=1, le=65535)] | None = None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"

    def dialled(self, address: str) -> str:
        """The host part that others dial, for a task on the host of an address.

        A machine alone has many addresses that lead to itself, and a task there has the one that is written.
        """
        return self.host if is_loopback(self.host) and is_loopback(address) else address

    @classmethod
    def parse(cls, text: str) -> Address:
        """The address that is written `localhost:2222`, or `localhost` when the port is to be chosen.

        Raises:
            PydanticCustomError: It is no address.
        """
        match = _ADDRESS.fullmatch(text)
        if match is None:
            raise validation_error("found", "expected an address such as localhost:2222 or [::1]:2222")
        host, port = match[1].strip("[]"), match[2]
        if port is None:
            return cls(host=host)
        number = int(port) if re.fullmatch("[0-9]{1,9}", port) else 0
        if not 1 <= number <= 65535:
            raise validation_error("found", "expected a port from 1 to 65535")
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
    raise validation_error("found", "expected an address such as localhost:2222", hint)


def _tasks(value: Any) -> Any:
    """Tell tasks apart from what they were written as: a number, or a list of addresses."""
    if isinstance(value, (list, tuple)):
        if not 1 <= len(value) <= MAX_TASKS:
            raise validation_error("found", f"expected 1 to {MAX_TASKS} addresses")
        return value if isinstance(value, tuple) else tuple(_NULL if item is None else item for item in value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise validation_error("found", "expected a whole number or a list of addresses")
    if not 1 <= value <= MAX_TASKS:
        raise validation_error("found", "must be 1 or more" if value < 1 else f"must be {MAX_TASKS} or less")
    return (None,) * value


def _plain_tasks(tasks: tuple[Address | None, ...]) -> int | list[str]:
    if not any(tasks):
        return len(tasks)
    return [str(address or "localhost") for address in tasks]


def _at_least_one(hosts: tuple[str, ...]) -> tuple[str, ...]:
    if not hosts:
        raise validation_error("found", "must have at least one entry")
    return hosts


class Job(FrozenModel):
    """The tasks of one job.

    Attributes:
        tasks: The address of each task; None where host and port are to be chosen.
        hosts: The hosts that its tasks go on in turn, by name; None for all of them.
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
    hosts: Annotated[tuple[StrictStr, ...], AfterValidator(_at_least_one)] | None = None
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
        raise validation_error("found", "expected keys such as tasks:, or a list of addresses", hint)

    @model_validator(mode="after")
    def _in_order(self) -> Job:
        if self.max is not None and self.max < len(self.tasks):
            raise validation_error("plain", f"max ({self.max}) must be the number of tasks ({len(self.tasks)}) or more")
        return self

    def variables(self) -> dict[str, str]:
        """What is added to the environment of each task; secrets as plain as the rest."""
        return {name: value.secret if isinstance(value, Secret) else value for name, value in self.env.items()}

    def secrets(self) -> tuple[str, ...]:
        """The names of the variables whose values are secret."""
        return tuple(name for name, value in self.env.items() if isinstance(value, Secret))


class Spec(FrozenModel):
    """What one cluster is to be. `Spec.model_validate(spec.model_dump())` equals `spec`.

    Attributes:
        name: The cluster's name, by which the commands find it.
        hosts: The hosts by name, in the order of the file; None for this machine.
        hostfile: A file that names the hosts instead; None in a spec that was read, which has them in `hosts`.
        jobs: The jobs by name, in the order of the file.
        network: `closed`: the tasks can be reached from the cluster's hosts only; `open`: from everywhere.
        restart: When a task that exits is started again; a job's own keys override it.
        logs: How much of what each task prints is kept.
        lease: A host that no command has reached for so many seconds takes its part down; None for never.
    """

    name: ClusterName
    hosts: Annotated[Hosts, Field(min_length=1)] | None = None
    hostfile: StrictStr | None = None
    jobs: Annotated[Mapping[JobName, Job], Field(min_length=1)]
    network: Literal["closed", "open"] = "closed"
    restart: Restart = Restart()
    logs: Logs = Logs()
    lease: Seconds | None = None

    def addresses(self) -> dict[str, str]:
        """The address of each host, by name."""
        if self.hosts is None:
            return LOCAL_ONLY
        return {name: host.address or name for name, host in self.hosts.items()}

    def spread_of(self, job: Job) -> tuple[str, ...]:
        """The hosts that the tasks of one of the jobs go on, by index; after the last one comes the first one again."""
        names = [name for name, host in (self.hosts or {LOCAL_HOST: Host()}).items() for _ in range(host.slots)]
        if job.hosts is not None:
            names = [*job.hosts]
        elif any(job.tasks):
            addresses = self.addresses()
            named = (host_of(address.host, addresses) for address in job.tasks if address)
            names = [name for name in named if name is not None]
        return tuple(names[: 1 if len(set(names)) == 1 else MAX_TASKS])

    def restart_of(self, job: Job) -> Restart:
        """When a task of one of the jobs is started again."""
        return job.restart.over(self.restart)
