"""The secret values of a topology: take them out of it, and put them in again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tfcluster.core.topology import ClusterTopology, Task

#: Secret values by task name and variable name; see `values_of`.
Values = Mapping[str, Mapping[str, str]]
# The key of the webhook's URL among the names of the tasks.
_NOTIFY = "notify"


def without_values(topology: ClusterTopology) -> ClusterTopology:
    """Remove the values of secret variables from a topology."""
    return with_values(topology, {}) if has_secrets(topology) else topology


def values_of(topology: ClusterTopology) -> dict[str, dict[str, str]]:
    """Return the values of secret variables, by task name and variable name, and the URL of the webhook."""
    places = (*topology.tasks, *topology.reserved)
    values = {task.name: {name: task.env[name] for name in task.secrets if name in task.env} for task in places}
    if topology.notify is not None and topology.notify.webhook is not None:
        values[_NOTIFY] = {"webhook": topology.notify.webhook}
    return values


def has_secrets(topology: ClusterTopology) -> bool:
    """Return whether a topology can have secret values."""
    has_webhook = topology.notify is not None and topology.notify.webhook is not None
    return has_webhook or any(task.secrets for task in (*topology.tasks, *topology.reserved))


def with_values(topology: ClusterTopology, values: Values) -> ClusterTopology:
    """Return a topology whose secret variables have exactly the given values."""

    def fill_in(task: Task) -> Task:
        env = {name: value for name, value in task.env.items() if name not in task.secrets}
        known = values.get(task.name, {})
        return replace(task, env={**env, **{name: known[name] for name in task.secrets if name in known}})

    notify = topology.notify and replace(topology.notify, webhook=values.get(_NOTIFY, {}).get("webhook"))
    tasks, reserved = tuple(map(fill_in, topology.tasks)), tuple(map(fill_in, topology.reserved))
    return replace(topology, tasks=tasks, reserved=reserved, notify=notify)
