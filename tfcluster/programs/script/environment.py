"""The environment variables that describe the run and the cluster to a script."""

from __future__ import annotations

import contextlib
import json
import random
import socket
from collections.abc import Sequence

from tfcluster.core.tf_config import CHIEF_JOB, make_tf_config
from tfcluster.programs.api import Context


def describe_run(context: Context, seed: int | None) -> dict[str, str]:
    """Return the environment variables that describe its run to a script.

    Args:
        context: The run.
        seed: The user's seed; None if there is none.
    """
    return {
        "TFCLUSTER_RUN": context.run,
        "TFCLUSTER_OUTPUT": str(context.output_folder),
        **({} if seed is None else {"TFCLUSTER_SEED": str(seed)}),
    }


def describe_cluster(context: Context) -> dict[str, str]:
    """Return the environment variables that describe the cluster to a script that is its client.

    They are TF_CONFIG, in which the script is the chief, and tfcluster's own variables. A strategy starts a server in
    its chief, so the chief's address is a free port, also in a cluster that has a server for a job `chief`: strategies
    pass the addresses of TF_CONFIG on to the servers. Sessions connect to that server, or to another head task's.

    Args:
        context: The run.
    """
    host = context.head_address.rpartition(":")[0]
    master = f"grpc://{context.head_address}"
    config = make_tf_config({**context.addresses, CHIEF_JOB: [f"{host}:{_free_port(context.ports)}"]}, CHIEF_JOB, 0)
    return {
        "TF_CONFIG": json.dumps({**config, "session_master": master}),
        "TFCLUSTER_MASTER": master,
        "TFCLUSTER_DEVICES": ",".join(context.devices),
    }


def _free_port(ports: Sequence[int]) -> int:
    """Return a free port, for the server that TensorFlow starts in a script that is the chief.

    Args:
        ports: The ports to choose from; empty for any.
    """
    for choice in random.sample(ports, len(ports)):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("", choice))
            return choice
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port
