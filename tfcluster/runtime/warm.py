"""The warm interpreter: has TensorFlow imported and forks a driver for each run, in milliseconds.

It reads lines that each describe a run (see `driver.Job`) and writes `{"warm": true}` once TensorFlow is
imported, `{"run", "pid", "start_time"}` when a run's driver is forked and `{"run", "status"}` when it ended.
"""

from __future__ import annotations

import os
import selectors
import socket
from pathlib import Path

from tfcluster.process import ProcessId
from tfcluster.protocol.framing import Decoder, encode
from tfcluster.runtime import child, driver


def warm(title: str, parent: int, log: Path, agent: socket.socket) -> None:
    """Fork drivers until the agent hangs up.

    Args:
        title: What `ps` shows.
        parent: The agent's pid.
        log: Where TensorFlow's words while it is imported go.
        agent: The child's end of a socket pair.
    """
    child.become(title, log=log, keep=[agent.fileno()], parent=parent)
    driver.import_tensorflow()
    agent.sendall(encode({"warm": True}))
    decoder = Decoder()
    with selectors.DefaultSelector() as selector:
        selector.register(agent, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is not agent:
                    _report_end(selector, key, agent)
                    continue
                data = agent.recv(1 << 16)
                if not data:
                    return
                for message in decoder.feed(data):
                    _fork_driver(selector, driver.Job(**message), agent)


def _fork_driver(selector: selectors.BaseSelector, job: driver.Job, agent: socket.socket) -> None:
    pid = os.fork()
    if pid == 0:
        driver.main(job)
    process = ProcessId.of(pid)
    selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (job.run, pid))
    start_time = process.start_time if process else 0
    agent.sendall(encode({"run": job.run, "pid": pid, "start_time": start_time}))


def _report_end(selector: selectors.BaseSelector, key: selectors.SelectorKey, agent: socket.socket) -> None:
    run, pid = key.data
    _, status = os.waitpid(pid, 0)
    selector.unregister(key.fileobj)
    os.close(key.fd)
    agent.sendall(encode({"run": run, "status": status}))
