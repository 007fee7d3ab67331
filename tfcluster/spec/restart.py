"""The schema of `restart:`, the restart policy of the whole cluster and the overrides of a job."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    PlainSerializer,
    SerializerFunctionWrapHandler,
    StrictInt,
    field_validator,
    model_serializer,
    model_validator,
)

from tfcluster.spec.base import FrozenModel, Seconds, validation_error

_LIMIT = re.compile(r"([0-9]{1,9}) in ([0-9]{1,9}(?:\.[0-9]{1,9})?)")


class Backoff(FrozenModel):
    """The exponential back-off before restarts, in seconds: it starts with `initial` and doubles up to `max`."""

    initial: Seconds = 0.1
    max: Seconds = 30.0

    @model_validator(mode="after")
    def _in_order(self) -> Backoff:
        if self.max < self.initial:
            raise validation_error("plain", f"max ({self.max:g}) must be initial ({self.initial:g}) or more")
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
        raise validation_error("found", "expected a count and seconds such as 5 in 60")
    return Limit(count=int(match[1]), seconds=float(match[2]))


_Policy = Literal["never", "on-failure", "always"]
_WrittenLimit = Annotated[Limit, BeforeValidator(_limit), PlainSerializer(Limit.__str__)]


class Restart(FrozenModel):
    """The restart policy: when a task that exits is restarted.

    Attributes:
        policy: `never`, `on-failure` (killed, or an exit code other than 0), or `always`.
        backoff: The back-off before each restart.
        limit: The limit of restarts after which a task is failed.
    """

    policy: _Policy = "on-failure"
    backoff: Backoff = Backoff()
    limit: _WrittenLimit = Limit()


class _Overriding(FrozenModel):
    """The base class of overrides. A key that is omitted is None; the user cannot write a null."""

    @field_validator("*", mode="before")
    @classmethod
    def _written(cls, value: Any) -> Any:
        if value is None:
            raise validation_error("found", "expected a value")
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

    def over(self, cluster: Restart) -> Restart:
        """Merge the job's overrides with the cluster's restart policy.

        Args:
            cluster: The restart policy of the whole cluster.

        Returns:
            The effective restart policy of the job's tasks.

        Raises:
            ValidationError: One of `initial` and `max` comes from the job, the other one from the cluster, and `max` is
                less than `initial`.
        """
        backoff = Backoff(
            initial=self.backoff.initial or cluster.backoff.initial, max=self.backoff.max or cluster.backoff.max
        )
        return Restart(policy=self.policy or cluster.policy, backoff=backoff, limit=self.limit or cluster.limit)
