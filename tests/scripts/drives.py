"""Drives a run whose program executes some Python: `FOLDER SOURCE [WHEN]`.

The source is executed in the program, with the variables of `run_program`. WHEN is `trapped` if the driver has the trap
of the program's listen(), and `late` if it watches for ends only after a process has exited.
"""

import os
import select
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

from tfcluster import settings
from tfcluster.core.run_events import LatestMetrics
from tfcluster.core.runs import RunOptions
from tfcluster.os import daemonize
from tfcluster.processes.runs import run_driver, run_plan, stored_output, supervised_program

settings.DRIVER_POLL_SECONDS = settings.DRIVER_EXIT_SECONDS = 0.05
folder, source, *when = sys.argv[1:]
options = RunOptions("script", {"path": "/home/me/x.py"})
job = run_plan.RunPlan("script-1", "demo", options, Path(folder), {}, "localhost:1", [], ["careful"])


def run_program(
    _: run_plan.RunPlan, parent: int, link: socket.socket, outputs: tuple[int, int], stdin: int | None
) -> NoReturn:
    """Take the place of a program of the product."""

    def report_end(code: int, failure: str = "") -> None:  # noqa: V103
        work = {"/job:worker/task:0/device:CPU:0": {"ops": 3}}
        run_plan.ProgramEnd(code, failure, 1.5, work, ["slow"]).send(link)

    daemonize.set_parent_death_signal(parent)
    os.setpgid(0, 0)
    exec(source, {**globals(), **locals()})
    os._exit(0)


def wait_until_ready() -> None:
    """Print `ready` when SIGTERM would end this program with 143 and its driver handles SIGTERM, and wait."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
    handled = 0
    while not handled >> signal.SIGTERM - 1 & 1:
        lines = Path(f"/proc/{os.getppid()}/status").read_text().splitlines()
        handled = int(next(line for line in lines if line.startswith("SigCgt")).split()[1], 16)
        time.sleep(0.01)
    print("ready", flush=True)
    time.sleep(600)


def start_child() -> None:  # noqa: V103
    """Start a process that ignores SIGTERM, and write down its pid."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = os.fork()
    if child == 0:
        time.sleep(600)
    Path(folder, "child").write_text(str(child))


def leave_listener(parent: int, link: socket.socket, outputs: tuple[int, ...]) -> None:  # noqa: V103
    """Leave a process that listens when the driver has ended, and writes down why it cannot."""
    supervised_program._hand_over_trap(link)
    os.dup2(outputs[0], 1)
    if os.fork() == 0:
        os.setsid()
        while os.path.exists(f"/proc/{parent}"):
            time.sleep(0.01)
        try:
            socket.socket().listen()
        except OSError as error:
            Path(folder, "listened").write_text(error.strerror or "")
        os._exit(0)


supervised_program._execute = run_program  # type: ignore[assignment]
daemonize.become_subreaper()
poll = select.poll()
recorder = stored_output.OutputRecorder(job.folder)
trap: Any = [] if "trapped" in when else None
program = supervised_program.SupervisedProgram(job, poll, recorder, None, trap, print)
print("driving", flush=True)
if "late" in when:
    os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
run_driver._supervise(job, program, poll, recorder, LatestMetrics())
