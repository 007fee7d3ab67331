"""The values of secret environment variables, which the journal must not hold: a file of their own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from tfcluster.agent.atomic_file import AtomicFiles
from tfcluster.core.topology import ClusterTopology, Task

Values = Mapping[str, Mapping[str, str]]


class SecretStore:
    """Takes the values out of a topology and puts them in again.

    The file is beside the agent's socket, in a folder that only this user can enter. Where XDG_RUNTIME_DIR names the
    place that folder is in memory, and the file goes with the machine's.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files = AtomicFiles()
        self._written = b""
        # The values of the topologies that the journal has, by their generations.
        self._journaled: dict[str, dict[str, dict[str, str]]] = {}

    def hidden(self, topology: ClusterTopology, following: ClusterTopology | None = None) -> ClusterTopology:
        """A topology without the values, which are in the file when this returns.

        Args:
            topology: The topology.
            following: The one that is to replace it, whose values are in the file too.

        Raises:
            OSError: The file cannot be written; it is as it was.
        """
        topologies = [topology] if following is None else [topology, following]
        values = {str(each.generation): _values_of(each) for each in topologies if _has_secrets(each)}
        if not values and not self._journaled:
            self.forget()
            return topology
        # The journal still has the topology of before, and keeps it if this agent dies before it writes the new one.
        data = json.dumps({**self._journaled, **values}).encode()
        if data != self._written or not self.path.exists():
            new = self.path.with_name(f"{self.path.name}.new")
            try:
                self._files.write(new, data, durable=False)
                self._files.replace(new, self.path)
            except OSError:
                with suppress(OSError):
                    self._files.unlink(new)
                raise
            self._written = data
        self._journaled = values
        return without_values(topology)

    def is_missing_for(self, topology: ClusterTopology) -> bool:
        """Whether a topology has secret values, and there is no file with them."""
        return _has_secrets(topology) and not self.path.exists()

    def shown(self, topology: ClusterTopology, path: Path) -> ClusterTopology:
        """A topology with the values that an earlier agent has put into a file; those that are lost are left out."""
        try:
            by_generation = json.loads(path.read_bytes())
            # An earlier version had only one topology in the file.
            values = by_generation.get(str(topology.generation), by_generation)
            shown = _with(topology, values)
        except (OSError, ValueError, TypeError, AttributeError, RecursionError):
            return topology
        self._journaled[str(topology.generation)] = _values_of(shown)
        return shown

    def forget(self) -> None:
        """Remove the file, if there is one.

        Raises:
            OSError: It cannot be removed.
        """
        self._files.unlink(self.path)
        self._written = b""
        self._journaled = {}


def without_values(topology: ClusterTopology) -> ClusterTopology:
    """A topology without the values of secret variables."""
    return _with(topology, {}) if _has_secrets(topology) else topology


def _values_of(topology: ClusterTopology) -> dict[str, dict[str, str]]:
    """The values of secret variables, by the names of the tasks and of the variables."""
    places = (*topology.tasks, *topology.reserved)
    return {task.name: {name: task.env[name] for name in task.secrets if name in task.env} for task in places}


def _has_secrets(topology: ClusterTopology) -> bool:
    return any(task.secrets for task in (*topology.tasks, *topology.reserved))


def lost(task: Task) -> list[str]:
    """The names of the secret variables whose values are not known."""
    return [name for name in task.secrets if name not in task.env]


def _with(topology: ClusterTopology, values: Values) -> ClusterTopology:
    """The topology with these values of secret variables and no others."""

    def fill_in(task: Task) -> Task:
        env = {name: value for name, value in task.env.items() if name not in task.secrets}
        return replace(task, env={**env, **values.get(task.name, {})})

    return replace(topology, tasks=tuple(map(fill_in, topology.tasks)), reserved=tuple(map(fill_in, topology.reserved)))
