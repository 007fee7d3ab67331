"""The machines of a cluster: how each is called, dialled and reached."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tfcluster.paths import LOCAL_HOST


@dataclass(frozen=True)
class Host:
    """A machine that tasks run on.

    Attributes:
        name: What the spec calls it; `localhost` is the machine that the command runs on, and no other is.
        address: What the other hosts dial to reach its tasks: a name or an IP address.
        ssh: Its destination as ssh takes it, as `user@name` or a name of ~/.ssh/config; None for this machine.
        python: The Python that has TensorFlow there; None for the one that runs this command.
        state: The folder there for the state of all clusters; None for $XDG_STATE_HOME/tfcluster.
        env: What is added to the environment of the agent there, and so of the tasks.
        setup: Shell commands that are run there once, before anything else.
    """

    name: str
    address: str
    ssh: str | None = None
    python: str | None = None
    state: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    setup: tuple[str, ...] = ()

    @property
    def destination(self) -> str:
        """The host as ssh is told it."""
        return self.ssh or self.name

    @property
    def interpreter(self) -> str:
        """The Python that is run there."""
        return self.python or "python3"

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Host:
        """The host that `asdict` described."""
        return cls(**{**value, "setup": tuple(value["setup"])})


#: The one host of a cluster whose spec names none: its tasks are dialled, and can be, from this machine alone.
THIS_MACHINE = Host(LOCAL_HOST, LOCAL_HOST)
