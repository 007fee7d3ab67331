"""The environment variables that describe the cluster to a script."""

from __future__ import annotations

import json
import socket

from tfcluster.programs.api import Context


def environment(context: Context, seed: int | None) -> dict[str, str]:
    """Return the environment variables that describe the cluster to a script.

    They are TF_CONFIG, in which the script is the chief, and tfcluster's own variables. A strategy starts a server in
    its chief, so the chief's address is a free port, also in a cluster that has a server for a job `chief`: strategies
    pass the addresses of TF_CONFIG on to the servers. Sessions connect to that server, or to another head task's.

    Args:
        context: The run.
        seed: The user's seed; None if there is none.
    """
    host = context.head_address.rpartition(":")[0]
    master = f"grpc://{context.head_address}"
    cluster = {**context.addresses, "chief": [f"{host}:{_free_port()}"]}
    task = {"type": "chief", "index": 0}
    return {
        "TF_CONFIG": json.dumps({"cluster": cluster, "task": task, "session_master": master}),
        "TFCLUSTER_MASTER": master,
        "TFCLUSTER_RUN": context.run,
        "TFCLUSTER_DEVICES": ",".join(context.devices),
        **({} if seed is None else {"TFCLUSTER_SEED": str(seed)}),
    }


def _free_port() -> int:
    """Return a free port, for the server that TensorFlow starts in a script that is the chief."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port
