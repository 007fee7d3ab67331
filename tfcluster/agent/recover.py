"""Write the journal of a host that has lost its state, from its cluster's topology: then an agent starts its tasks.

A pod that replaces another one begins with an empty state folder; the topology and its secret values come with it.
"""

from __future__ import annotations

import time

from tfcluster.agent.logs.cluster_logs import EventLog
from tfcluster.agent.state.journal import Record, TaskRecord
from tfcluster.agent.state.secret_store import SecretStore
from tfcluster.agent.state.state_dir import StateDir
from tfcluster.core.secrets import values_of, with_values
from tfcluster.core.states import TaskState
from tfcluster.core.status import LastExit
from tfcluster.core.text import pluralize
from tfcluster.core.topology import ClusterTopology
from tfcluster.paths import state_folder
from tfcluster.runtime_dir import secrets_path


def write_journal(host: str, topology: ClusterTopology, *, is_replaced: bool) -> None:
    """Write the journal of a host from a topology with its secret values, unless the host has no task.

    If there is a journal, only secret values of its topology that are lost are written again. If an agent runs, nothing
    is done. A host that `is_replaced` has lost what an earlier one of its name had, as after a reboot.

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
            last_exit = LastExit("host replaced", time.time(), expected=True) if is_replaced else None
            # A task that is about to start, and has no process, is started by the agent at once.
            starting = TaskRecord(None, 0.0, 0, TaskState.STARTING, last_exit=last_exit, generation=topology.generation)
            tasks = {task.name: starting for task in topology.on(host)}
            state.journal.write(Record(store.redact(topology), tasks, store.path))
            state.journal.close()
            events = EventLog(state.events)
            if is_replaced:
                events.record("host-rebooted", detail="this host has replaced another one, with all that it had")
            events.record("up", detail=f"{pluralize(len(tasks), 'task')}, of the topology that came with the host")
        elif known.topology.generation == topology.generation and not known.secrets.exists():
            store.redact(with_values(known.topology, values_of(topology)))
    finally:
        state.unlock()
