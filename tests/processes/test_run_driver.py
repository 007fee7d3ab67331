"""The driver's process: bound to its run's folder, and to nothing else; it ends as its program does."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REAPED_DAEMON, ROOT, running, wait_for
from tests.control_groups import EATS_MEMORY, memory_group
from tfcluster.core.runs import RunOptions
from tfcluster.errors import ClusterError
from tfcluster.os.process_handle import ProcessHandle
from tfcluster.processes.runs.run_driver import _path_hint
from tfcluster.processes.runs.run_plan import EVENTS, RunPlan, append_event

# Supervises a program of its own, whose body it is given.
_DRIVE = """
import json, os, select, signal, socket, sys, time
from pathlib import Path
from tfcluster import settings
from tfcluster.core.run_events import LatestMetrics
from tfcluster.core.caller import OutputStreams
from tfcluster.core.runs import RunOptions
from tfcluster.os import daemonize
from tfcluster.processes.runs import run_driver, run_plan, stored_output, supervised_program
settings.DRIVER_POLL_SECONDS = settings.DRIVER_EXIT_SECONDS = 0.05
folder = Path(sys.argv[1])
parameters = {"path": "/home/me/x.py"}
options = RunOptions("script", parameters)
job = run_plan.RunPlan("script-1", "demo", options, folder, {}, "localhost:1", [], ["careful"])
def run_program(spec, parent, link, outputs, stdin):
    def report_end(code, failure=""):
        work = {"/job:worker/task:0/device:CPU:0": {"ops": 3}}
        run_plan.ProgramEnd(code, failure, 1.5, work, ["slow"]).send(link)
    daemonize.set_parent_death_signal(parent)
    os.setpgid(0, 0)
    exec(sys.argv[2], {**globals(), **locals()})
    os._exit(0)
supervised_program._execute = run_program
daemonize.become_subreaper()
poll = select.poll()
recorder = stored_output.OutputRecorder(folder)
program = supervised_program.SupervisedProgram(job, poll, recorder, None, None, print)
print("driving", flush=True)
run_driver._supervise(job, program, poll, recorder, LatestMetrics())
"""


def job(folder: Path, program: str = "careless") -> RunPlan:
    return RunPlan(f"{program}-1", "demo", RunOptions(program, {}), folder, {}, "localhost:1", [], [])


def drive(folder: Path, body: str, source: str = _DRIVE, **options: Any) -> tuple[int, list[Any]]:
    """The exit code of a driver whose program is a script that does this, and the events that it wrote.

    `options` are those of subprocess.run.
    """
    result = subprocess.run(
        [sys.executable, "-c", source, str(folder), body],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **options,
    )
    assert (result.stdout, result.stderr) == ("driving\n", "")
    events = folder / EVENTS
    return result.returncode, [json.loads(line) for line in events.read_text().splitlines()] if events.exists() else []


def test_a_driver_exits_when_the_runs_folder_is_deleted(tmp_path: Path) -> None:
    folder = tmp_path / "script-1"
    folder.mkdir()
    command = [sys.executable, "-c", _DRIVE, str(folder), "time.sleep(600)"]
    with running(*command, stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "driving\n"
        assert process.poll() is None
        shutil.rmtree(folder)
        assert process.wait(60) == -9


def test_a_daemon_that_exits_before_the_driver_watches_for_it_is_reaped(tmp_path: Path) -> None:
    exited = "os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)\n"
    late = _DRIVE.replace("run_driver._supervise(", f"{exited}run_driver._supervise(")
    code, [event] = drive(tmp_path, REAPED_DAEMON, late)
    assert (code, event["state"]) == (0, "succeeded")


def test_the_result_of_a_script_has_what_its_program_end_reports(tmp_path: Path) -> None:
    code, [event] = drive(tmp_path, "report_end(0)")
    assert code == 0
    assert event == {
        "event": "result",
        "run": "script-1",
        "program": "script",
        "state": "succeeded",
        "seconds": 1.5,
        "result": {"exit_code": 0},
        "devices": {"/job:worker/task:0/device:CPU:0": {"ops": 3}},
        "notes": ["careful", "slow"],
    }


@pytest.mark.parametrize(
    "body",
    ["pass", "report_end(0); time.sleep(600)", "socket.send_fds(link, [b'x'], [0]); report_end(0)", REAPED_DAEMON],
    ids=["no program end", "shuts down too slowly", "sends a descriptor", "has a daemon, which the driver reaps"],
)
def test_a_script_that_succeeds(tmp_path: Path, body: str) -> None:
    code, [event] = drive(tmp_path, body)
    assert (code, event["state"], event["result"]) == (0, "succeeded", {"exit_code": 0})


#: What a script writes to its driver's socket is ignored, except the program end.
_GARBAGE = r"""
link.sendall(b"\xff\n[1]\n{}\n\n")
link.sendall(b'{"event":"metric","name":["x"]}\n{"event":"metric","name":"x","value":NaN,"step":0,"seconds":0}\n')
link.sendall(b'{"event":"result","state":"succeeded"}\n{"exit_code":0}\n{"exit_code":"0","failure":"","seconds":0}\n')
link.sendall(b"x" * (3 << 20))
link.sendall(b"part of a line")
report_end(3, "ValueError: no data")
os._exit(3)
"""


@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        ("os._exit(7)", 7, "ended with exit code 7"),
        # TensorFlow's PreemptionCheckpointHandler does so.
        ("report_end(143); os._exit(143)", 143, "ended with exit code 143"),
        ("report_end(1, 'ValueError: no data'); os._exit(1)", 1, "failed: ValueError: no data"),
        # A crash in a destructor does not change the result.
        ("report_end(3); os.kill(os.getpid(), signal.SIGSEGV)", 3, "ended with exit code 3"),
        (_GARBAGE, 3, "failed: ValueError: no data"),
        ("os.kill(os.getpid(), signal.SIGKILL)", -9, "was terminated by SIGKILL"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", -11, "was terminated by SIGSEGV"),
        ("os.kill(os.getpid(), signal.SIGTERM)", -15, "was terminated by SIGTERM"),
    ],
)
def test_a_script_that_fails(tmp_path: Path, body: str, code: int, message: str) -> None:
    exit_code, [event] = drive(tmp_path, body)
    assert (exit_code, event["error"]["message"]) == (code, f"x.py {message}")
    killed = {"exit_code": 128 - code, "signal": message.split()[-1]}
    assert event["result"] == (killed if code < 0 else {"exit_code": code})


def test_a_script_that_the_oom_killer_ends(tmp_path: Path) -> None:
    with memory_group() as group:
        group.limit(256 << 20)
        code, [event] = drive(tmp_path, EATS_MEMORY, preexec_fn=group.join)
    assert (code, event["error"]["message"]) == (-9, "x.py was terminated by SIGKILL (out of memory)")
    assert event["result"] == {"exit_code": 137, "signal": "SIGKILL"}


@pytest.mark.parametrize(
    ("failure", "path"),
    [
        ("NotFoundError: Graph execution error: data/x; No such file or directory", "data/x"),
        (
            "NotFoundError: Unsuccessful TensorSliceReader constructor: Failed to find any matching files for data/y-1",
            "data/y-1",
        ),
        ("NotFoundError: elsewhere/x; No such file or directory", ""),
        ("NotFoundError: data/.; No such file or directory", "data"),
        ("NotFoundError: /data/x; No such file or directory", ""),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'data/x'", ""),
    ],
)
def test_the_hint_has_the_absolute_path_of_what_a_server_has_not_found(tmp_path: Path, failure: str, path: str) -> None:
    (tmp_path / "data").mkdir()
    plan = job(tmp_path).with_parameters({"cwd": str(tmp_path)})
    hint = _path_hint(plan, failure)
    assert (f" {tmp_path}/{path}, and on several" in hint) if path else hint == ""
    assert _path_hint(plan, "NotFoundError: .; No such file or directory"), "no error of the driver"


_LEAVES_A_LISTENER = """
supervised_program._hand_over_trap(link)
os.dup2(outputs[0], 1)
if os.fork() == 0:
    os.setsid()
    while os.path.exists(f"/proc/{parent}"):
        time.sleep(0.01)
    try:
        socket.socket().listen()
    except OSError as error:
        (folder / "listened").write_text(error.strerror)
    os._exit(0)
report_end(0)
"""


def test_a_process_that_the_program_has_left_does_not_wait_for_ever_to_listen(tmp_path: Path) -> None:
    """The process that records what it prints has the trap of its listen(), which no process handles any more."""
    driver = _DRIVE.replace("None, None, print)", "None, [], print)")
    subprocess.run([sys.executable, "-c", driver, str(tmp_path), _LEAVES_A_LISTENER], cwd=ROOT, timeout=60, check=True)
    wait_for(lambda: (tmp_path / "listened").exists())


_READY = """
signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
def handled():
    with open(f"/proc/{os.getppid()}/status") as status:
        return int(next(line for line in status if line.startswith("SigCgt")).split()[1], 16) >> signal.SIGTERM - 1 & 1
while not handled():
    time.sleep(0.01)
print("ready", flush=True)
time.sleep(600)
"""


def test_sigterm_is_passed_on_to_the_program(tmp_path: Path) -> None:
    with running(sys.executable, "-c", _DRIVE, str(tmp_path), _READY, stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        assert sorted([process.stdout.readline(), process.stdout.readline()]) == ["driving\n", "ready\n"]
        process.terminate()
        assert process.wait(60) == 143
    events = [json.loads(line) for line in (tmp_path / EVENTS).read_text().splitlines()]
    assert events == [{"event": "stopped", "result": None}], "the agent knows why it was told to end"


_STARTS_A_CHILD = f"""
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the child inherits that
child = os.fork()
if child == 0:
    time.sleep(600)
(folder / "child").write_text(str(child))
{_READY}
"""


def test_what_a_program_has_started_ends_with_it_if_it_is_terminated(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _DRIVE, str(tmp_path), _STARTS_A_CHILD]
    with running(*command, stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        assert sorted([process.stdout.readline(), process.stdout.readline()]) == ["driving\n", "ready\n"]
        child = ProcessHandle.from_pid(int((tmp_path / "child").read_text()))
        assert child is not None
        try:
            process.terminate()
            assert process.wait(60) == 143
            wait_for(lambda: not child.is_alive(), seconds=30)
        finally:
            child.kill()


def test_an_event_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r"/none/events\.jsonl cannot be written: No such file or directory"):
        job(tmp_path / "none").emit("run")


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """No file grows beyond a number of bytes: as on a full disk, what still has room is written."""
    _, hard = before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_truncated_event_is_an_error_and_does_not_damage_the_next(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    append_event(path, {"event": "run"})
    with files_up_to(30), pytest.raises(OSError, match=r"No space left on device: '.*/events\.jsonl'"):
        append_event(path, {"event": "progress", "done": 1})
    append_event(path, {"event": "error"})
    append_event(path, {"event": "result"})
    first, torn, *others = path.read_text().splitlines()
    assert json.loads(first) == {"event": "run"}
    assert '{"event":"progress","done":1}'.startswith(torn)
    assert [json.loads(line) for line in others] == [{"event": "error"}, {"event": "result"}]
