"""The schema of `env:`: environment variables, whose values may be secret."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, StrictStr

from tfcluster.spec.base import FrozenModel, matches, validation_error


class Secret(FrozenModel):
    """The secret value of an environment variable, which is never displayed and never written to a journal."""

    secret: Annotated[StrictStr, Field(repr=False)]


def _text(value: Any) -> str:
    # No error message contains the value, because it may be a password.
    if isinstance(value, (bool, int, float)):
        raise validation_error("plain", "YAML does not read this value as text", "write it in quotes")
    if not isinstance(value, str):
        raise validation_error("plain", "expected text", "write it in quotes")
    if "\0" in value:
        raise validation_error("plain", "the value of an environment variable cannot hold a NUL character")
    return value


def _text_or_secret(value: Any) -> str | Secret:
    if isinstance(value, Secret):
        return value
    if not isinstance(value, dict):
        return _text(value)
    if value.keys() != {"secret"}:
        raise validation_error("plain", "expected text or {secret: TEXT}")
    return Secret(secret=_text(value["secret"]))


def _public(value: Any) -> str:
    if isinstance(value, dict):
        raise validation_error("plain", "a host has no secrets", "write it in the env: of the jobs that need it")
    return _text(value)


VariableName = Annotated[
    StrictStr,
    AfterValidator(
        matches(
            re.compile(r"[A-Za-z_][A-Za-z0-9_]*"),
            "key",
            "the name of a variable to be letters, digits and _, and not to start with a digit",
        )
    ),
]
#: The value of an environment variable of a job's tasks.
VariableValue = Annotated[StrictStr | Secret, BeforeValidator(_text_or_secret)]
#: The value of an environment variable of a host. It cannot be secret, because all properties of a host may be
#: displayed and are stored in files.
PublicValue = Annotated[StrictStr, BeforeValidator(_public)]
