"""Write the journal of a host that has lost its state, from its cluster's topology: then an agent starts its tasks.

A pod that replaces another one begins with an empty state folder; the topology and its secret values come with it.
"""

from __future__ import annotations

from tfcluster.agent.state.journal import Record, TaskRecord
from tfcluster.agent.state.secret_store import SecretStore
from tfcluster.agent.state.state_dir import StateDir
from tfcluster.core.secrets import values_of, with_values
from tfcluster.core.states import TaskState
from tfcluster.core.topology import ClusterTopology
from tfcluster.paths import state_folder
from tfcluster.runtime_dir import secrets_path


def write_journal(host: str, topology: ClusterTopology) -> None:
    """Write the journal of a host from a topology with its secret values, unless the host has no task.

    If there is a journal, only secret values of its topology that are lost are written again. If an agent runs, nothing
    is done.

    Raises:
        ClusterError: The state folder cannot be made.
        OSError: A file cannot be written.
    """
    state = StateDir(state_folder(topology.cluster, host))
    if not topology.on(host) or state.lock() is not None:
        return
    try:
        store = SecretStore(secrets_path(topology.cluster, host))
        known = state.journal.read()
        if known is None:
            # A task that is about to start, and has no process, is started by the agent at once.
            tasks = {
                task.name: TaskRecord(None, 0.0, 0, TaskState.STARTING, generation=topology.generation)
                for task in topology.on(host)
            }
            state.journal.write(Record(store.redact(topology), tasks, store.path))
            state.journal.close()
        elif known.topology.generation == topology.generation and not known.secrets.exists():
            store.redact(with_values(known.topology, values_of(topology)))
    finally:
        state.unlock()
