"""What the schema's models share: they are frozen, and their validators complain in words for the user."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

Seconds = Annotated[float, Field(gt=0, strict=True, allow_inf_nan=False)]


class FrozenModel(BaseModel):
    """A part of a spec: its values do not change, and it knows all of its keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


def validation_error(kind: Literal["found", "plain", "key"], message: str, hint: str = "") -> PydanticCustomError:
    """An error of a validator, to be rendered by messages.py.

    Args:
        kind: `found` has what was found instead added to it, `plain` stands as it is, `key` is about a key.
        message: What was expected, in words for the user.
        hint: What to write instead.
    """
    return PydanticCustomError(kind, "{message}", {"message": message, "hint": hint})


def matches(pattern: re.Pattern[str], kind: Literal["found", "key"], expected: str) -> Callable[[str], str]:
    """A validator of text that a pattern has to match whole.

    Args:
        pattern: The pattern.
        kind: That of the complaint.
        expected: What was expected, in words for the user.
    """

    def check(text: str) -> str:
        if not pattern.fullmatch(text):
            raise validation_error(kind, f"expected {expected}")
        return text

    return check
