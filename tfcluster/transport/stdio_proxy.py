"""The other end of an ssh session: it finds or starts the agent, and hands bytes on between the two."""

from __future__ import annotations

import os
import select
import threading
from pathlib import Path
from typing import Any

from tfcluster.errors import ClusterError
from tfcluster.paths import set_state_home
from tfcluster.process_handle import ProcessHandle
from tfcluster.transport.local import LocalAgentConnection, LocalTransport
from tfcluster.transport.remote_bootstrap import tell

_BLOCK = 1 << 16
_INPUT, _OUTPUT = 0, 1


def serve(said: dict[str, Any]) -> None:
    """Do what a session is for.

    Args:
        said: Its first line: `cluster`, `host` (what the cluster calls this machine), `state` (its folder for all
            clusters' state or None), `env`, and `do` with what that needs:
            `open` {start}: connect to the agent -> {pid, start_time}, and then whatever is said to it and by it;
            `look`: -> {up, state}, as LocalTransport.is_up and LocalTransport.has_state say;
            `wait` {pid, start_time, timeout}: for the end of a process -> {ended};
            `examine` {ssh}: -> what `survey` gives, and then the time for each line that arrives.
    """
    os.environ.update(said["env"])
    if said["state"]:
        set_state_home(Path(said["state"]).expanduser().absolute())
    here = LocalTransport(said["cluster"], said["host"])
    try:
        if said["do"] == "open":
            agent = here.open(start=said["start"])
            process = ProcessHandle.of(agent.pid)
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
    """Hand on what arrives, both ways, until the agent hangs up or nobody reads what it says."""
    threading.Thread(target=_hand_in, args=[agent], daemon=True).start()
    while data := agent.receive(None):
        while data:
            try:
                data = data[os.write(_OUTPUT, data) :]
            except OSError:  # the session is over
                return


def _hand_in(agent: LocalAgentConnection) -> None:
    """Hand on what the other side says, and that it has said all; and end when it has gone."""
    while (data := os.read(_INPUT, _BLOCK)) and agent.send(data):
        continue
    agent.shutdown_write()
    # An agent that hangs would keep us for ever: nobody tells a process without a terminal that its session is over.
    poll = select.poll()
    poll.register(_OUTPUT, 0)  # that nobody reads it is told anyway
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
    from tfcluster.transport.host_probe import now, survey  # its imports would slow every other session down

    tell({"reply": survey(said["ssh"])})
    while os.read(_INPUT, 1):
        tell({"reply": {"time": now()}})
