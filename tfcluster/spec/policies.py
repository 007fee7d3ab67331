"""The schema of `restart:`, which a job can override, of `logs:`, and of `notify:`."""

from __future__ import annotations

import re
from functools import partial
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    SerializerFunctionWrapHandler,
    StrictInt,
    StrictStr,
    WithJsonSchema,
    field_validator,
    model_serializer,
    model_validator,
)

from tfcluster import settings
from tfcluster.spec.base import FrozenModel, Key, Seconds, Secret, VariableValue, validation_error, whole

_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?) ?([kmgtKMGT]?)([iI]?)[bB]")
_LIMIT = re.compile(r"([0-9]{1,9}) in ([0-9]{1,9}(?:\.[0-9]{1,9})?)")


class Backoff(FrozenModel):
    """The exponential back-off before restarts, in seconds: it starts with `initial` and doubles up to `max`."""

    initial: Annotated[
        Seconds, Key("seconds", "The wait before the second restart; the first is immediate.", "0.5")
    ] = 0.1
    max: Annotated[Seconds, Key("seconds", "The longest wait.", "60")] = 30.0

    @model_validator(mode="after")
    def _in_order(self) -> Backoff:
        if self.max < self.initial:
            raise validation_error("complete", f"max ({self.max:g}) must be initial ({self.initial:g}) or more")
        return self


class Limit(FrozenModel):
    """The number of restarts within a number of seconds after which a task is failed; written `5 in 60`."""

    count: Annotated[StrictInt, Field(ge=1)] = 5
    seconds: Seconds = 60.0

    def __str__(self) -> str:
        return f"{self.count} in {self.seconds:.9f}".rstrip("0").rstrip(".")


def _limit(value: Any) -> Limit:
    if isinstance(value, Limit):
        return value
    match = _LIMIT.fullmatch(value) if isinstance(value, str) else None
    if match is None or not int(match[1]) or not float(match[2]):
        raise validation_error("expected", "expected a count and seconds such as 5 in 60")
    return Limit(count=int(match[1]), seconds=float(match[2]))


_Policy = Literal["never", "on-failure", "always"]
_WrittenLimit = Annotated[
    Limit,
    BeforeValidator(_limit),
    PlainSerializer(Limit.__str__),
    WithJsonSchema({"type": "string", "pattern": whole(_LIMIT)}),
]


class RestartSpec(FrozenModel):
    """The restart policy: when a task that exits is restarted."""

    policy: Annotated[
        _Policy,
        Key(
            "`never`, `on-failure` or `always`",
            "Which tasks that exit are restarted; a failure is an exit code other than 0, or a signal.",
            "always",
        ),
    ] = "on-failure"
    backoff: Annotated[
        Backoff,
        Key(
            "keys", "How long to wait before each restart: the wait doubles from one restart to the next.", "{max: 60}"
        ),
    ] = Backoff()
    limit: Annotated[
        _WrittenLimit,
        Key("`COUNT in SECONDS`", "With more restarts than that, the task has failed.", "3 in 600"),
    ] = Limit()


class _Overriding(FrozenModel):
    """The base class of overrides. A key that is omitted is None; the user cannot write a null."""

    @field_validator("*", mode="before")
    @classmethod
    def _written(cls, value: Any) -> Any:
        if value is None:
            raise validation_error("expected", "expected a value")
        return value

    @model_serializer(mode="wrap")
    def _without_left_out(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {key: value for key, value in serialize(self).items() if value is not None}


class JobBackoff(_Overriding):
    """A job's overrides of the back-off; the cluster's values apply to omitted keys."""

    initial: Seconds | None = None
    max: Seconds | None = None

    @model_validator(mode="after")
    def _in_order(self) -> JobBackoff:
        if self.initial is not None and self.max is not None:
            Backoff(initial=self.initial, max=self.max)
        return self


class JobRestart(_Overriding):
    """A job's overrides of the restart policy; the cluster's values apply to omitted keys."""

    policy: _Policy | None = None
    backoff: JobBackoff = JobBackoff()
    limit: _WrittenLimit | None = None

    def merged_with(self, cluster: RestartSpec) -> RestartSpec:
        """Merge the overrides with the cluster's policy; raises ValidationError if `max` is below `initial` then."""
        backoff = Backoff(
            initial=self.backoff.initial or cluster.backoff.initial, max=self.backoff.max or cluster.backoff.max
        )
        return RestartSpec(policy=self.policy or cluster.policy, backoff=backoff, limit=self.limit or cluster.limit)


def _size(value: Any, smallest: int = settings.LOG_FILE_MIN_BYTES, name: str = "1 kB") -> int:
    """Return the bytes of a size: a number, or text such as 10 MB or 1 GiB; `name` is the smallest size as text."""
    size = value
    if isinstance(value, str) and (match := _SIZE.fullmatch(value)) and (match[2] or not match[3]):
        # 1 kB is 1000 bytes, 1 KiB is 1024.
        size = round(float(match[1]) * (1024 if match[3] else 1000) ** ("", *"kmgt").index(match[2].lower()))
    if isinstance(size, bool) or not isinstance(size, int):
        raise validation_error("expected", "expected a size such as 10 MB, 1 GiB or 500 kB, or bytes")
    if not smallest <= size <= settings.LOG_FILE_MAX_BYTES:
        raise validation_error("expected", f"must be {name} or more" if size < smallest else "must be 1000 TB or less")
    return size


_SIZE_SCHEMA = WithJsonSchema({"type": ["integer", "string"], "minimum": 1, "pattern": whole(_SIZE)})
_OutputSize = Annotated[
    int, BeforeValidator(partial(_size, smallest=settings.RUN_OUTPUT_MIN_BYTES, name="1 MB")), _SIZE_SCHEMA
]


class Logs(FrozenModel):
    """The limits on the stored output of tasks and runs; sizes are in bytes."""

    size: Annotated[
        int,
        BeforeValidator(_size),
        _SIZE_SCHEMA,
        Key(
            "a size such as `500 kB` or `1 GiB`, or bytes", "The size of each file of a task's log.", "1 GiB", "`10 MB`"
        ),
    ] = settings.LOG_FILE_BYTES
    count: Annotated[
        StrictInt,
        Field(ge=1, le=1000),
        Key("1 to 1000", "How many files a task's log has; rotation deletes the oldest one.", "2"),
    ] = settings.LOG_FILES
    run: Annotated[
        _OutputSize,
        Key(
            "a size of 1 MB or more",
            "How much is stored of a run's output: its beginning and its end.",
            "1 GB",
            "`100 MB`",
        ),
    ] = settings.RUN_OUTPUT_BYTES
    runs: Annotated[
        _OutputSize,
        Key(
            "a size of 1 MB or more",
            "How much is stored of the output of all runs on a host; that of the oldest ended runs is removed first.",
            "10 GB",
            "`2 GB`",
        ),
    ] = settings.RUNS_OUTPUT_BYTES

    @model_validator(mode="after")
    def _in_order(self) -> Logs:
        if self.runs < self.run:
            raise validation_error(
                "complete", f"runs ({self.runs / 1e6:g} MB) must be run ({self.run / 1e6:g} MB) or more"
            )
        return self


def _url(value: str | Secret) -> str | Secret:
    """Check the URL of a webhook; no message contains it, as it may hold a password."""
    try:
        url = urlsplit(value.secret if isinstance(value, Secret) else value)
        is_valid = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:  # such as a port that is not a number
        is_valid = False
    if not is_valid:
        raise validation_error("complete", "expected a URL that begins with http:// or https://")
    return value


class NotifySpec(FrozenModel):
    """The receivers of notices."""

    webhook: Annotated[
        Annotated[VariableValue, AfterValidator(_url)] | None,
        Field(repr=False),
        Key(
            "a URL, or `{secret: URL}`",
            "Where each notice is sent by HTTP POST, as JSON. No command shows it, and no journal stores it.",
            "https://hooks.example.org/T0/B0",
            "none",
        ),
    ] = None
    command: Annotated[
        StrictStr | None,
        Key(
            "a shell command",
            "Runs for each notice, on the host where the notice occurs, with JSON as input.",
            "./notify.sh",
            "none",
        ),
    ] = None
    events: Annotated[
        tuple[Literal["task-failed", "host-away", "run-finished"], ...],
        Key(
            "a list",
            "The kinds of notices: `task-failed`, `host-away`, `run-finished`.",
            "[task-failed], command: ./notify.sh",
            "all",
        ),
    ] = ("task-failed", "host-away", "run-finished")

    @model_validator(mode="after")
    def _check_receiver(self) -> NotifySpec:
        if self.webhook is None and self.command is None:
            raise validation_error("complete", "expected a webhook or a command", "without one, no notice is sent")
        return self

    def url(self) -> str | None:
        """Return the URL of the webhook, in plain text."""
        return self.webhook.secret if isinstance(self.webhook, Secret) else self.webhook
