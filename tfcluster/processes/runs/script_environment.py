"""The environment variables that describe the run and the cluster to a script."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tfcluster.core.tf_config import make_client_config
from tfcluster.os.network import free_port

if TYPE_CHECKING:
    from tfcluster.programs.context import Context


def describe_run(context: Context, seed: int | None) -> dict[str, str]:
    """Return the environment variables that describe its run to a script."""
    return {
        "TFCLUSTER_RUN": context.run,
        "TFCLUSTER_OUTPUT": str(context.output_folder),
        **({} if seed is None else {"TFCLUSTER_SEED": str(seed)}),
    }


def describe_cluster(context: Context) -> dict[str, str]:
    """Return the variables that describe the cluster to a script: it is the chief, and sessions use the head task."""
    host = context.head_address.rpartition(":")[0]
    master = f"grpc://{context.head_address}"
    config = make_client_config(context.addresses, f"{host}:{free_port(context.ports)}")
    return {
        "TF_CONFIG": json.dumps({**config, "session_master": master}),
        "TFCLUSTER_MASTER": master,
        "TFCLUSTER_DEVICES": ",".join(context.devices),
    }
