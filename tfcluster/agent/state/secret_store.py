"""The store of secret values: keeps those of environment variables and webhooks out of the journal, in a file."""

from __future__ import annotations

import json
from pathlib import Path

from tfcluster import settings
from tfcluster.core.secrets import has_secrets, values_of, with_values, without_values
from tfcluster.core.topology import ClusterTopology
from tfcluster.os.files import read_own_file, write_atomically
from tfcluster.runtime_dir import make_again


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
        values = {str(each.generation): values_of(each) for each in topologies if has_secrets(each)}
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
            restored = with_values(topology, values)
        except (OSError, ValueError, TypeError, AttributeError, RecursionError):
            return topology
        self._journaled[str(topology.generation)] = values_of(restored)
        return restored

    def delete(self) -> None:
        """Remove the file if it exists."""
        self.path.unlink(missing_ok=True)
        self._written = b""
        self._journaled = {}
