"""The fork server: an interpreter that has imported TensorFlow and forks a driver for each run within milliseconds.

It reads lines that each describe a run (see `run_plan.RunPlan`). It writes `{"run", "pid", "start_time"}` when the
driver of a run has been forked, `{"run", "pid", "start_time", "status"}` when the driver has exited, and
`{"run", "error"}` if no driver could be forked. It writes IMPORTED when it has imported TensorFlow, before the others.
"""

from __future__ import annotations

import contextlib
import gc
import os
import selectors
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from tfcluster.core.programs import BUNDLED
from tfcluster.os import daemonize, libc
from tfcluster.os.huge_pages import collapse_memory
from tfcluster.os.process_handle import ProcessHandle
from tfcluster.processes.runs import load_variables, run_driver
from tfcluster.processes.runs.run_plan import RunPlan
from tfcluster.processes.runs.run_script import ScriptStart, keep_modules
from tfcluster.processes.runs.supervised_program import DEFERRED_SIGNALS
from tfcluster.protocol.codec import Decoder, Message, encode
from tfcluster.protocol.serialization import decode

#: The message that says that TensorFlow has been imported.
IMPORTED: Message = {"imported": True}
#: The last argument of a fork server that imports TensorFlow; without it, each program does.
WARM = "warm"


def main(title: str, fd: str, code_cache: str, warm: str = "") -> Callable[[], NoReturn] | None:
    """Run the fork server until the agent closes the connection; in a forked driver, run the driver.

    `fd` is the number of the descriptor of the socket to the agent. `code_cache` is the host's cache of code, for the
    drivers: their environment may name another state folder. `warm` is WARM or empty.

    Return, in the process of a script, the function that runs it.
    """
    daemonize.set_process_title(title)
    os.set_inheritable(int(fd), False)
    # A Ctrl-C, or the end of the host, would end a driver that cannot handle it yet; each unblocks them when it can.
    signal.pthread_sigmask(signal.SIG_BLOCK, DEFERRED_SIGNALS)
    plan = None
    with socket.socket(fileno=int(fd)) as agent, contextlib.suppress(ConnectionError):  # the agent has died
        # A driver is a client of the servers and must not take a GPU's memory from them.
        os.environ.update({**load_variables.WARM_ENVIRONMENT, **os.environ, "CUDA_VISIBLE_DEVICES": "-1"})
        load_variables.keep_environment()
        if warm == WARM:
            _import_programs()
            agent.sendall(encode(IMPORTED))
        plan = _serve(agent)
    if plan is None:
        return None
    try:
        run_driver.main(plan, Path(code_cache))
    except ScriptStart as start:
        return start.run


def _import_programs() -> None:
    """Import TensorFlow and the bundled programs before drivers are forked, which would import them each time.

    This must not start a session or initialise a GPU. It must not create a graph either: the first graph seeds the
    process's generator of random numbers and ids in TensorFlow, and all forks would draw the same values.
    """
    gc.disable()  # collections examine what TensorFlow makes again and again, and would take a sixth of the import
    from tfcluster.programs import csv_rows, load, map_reduce, sessions, threefry  # noqa: F401 - those that others import

    sessions.find_physical_devices()
    for name in BUNDLED:
        load(name)
    keep_modules()
    gc.freeze()  # no later collection examines these objects, whose memory stays shared with drivers
    gc.enable()
    collapse_memory()


def _serve(agent: socket.socket) -> RunPlan | None:
    """Fork a driver for each run that the agent sends.

    In a forked driver, this returns the plan of its run. In the fork server itself, it returns None when the
    agent has closed the connection.
    """
    decoder = Decoder()
    # Do not use epoll: its set of descriptors is shared with forked processes, so what a driver unregisters would no
    # longer be watched in the fork server.
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
                        return decode(RunPlan, message)


def _fork_driver(selector: selectors.BaseSelector, message: Message, agent: socket.socket) -> bool:
    """Fork a driver and report it to the agent; return True in the driver's process, and False in the fork server.

    The driver's pidfd is registered with the selector.
    """
    # No collection may run in the driver before it has closed the fork server's descriptors: an object that owns one
    # could close its number after the driver has reused it. `run_driver.main` enables the collector again.
    gc.disable()
    try:
        pid = os.fork()
    except OSError as error:
        gc.enable()
        agent.sendall(encode({"run": message["run"], "error": error.strerror}))
        return False
    if pid == 0:
        return True
    gc.enable()
    try:
        process = ProcessHandle.from_pid(pid)
        assert process is not None, "a child that has not been reaped has its pid"
        pidfd = libc.pidfd_open(pid)
    except OSError as error:  # no descriptor is left, so the driver could be neither signalled nor watched
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        agent.sendall(encode({"run": message["run"], "error": error.strerror}))
        return False
    driver = {"run": message["run"], "pid": pid, "start_time": process.start_time}
    selector.register(pidfd, selectors.EVENT_READ, driver)
    agent.sendall(encode(driver))
    return False


def _close_all(selector: selectors.BaseSelector) -> None:
    """Close the fork server's pidfds of other drivers, after which the program's files can have their numbers."""
    for key in list(selector.get_map().values()):
        selector.unregister(key.fileobj)
        if isinstance(key.fileobj, int):
            os.close(key.fileobj)


def _report_end(selector: selectors.BaseSelector, key: selectors.SelectorKey, agent: socket.socket) -> None:
    _, status = os.waitpid(key.data["pid"], 0)
    selector.unregister(key.fileobj)
    os.close(key.fd)
    agent.sendall(encode({**key.data, "status": status}))
