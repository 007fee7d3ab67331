"""Taking clusters down."""

from __future__ import annotations

from collections.abc import Iterator

from tfcluster.client.choice import choose_cluster
from tfcluster.client.connection import AgentGoneError, Connection
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.model.status import ClusterStatus
from tfcluster.places import clusters_up, journal_path
from tfcluster.protocol.messages import Call
from tfcluster.transport.reach import not_running

# So many agents may die one after the other while they take a cluster down.
_AGENTS = 3


def clusters_to_stop(named: str | None, everything: bool) -> list[str]:
    """Names of the clusters that `down` is about.

    Raises:
        ClusterError: There is none, or the choice is not clear.
    """
    if not everything:
        return [choose_cluster(named)]
    if named:
        raise ClusterError("give -c or --all, not both", exit_code=ExitCode.USAGE)
    running = clusters_up()
    if not running:
        raise ClusterError("no cluster is running", exit_code=ExitCode.NOT_RUNNING)
    return running


def take_down(cluster: str, grace: float) -> Iterator[ClusterStatus]:
    """Stop a cluster, giving its status at each change; afterwards nothing of it runs.

    Args:
        cluster: Its name.
        grace: Seconds between TERM and KILL.

    Raises:
        ClusterError: It is not running.
    """
    for left in reversed(range(_AGENTS)):
        answer = Connection(cluster).stream(Call.DOWN, grace=grace)
        try:
            for message in answer:
                yield ClusterStatus.from_json(message)
            break
        except ClusterError as error:
            if not journal_path(cluster).exists():
                answer.leave()
                raise not_running(cluster) from None  # another `down` was faster, and the agent went with it
            # An agent that died is followed by one that knows what is left to stop.
            if not (isinstance(error, AgentGoneError) and left):
                raise
    if not answer.wait_for_agent_end():
        raise ClusterError(f"all tasks of {cluster!r} are stopped, but its agent has not ended")
