"""The base model of the schema (frozen, no extra keys), and helpers for validators with user-facing error messages."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

Seconds = Annotated[float, Field(gt=0, strict=True, allow_inf_nan=False)]


class FrozenModel(BaseModel):
    """The base class of the schema's models: immutable, and unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


def validation_error(kind: Literal["found", "plain", "key"], message: str, hint: str = "") -> PydanticCustomError:
    """Return the error for a validator to raise; error_messages.py formats it.

    Args:
        kind: `found` if the actual value is to be appended to the message, `plain` if the message is complete, `key` if
            the message is about a key.
        message: What was expected, in words for the user.
        hint: What to write instead.
    """
    return PydanticCustomError(kind, "{message}", {"message": message, "hint": hint})


def matches(pattern: re.Pattern[str], kind: Literal["found", "key"], expected: str) -> Callable[[str], str]:
    """Return a validator of text that must match a pattern completely.

    Args:
        pattern: The pattern.
        kind: The kind of the validation error, as in `validation_error`.
        expected: What was expected, in words for the user.
    """

    def check(text: str) -> str:
        if not pattern.fullmatch(text):
            raise validation_error(kind, f"expected {expected}")
        return text

    return check
