"""A fork server that a test plays; TEST_FORK_SERVER says what it answers, or how many of them die before one works."""

import json
import os
import signal
import socket
from pathlib import Path

from tfcluster.core.run_events import ResultEvent
from tfcluster.os.process_handle import ProcessHandle
from tfcluster.processes.runs.run_plan import EVENTS, acquire_run, append_event
from tfcluster.protocol.codec import encode


def main(title: str, fd: str, *arguments: str) -> None:
    """Be the fork server of the run graph-1: the one that works is the run's driver itself."""
    orders = json.loads(os.environ["TEST_FORK_SERVER"])
    signal.alarm(60)  # in case the test does not end it
    with socket.socket(fileno=int(fd)) as agent:
        agent.recv(1 << 16)
        if orders.get("answer"):
            agent.sendall(encode({"run": "graph-1", **orders["answer"]}))
        if "deaths" in orders:
            count = Path(orders["folder"], "started")
            with count.open("a") as file:
                file.write("x")
            if count.stat().st_size <= orders["deaths"]:
                os._exit(1)
            _succeed(agent, Path(orders["folder"]))
        signal.pause()


def _succeed(agent: socket.socket, folder: Path) -> None:
    process = ProcessHandle.from_pid(os.getpid())
    assert process is not None
    acquire_run(folder, process)
    append_event(folder / EVENTS, ResultEvent("graph-1", "graph", "succeeded", 1.0, {}, {}, []))
    forked = {"run": "graph-1", "pid": process.pid, "start_time": process.start_time}
    agent.sendall(encode(forked) + encode({**forked, "status": 0}))
