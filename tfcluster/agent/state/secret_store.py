"""The store of secret values: keeps those of environment variables and webhooks out of the journal, in a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tfcluster import settings
from tfcluster.core.topology import ClusterTopology, Task
from tfcluster.os.files import read_own_file, write_atomically
from tfcluster.runtime_dir import make_again

Values = Mapping[str, Mapping[str, str]]
# The key of the webhook's URL among the names of the tasks.
_NOTIFY = "notify"


class SecretStore:
    """Removes the secret values from a topology (redaction) and restores them.

    The file is in a directory that only this user can enter. If XDG_RUNTIME_DIR names the place, that directory is in
    memory, and the file disappears when the machine shuts down, or after the user's last logout.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._written = b""
        # The values of the topologies in the journal, by generation.
        self._journaled: dict[str, dict[str, dict[str, str]]] = {}

    def redact(self, topology: ClusterTopology, following: ClusterTopology | None = None) -> ClusterTopology:
        """Write the secret values of a topology to the file, and return the topology without them.

        `following` is the topology that will replace it, if any; its values are written to the file too. Raises
        OSError: the file cannot be written, and is unchanged.
        """
        topologies = [topology] if following is None else [topology, following]
        values = {str(each.generation): _values_of(each) for each in topologies if _has_secrets(each)}
        if not values and not self._journaled:
            self.delete()
            return topology
        # Keep the values of the old topology: the journal still contains it, also if this agent dies before it
        # writes the new one.
        data = json.dumps({**self._journaled, **values}).encode()
        if data != self._written:
            self._write(data)
        self._journaled = values
        return without_values(topology)

    def prune(self) -> None:
        """Remove the values of earlier topologies from the file, once the journal no longer contains these.

        Raises OSError: the file cannot be written, and is unchanged.
        """
        data = json.dumps(self._journaled).encode()
        if not self._journaled:
            self.delete()
        elif data != self._written:
            self._write(data)

    def _write(self, data: bytes) -> None:
        make_again(self.path.parent)  # a logout may have removed it
        write_atomically(self.path, data)
        self._written = data

    def restore(self, topology: ClusterTopology, path: Path) -> ClusterTopology:
        """Restore the secret values that an earlier agent wrote to a file.

        Values that are lost are left out.
        """
        try:
            by_generation = json.loads(read_own_file(path, settings.STATE_FILE_MAX_BYTES))
            # The file format of an earlier version has one topology only, without generations.
            values = by_generation.get(str(topology.generation), by_generation)
            restored = _with(topology, values)
        except (OSError, ValueError, TypeError, AttributeError, RecursionError):
            return topology
        self._journaled[str(topology.generation)] = _values_of(restored)
        return restored

    def delete(self) -> None:
        """Remove the file if it exists."""
        self.path.unlink(missing_ok=True)
        self._written = b""
        self._journaled = {}


def without_values(topology: ClusterTopology) -> ClusterTopology:
    """Remove the values of secret variables from a topology."""
    return _with(topology, {}) if _has_secrets(topology) else topology


def _values_of(topology: ClusterTopology) -> dict[str, dict[str, str]]:
    """Return the values of secret variables, by task name and variable name, and the URL of the webhook."""
    places = (*topology.tasks, *topology.reserved)
    values = {task.name: {name: task.env[name] for name in task.secrets if name in task.env} for task in places}
    if topology.notify is not None and topology.notify.webhook is not None:
        values[_NOTIFY] = {"webhook": topology.notify.webhook}
    return values


def _has_secrets(topology: ClusterTopology) -> bool:
    has_webhook = topology.notify is not None and topology.notify.webhook is not None
    return has_webhook or any(task.secrets for task in (*topology.tasks, *topology.reserved))


def _with(topology: ClusterTopology, values: Values) -> ClusterTopology:
    """Return a topology whose secret variables have exactly the given values."""

    def fill_in(task: Task) -> Task:
        env = {name: value for name, value in task.env.items() if name not in task.secrets}
        known = values.get(task.name, {})
        return replace(task, env={**env, **{name: known[name] for name in task.secrets if name in known}})

    notify = topology.notify and replace(topology.notify, webhook=values.get(_NOTIFY, {}).get("webhook"))
    tasks, reserved = tuple(map(fill_in, topology.tasks)), tuple(map(fill_in, topology.reserved))
    return replace(topology, tasks=tasks, reserved=reserved, notify=notify)
