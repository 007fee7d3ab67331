"""The other accounts of a host that can log in, and so connect to the ports that its loopback device reaches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class OtherAccounts:
    """Login accounts of a host besides the one that the cluster runs as.

    Attributes:
        user: The account that the cluster runs as there.
        count: How many others there are; at least one.
        names: The names of the first few of them.
    """

    user: str
    count: int
    names: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The accounts as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> OtherAccounts:
        """The accounts that `to_json` described."""
        return cls(value["user"], value["count"], tuple(value["names"]))
