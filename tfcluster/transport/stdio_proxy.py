"""The stdio proxy, the host's end of an ssh session: connect to the agent or start it, and forward bytes both ways."""

from __future__ import annotations

import os
import select
import threading
from pathlib import Path
from typing import Any

from tfcluster import settings
from tfcluster.errors import ClusterError
from tfcluster.paths import set_state_home
from tfcluster.process_handle import ProcessHandle
from tfcluster.transport.local import LocalAgentConnection, LocalTransport
from tfcluster.transport.remote_bootstrap import tell

_INPUT, _OUTPUT = 0, 1


def serve(said: dict[str, Any]) -> None:
    """Serve the request of a session.

    Args:
        said: The first line of the session: `cluster`; `host`, the name of this machine in the cluster; `state`, the
            host's folder for the state of all clusters, or None; `env`, the host's variables in the spec; and `do`,
            the request, with its arguments:
            `open` {start}: connect to the agent -> {pid, start_time}, followed by the agent's connection, forwarded in
            both directions;
            `look` -> {up, state}, as LocalTransport.is_up and LocalTransport.has_state return;
            `wait` {pid, start_time, timeout}: wait until a process has exited -> {ended};
            `examine` {ssh} -> the fields of `host_probe.survey`, followed by the time for each line that arrives.
    """
    os.environ.update(said["env"])
    if said["state"]:
        set_state_home(Path(said["state"]).expanduser().absolute())
    here = LocalTransport(said["cluster"], said["host"])
    try:
        if said["do"] == "open":
            agent = here.open(start=said["start"])
            process = ProcessHandle.from_pid(agent.pid)
            tell({"reply": {"pid": agent.pid, "start_time": process.start_time if process else 0}})
            relay(agent)
        elif said["do"] == "look":
            tell({"reply": {"up": here.is_up(), "state": here.has_state()}})
        elif said["do"] == "wait":
            tell({"reply": {"ended": _ends(ProcessHandle(said["pid"], said["start_time"]), said["timeout"])}})
        else:
            _examine(said)
    except ClusterError as problem:
        tell({"error": problem.to_json()})
    except Exception as problem:
        tell({"error": ClusterError(f"{type(problem).__name__}: {problem}").to_json()})


def relay(agent: LocalAgentConnection) -> None:
    """Forward bytes in both directions until the agent closes the connection or the client stops reading."""
    threading.Thread(target=_hand_in, args=[agent], daemon=True).start()
    while data := agent.receive(None):
        while data:
            try:
                data = data[os.write(_OUTPUT, data) :]
            except OSError:  # the session has ended
                return


def _hand_in(agent: LocalAgentConnection) -> None:
    """Forward standard input and its end to the agent, and exit the process once the client has disconnected."""
    while (data := os.read(_INPUT, settings.IO_BLOCK_BYTES)) and agent.send(data):
        continue
    agent.shutdown_write()
    # Without this wait, an agent that hangs would keep this process forever: without a terminal the process receives no
    # signal when its session ends.
    poll = select.poll()
    poll.register(_OUTPUT, 0)  # poll reports an error or a hang-up even if no event is requested
    poll.poll()
    os._exit(0)


def _ends(process: ProcessHandle, timeout: float) -> bool:
    pidfd = process.open()
    if pidfd is None:
        return True
    try:
        return bool(select.select([pidfd], [], [], timeout)[0])
    finally:
        os.close(pidfd)


def _examine(said: dict[str, Any]) -> None:
    from tfcluster.transport.host_probe import now, survey  # imported here, as it would slow down all other sessions

    tell({"reply": survey(said["ssh"])})
    while os.read(_INPUT, 1):
        tell({"reply": {"time": now()}})
