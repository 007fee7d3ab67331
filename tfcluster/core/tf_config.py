"""TF_CONFIG: the cluster and a process's place in it, in the form that tf.distribute reads."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

#: The role of the client of a ParameterServerStrategy, and of the leader of other strategies.
CHIEF_JOB = "chief"
#: A process that evaluates checkpoints: strategies hang if it is one of their cluster.
EVALUATOR_JOB = "evaluator"
# The other jobs that strategies accept in their cluster; any other name is an error ("Disallowed task type").
_STRATEGY_JOBS = (CHIEF_JOB, "worker", "ps")


def make_tf_config(addresses: Mapping[str, Sequence[str]], job: str, index: int) -> dict[str, Any]:
    """Return the TF_CONFIG of one process; its own job is in it, even if strategies refuse the job's name."""
    left_out = refused_jobs(addresses)
    cluster = {name: list(tasks) for name, tasks in addresses.items() if name == job or name not in left_out}
    cluster.pop(EVALUATOR_JOB, None)
    return {"cluster": cluster, "task": {"type": job, "index": index}}


def make_client_config(addresses: Mapping[str, Sequence[str]], chief: str) -> dict[str, Any]:
    """Return the TF_CONFIG of a client of the servers, which is the chief, at `host:port`.

    A strategy starts a server in its chief and passes the addresses of TF_CONFIG on to the servers, so the chief
    requires a free port, even in a cluster that has a server for a job `chief`.
    """
    return make_tf_config({**addresses, CHIEF_JOB: [chief]}, CHIEF_JOB, 0)


def refused_jobs(jobs: Collection[str]) -> list[str]:
    """Return which jobs have a name that strategies refuse; they are not part of TF_CONFIG's cluster."""
    return [job for job in jobs if job not in (*_STRATEGY_JOBS, EVALUATOR_JOB)]


def refusal_notes(jobs: Collection[str]) -> list[str]:
    """Return the notes for the user about jobs whose names strategies refuse."""
    refused = refused_jobs(jobs)
    if not refused:
        return []
    accepted = ", ".join((*_STRATEGY_JOBS, EVALUATOR_JOB))
    return [f"TF_CONFIG leaves out {', '.join(refused)}: strategies refuse other jobs than {accepted}"]
