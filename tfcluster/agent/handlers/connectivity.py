"""RPC handler that tries which other hosts this one can connect to."""

from __future__ import annotations

from functools import partial
from typing import NoReturn

from tfcluster import settings
from tfcluster.agent.subprocesses import run_in_child
from tfcluster.errors import ClusterError
from tfcluster.processes.probes import connection_failures
from tfcluster.protocol.api import Reply, Response
from tfcluster.protocol.api.cluster import ReachReply, ReachRequest


async def check_connectivity(request: ReachRequest) -> Response[NoReturn, ReachReply]:
    """Connect to all addresses concurrently; see `ReachRequest`."""
    seconds = request.timeout
    connect = partial(connection_failures, list(request.addresses), seconds)
    timeout = seconds + settings.CONNECTIVITY_MARGIN_SECONDS
    failures = await run_in_child("tfcluster: connection check", connect, timeout)
    if failures is None:
        raise ClusterError("the process that checks connections to the other hosts died or hangs", hint="Try again.")
    yield Reply(ReachReply(failures))
