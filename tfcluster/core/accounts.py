"""The other login accounts of a host, which can therefore connect to the ports reachable on its loopback device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class OtherAccounts:
    """The login accounts of a host other than the account that the cluster runs as.

    Attributes:
        user: The account that the cluster runs as on this host.
        count: The number of other accounts; at least one.
        names: The names of the first few other accounts.
    """

    user: str
    count: int
    names: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the accounts as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> OtherAccounts:
        """Return the accounts that `to_json` encoded."""
        return cls(value["user"], value["count"], tuple(value["names"]))
