"""What the schema's models share: they are frozen, and their validators complain in words for the user."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict
from pydantic_core import PydanticCustomError


class Frozen(BaseModel):
    """A part of a spec: its values do not change, and it knows all of its keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


def complaint(kind: Literal["found", "plain", "key"], message: str, hint: str = "") -> PydanticCustomError:
    """An error of a validator, to be rendered by messages.py.

    Args:
        kind: `found` has what was found instead added to it, `plain` stands as it is, `key` is about a key.
        message: What was expected, in words for the user.
        hint: What to write instead.
    """
    return PydanticCustomError(kind, "{message}", {"message": message, "hint": hint})
