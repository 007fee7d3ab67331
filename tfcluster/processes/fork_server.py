"""The fork server: an interpreter that has TensorFlow imported and forks a driver for each run, in milliseconds.

It reads lines that each describe a run (see `driver.RunSpec`) and writes `{"warm": true}` once TensorFlow is imported,
`{"run", "pid", "start_time"}` when a run's driver is forked and `{"run", "pid", "start_time", "status"}` when it ended.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import sys
from pathlib import Path
from typing import NoReturn

from tfcluster.process_handle import ProcessHandle
from tfcluster.processes import daemonize, run_driver
from tfcluster.protocol.codec import Decoder, Message, encode

# As the agent is started (see `transport.local`): the package comes from where the agent's own code is.
_PROGRAM = """
import sys
sys.path[:] = [sys.argv[1], *filter(None, sys.path)]
import tfcluster
del sys.path[0]
from tfcluster.processes.fork_server import main
main(*sys.argv[2:])
"""
_PACKAGE_ROOT = Path(__file__).parent.parent.parent


def launch(title: str, parent: int, log: Path, agent: socket.socket) -> NoReturn:
    """Turn a fork of the agent into a fresh interpreter that is the fork server.

    Programs end as an interpreter ends, with all that it holds: what the agent holds must not be part of that.

    Args:
        title: What `ps` shows.
        parent: The agent's pid.
        log: Where TensorFlow's messages go while it is imported.
        agent: The child's end of a socket pair.
    """
    daemonize.detach(title, log=log, keep=[agent.fileno()], parent=parent)
    os.set_inheritable(agent.fileno(), True)
    os.execv(sys.executable, [sys.executable, "-c", _PROGRAM, str(_PACKAGE_ROOT), title, str(agent.fileno())])


def main(title: str, fd: str) -> None:
    """Fork drivers until the agent hangs up.

    Args:
        title: What `ps` shows.
        fd: The number of the descriptor of the socket to the agent.
    """
    daemonize.set_process_title(title)
    os.set_inheritable(int(fd), False)
    with socket.socket(fileno=int(fd)) as agent, contextlib.suppress(ConnectionError):  # the agent has died
        _import_tensorflow()
        agent.sendall(encode({"warm": True}))
        job = _serve(agent)
    if job is not None:
        run_driver.main(job)


def _import_tensorflow() -> None:
    """Import what every driver needs, before it is forked. Nothing here may start a session or touch a GPU.

    Nor may it make a graph: the first one seeds TensorFlow's generator of random numbers and ids for the process, and
    all forks would draw the same ones. A driver is a client of the servers; it must not take a GPU's memory from them.
    """
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    from tfcluster.programs import session  # noqa: F401


def _serve(agent: socket.socket) -> run_driver.RunSpec | None:
    """Fork a driver for each job that the agent sends.

    Returns:
        In a driver's process its job; in the fork server itself None, once the agent hung up.
    """
    decoder = Decoder()
    # Not epoll, which a fork shares: what a driver takes out of it would be gone here as well.
    with selectors.PollSelector() as selector:
        selector.register(agent, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is not agent:
                    _report_end(selector, key, agent)
                    continue
                data = agent.recv(1 << 16)
                if not data:
                    return None
                for message in decoder.feed(data):
                    if _fork_driver(selector, message, agent):
                        _close_all(selector)
                        return run_driver.RunSpec(**message)


def _fork_driver(selector: selectors.BaseSelector, message: Message, agent: socket.socket) -> bool:
    """Fork a driver and tell the agent; True in the driver's process."""
    pid = os.fork()
    if pid == 0:
        return True
    process = ProcessHandle.of(pid)
    told = {"run": message["run"], "pid": pid, "start_time": process.start_time if process else 0}
    selector.register(os.pidfd_open(pid), selectors.EVENT_READ, told)
    agent.sendall(encode(told))
    return False


def _close_all(selector: selectors.BaseSelector) -> None:
    """Close the fork server's descriptors of other drivers, whose numbers the program's files will have."""
    for key in list(selector.get_map().values()):
        selector.unregister(key.fileobj)
        if isinstance(key.fileobj, int):
            os.close(key.fileobj)


def _report_end(selector: selectors.BaseSelector, key: selectors.SelectorKey, agent: socket.socket) -> None:
    _, status = os.waitpid(key.data["pid"], 0)
    selector.unregister(key.fileobj)
    os.close(key.fd)
    agent.sendall(encode({**key.data, "status": status}))
