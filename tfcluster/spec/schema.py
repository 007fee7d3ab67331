"""The schema of a spec: frozen pydantic models and the validation rules of their values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    StrictBool,
    StrictInt,
    StrictStr,
    WithJsonSchema,
    model_validator,
)

from tfcluster import settings
from tfcluster.paths import CLUSTER_NAME, LOCAL_HOST
from tfcluster.providers.requests import Requests
from tfcluster.spec.base import (
    FrozenModel,
    Key,
    Matches,
    Seconds,
    Secret,
    VariableName,
    VariableValue,
    validation_error,
    whole,
)
from tfcluster.spec.hosts import LOCAL_ONLY, Hosts, HostSpec, host_for_address, is_loopback
from tfcluster.spec.policies import JobRestart, Logs, NotifySpec, RestartSpec

_ADDRESS = re.compile(r"(\[[^\]]*\]|[^\s:\[\]]+)(?::([^:]*))?")
_ADDRESSES = {
    "type": "array",
    "items": {"type": "string", "pattern": whole(_ADDRESS)},
    "minItems": 1,
    "maxItems": settings.MAX_TASKS,
}
_NULL = object()  # represents a null in a YAML list, because None represents a task whose address is chosen later

ClusterName = Annotated[
    StrictStr,
    Matches(
        CLUSTER_NAME,
        "expected",
        "a name of at most 63 letters, digits, _, . and - that starts with a letter or digit",
    ),
]
JobName = Annotated[
    StrictStr,
    Matches(
        re.compile(r"[A-Za-z][A-Za-z0-9_]*"),
        "key",
        "the name of a job to be letters, digits and _, and to start with a letter",
    ),
]


class Address(FrozenModel):
    """The address of a task as the user wrote it."""

    host: StrictStr  # the name of a host, or its address
    port: Annotated[StrictInt, Field(ge=1, le=65535)] | None = None  # the TCP port; None if it is to be chosen

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"

    def advertised_host(self, address: str) -> str:
        """Return the host part of the address that the other tasks connect to, given the address of the task's host.

        A machine has many loopback addresses. In a cluster on one machine, a task uses the loopback address that the
        user wrote.
        """
        return self.host if is_loopback(self.host) and is_loopback(address) else address

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parse an address such as `localhost:2222`, or `localhost` if the port is to be chosen."""
        match = _ADDRESS.fullmatch(text)
        if match is None:
            raise validation_error("expected", "expected an address such as localhost:2222 or [::1]:2222")
        host, port = match[1].strip("[]"), match[2]
        if port is None:
            return cls(host=host)
        number = int(port) if re.fullmatch("[0-9]{1,9}", port) else 0
        if not 1 <= number <= 65535:
            raise validation_error("expected", "expected a port from 1 to 65535")
        if port.startswith("0"):  # elsewhere in a spec, such a number is octal
            raise validation_error(
                "expected", "expected a port that does not begin with 0", f"write {match[1]}:{number}"
            )
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
    raise validation_error("expected", "expected an address such as localhost:2222", hint)


def _tasks(value: Any) -> Any:
    """Normalize `tasks`, a number or a list of addresses, to a tuple with one entry for each task."""
    if isinstance(value, (list, tuple)):
        if not 1 <= len(value) <= settings.MAX_TASKS:
            raise validation_error("expected", f"expected 1 to {settings.MAX_TASKS} addresses")
        return value if isinstance(value, tuple) else tuple(_NULL if item is None else item for item in value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise validation_error("expected", "expected a whole number or a list of addresses")
    if not 1 <= value <= settings.MAX_TASKS:
        raise validation_error(
            "expected", "must be 1 or more" if value < 1 else f"must be {settings.MAX_TASKS} or less"
        )
    return (None,) * value


def _plain_tasks(tasks: tuple[Address | None, ...]) -> int | list[str]:
    if not any(tasks):
        return len(tasks)
    return [str(address or "localhost") for address in tasks]


def _at_least_one(hosts: tuple[str, ...]) -> tuple[str, ...]:
    if not hosts:
        raise validation_error("expected", "must have at least one entry")
    return hosts


class Job(FrozenModel):
    """The tasks of one job.

    In `tasks`, None stands for a task whose host and port are to be chosen; elsewhere for the reference's default.
    """

    tasks: Annotated[
        tuple[Annotated[Address | None, BeforeValidator(_address)], ...],
        BeforeValidator(_tasks),
        PlainSerializer(_plain_tasks),
        WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1, "maximum": settings.MAX_TASKS}, _ADDRESSES]}),
        Key("1 to 1000, or a list of addresses", "How many tasks it has, or the address of each.", "2"),
    ]
    hosts: Annotated[
        Annotated[tuple[StrictStr, ...], AfterValidator(_at_least_one)] | None,
        Key("a list of hosts", "The hosts on which its tasks are placed in turn.", "[localhost]", "all hosts"),
    ] = None
    max: Annotated[
        Annotated[StrictInt, Field(ge=1, le=settings.MAX_TASKS)] | None,
        Key("1 to 1000", "How far it can grow without a restart of other tasks.", "8", "the number of its tasks"),
    ] = None
    cpus: Annotated[
        StrictInt, Field(ge=1, le=256), Key("1 to 256", "How many logical CPU devices each task has.", "2")
    ] = 1
    threads: Annotated[
        Annotated[StrictInt, Field(ge=1, le=1024)] | None,
        Key(
            "1 to 1024",
            "With how many threads each task computes: TensorFlow's pools of its server, and those of OpenMP and "
            "TensorFlow in its member of a launch.",
            "4",
            "all cores",
        ),
    ] = None
    gpus: Annotated[StrictInt, Field(ge=0), Key("0 or more", "How many GPUs each task has to itself.", "1")] = 0
    env: Annotated[
        Mapping[VariableName, VariableValue],
        Key(
            "names, and texts or `{secret: TEXT}`",
            "Environment variables of its tasks. No command shows a secret, and no journal stores it.",
            '{OMP_NUM_THREADS: "1", TOKEN: {secret: "abc"}}',
        ),
    ] = Field(default_factory=dict)
    restart: Annotated[
        JobRestart,
        Key("keys of `restart`", "What differs from the cluster's restart policy.", "{policy: never}", "none"),
    ] = JobRestart()

    @model_validator(mode="before")
    @classmethod
    def _from_list(cls, value: Any) -> Any:
        """Accept the notation of TensorFlow's ClusterSpec, a list of addresses."""
        if isinstance(value, (list, tuple)):
            return {"tasks": value}
        if isinstance(value, (dict, Job)):
            return value
        hint = f"write {{tasks: {value}}}" if type(value) is int else ""
        raise validation_error("expected", "expected keys such as tasks:, or a list of addresses", hint)

    @model_validator(mode="after")
    def _in_order(self) -> Job:
        if self.max is not None and self.max < len(self.tasks):
            raise validation_error(
                "complete", f"max ({self.max}) must be the number of tasks ({len(self.tasks)}) or more"
            )
        return self

    def variables(self) -> dict[str, str]:
        """Return the variables of each task, including the plain-text values of secrets."""
        return {name: value.secret if isinstance(value, Secret) else value for name, value in self.env.items()}

    def secrets(self) -> tuple[str, ...]:
        """Return the names of the variables whose values are secret."""
        return tuple(name for name, value in self.env.items() if isinstance(value, Secret))


class NamedHosts(FrozenModel):
    """The part of a spec that names its hosts."""

    name: Annotated[
        ClusterName,
        Key(
            "a name",
            "The name by which commands find the cluster.",
            "demo",
            "the folder's name for `cluster.yaml`, otherwise the file's",
        ),
    ]
    hosts: Annotated[
        Annotated[Hosts, Field(min_length=1)] | None,
        Key(
            "names and keys, or a list of names",
            "The machines on which tasks are placed in turn; `localhost` is this one.",
            "{alpha: {ssh: tf@alpha}}",
            "this machine",
        ),
    ] = None
    hostfile: Annotated[
        StrictStr | None,
        Key("a path", "A host list of MPI or DeepSpeed, instead of `hosts`.", "hosts.txt", "none"),
    ] = None


class Spec(Requests, NamedHosts):
    """The desired state of one cluster. `Spec.model_validate(spec.model_dump())` equals `spec`.

    `hostfile` and `host` are always None in a validated spec, whose hosts are in `hosts`.
    """

    host: Annotated[
        HostSpec | None,
        Key(
            "keys of a host",
            "Keys that apply to each node of `slurm`, or each pod of `kubernetes`.",
            "{python: /shared/tf/bin/python}",
            "none",
        ),
    ] = None
    jobs: Annotated[
        Mapping[JobName, Job],
        Field(min_length=1),
        Key("names and keys, or lists of addresses", "The jobs of the cluster.", "{worker: {tasks: 2}}"),
    ]
    network: Annotated[
        Literal["closed", "private", "open"],
        Key(
            "`closed`, `private` or `open`",
            "Who can connect to the tasks: every account of the cluster's hosts, only you, or everyone.",
            "private",
            "`closed`; with `slurm`, `private`",
        ),
    ] = "closed"
    restart: Annotated[RestartSpec, Key("keys", "When a task that exits is restarted.", "{policy: never}")] = (
        RestartSpec()
    )
    logs: Annotated[Logs, Key("keys", "How much of the output of tasks and runs is kept.", "{size: 1 GiB}")] = Logs()
    notify: Annotated[
        NotifySpec | None,
        Key("keys", "Where notices are sent.", "{webhook: https://hooks.example.org/T0}", "none"),
    ] = None
    warm: Annotated[
        StrictBool,
        Key(
            "`true` or `false`",
            "Whether an interpreter that has imported TensorFlow is kept ready for runs.",
            "false",
        ),
    ] = True
    lease: Annotated[
        Seconds | None,
        Key(
            "seconds",
            "How long a host waits without contact from any command before it stops its tasks.",
            "86400",
            "never",
        ),
    ] = None

    def addresses(self) -> dict[str, str]:
        """Return the address of each host, by name."""
        if self.hosts is None:
            return LOCAL_ONLY
        return {name: host.address or name for name, host in self.hosts.items()}

    def placement_hosts(self, job: Job) -> tuple[str, ...]:
        """Return the hosts of a job's tasks by index, wrapping around."""
        names = [name for name, host in (self.hosts or {LOCAL_HOST: HostSpec()}).items() for _ in range(host.slots)]
        if job.hosts is not None:
            names = [*job.hosts]
        elif any(job.tasks):
            addresses = self.addresses()
            named = (host_for_address(address.host, addresses) for address in job.tasks if address)
            names = [name for name in named if name is not None]
        return tuple(names[: 1 if len(set(names)) == 1 else settings.MAX_TASKS])

    def effective_restart(self, job: Job) -> RestartSpec:
        """Return the restart policy of a job's tasks."""
        return job.restart.merged_with(self.restart)
