"""The shared parts of the schema's models: base model, types of environment variables, helpers for validators."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    StrictStr,
    WithJsonSchema,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError
from pydantic_core.core_schema import no_info_after_validator_function

Seconds = Annotated[float, Field(gt=0, strict=True, allow_inf_nan=False)]


@dataclass(frozen=True)
class Key:
    """The text of docs/spec.md about a key; it is generated from these annotations of the models' fields."""

    type: str  # what to write, in words
    meaning: str  # what it is for
    example: str  # a value, in YAML
    default: str = ""  # in words; if empty, the default value of the field


class FrozenModel(BaseModel):
    """The base class of the schema's models: immutable, and unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


def validation_error(kind: Literal["expected", "complete", "key"], message: str, hint: str = "") -> PydanticCustomError:
    """Return the error for a validator to raise; load.py formats it.

    The message says what was expected. `expected` errors have the actual value appended, `complete` ones do not; a
    `key` error is about a key.
    """
    return PydanticCustomError(kind, "{message}", {"message": message, "hint": hint})


@dataclass(frozen=True)
class Matches:
    """The annotation of text that must match a pattern completely; see `validation_error` for the kind."""

    pattern: re.Pattern[str]
    kind: Literal["expected", "key"]
    expected: str

    def _check(self, text: str) -> str:
        if not self.pattern.fullmatch(text):
            raise validation_error(self.kind, f"expected {self.expected}")
        return text

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {**handler(schema), "pattern": whole(self.pattern)}


def whole(pattern: re.Pattern[str]) -> str:
    """Return the regular expression of a JSON schema for a text that matches a pattern completely."""
    return f"^(?:{pattern.pattern})$"


class Secret(FrozenModel):
    """The secret value of an environment variable, which is never displayed and never written to a journal."""

    secret: Annotated[StrictStr, Field(repr=False), Key("text", "The value, which no command shows.", "abc")]


def _text(value: Any) -> str:
    # No error message contains the value, because it may be a password.
    if isinstance(value, (bool, int, float)):
        raise validation_error("complete", "YAML does not read this value as text", "write it in quotes")
    if not isinstance(value, str):
        raise validation_error("complete", "expected text", "write it in quotes")
    if "\0" in value:
        raise validation_error("complete", "the value of an environment variable cannot hold a NUL character")
    return value


def _text_or_secret(value: Any) -> str | Secret:
    if isinstance(value, Secret):
        return value
    if not isinstance(value, dict):
        return _text(value)
    if value.keys() != {"secret"}:
        raise validation_error("complete", "expected text or {secret: TEXT}")
    return Secret(secret=_text(value["secret"]))


def _public(value: Any) -> str:
    if isinstance(value, dict):
        raise validation_error("complete", "a host has no secrets", "write it in the env: of the jobs that require it")
    return _text(value)


VariableName = Annotated[
    StrictStr,
    Matches(
        re.compile(r"[A-Za-z_][A-Za-z0-9_]*"),
        "key",
        "the name of a variable to be letters, digits and _, and not to start with a digit",
    ),
]
_SECRET = {
    "type": "object",
    "properties": {"secret": {"type": "string"}},
    "required": ["secret"],
    "additionalProperties": False,
}
_TEXT_OR_SECRET = {"anyOf": [{"type": "string"}, _SECRET]}
#: The value of an environment variable of a job's tasks.
VariableValue = Annotated[StrictStr | Secret, BeforeValidator(_text_or_secret), WithJsonSchema(_TEXT_OR_SECRET)]
#: The value of an environment variable of a host. It cannot be secret, because all properties of a host may be
#: displayed and are stored in files.
PublicValue = Annotated[StrictStr, BeforeValidator(_public)]
