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

from tests.conftest import REAPED_DAEMON, SCRIPTS, Command, running, wait_for
from tests.control_groups import EATS_MEMORY, memory_group
from tfcluster.core.runs import RunOptions
from tfcluster.errors import ClusterError
from tfcluster.os.process_handle import ProcessHandle
from tfcluster.processes.runs.run_driver import _path_hint
from tfcluster.processes.runs.run_plan import EVENTS, RunPlan, append_event

DRIVE = (sys.executable, str(SCRIPTS / "drives.py"))


def job(folder: Path, program: str = "careless") -> RunPlan:
    return RunPlan(f"{program}-1", "demo", RunOptions(program, {}), folder, {}, "localhost:1", [], [])


def drive(folder: Path, source: str, *when: str, **options: Any) -> tuple[int, list[Any]]:
    """The exit code of a driver whose program executes some Python, and the events that it wrote.

    `options` are those of subprocess.run.
    """
    command = [*DRIVE, str(folder), source, *when]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, **options)
    assert (result.stdout, result.stderr) == ("driving\n", "")
    events = folder / EVENTS
    return result.returncode, [json.loads(line) for line in events.read_text().splitlines()] if events.exists() else []


def test_a_driver_exits_when_the_runs_folder_is_deleted(tmp_path: Path) -> None:
    folder = tmp_path / "script-1"
    folder.mkdir()
    with running(*DRIVE, str(folder), "time.sleep(600)", stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == "driving\n"
        assert process.poll() is None
        shutil.rmtree(folder)
        assert process.wait(60) == -9


def test_a_daemon_that_exits_before_the_driver_watches_for_it_is_reaped(tmp_path: Path) -> None:
    code, [event] = drive(tmp_path, REAPED_DAEMON, "late")
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


def test_a_process_that_the_program_has_left_does_not_wait_for_ever_to_listen(tmp_path: Path) -> None:
    """The process that records what it prints has the trap of its listen(), which no process handles any more."""
    source = "leave_listener(parent, link, outputs); report_end(0)"
    subprocess.run([*DRIVE, str(tmp_path), source, "trapped"], timeout=60, check=True)
    wait_for(lambda: (tmp_path / "listened").exists())


@contextmanager
def ready(folder: Path, source: str) -> Iterator[Command]:
    """A driver whose program executes some Python and waits, when both would handle SIGTERM."""
    with running(*DRIVE, str(folder), f"{source}\nwait_until_ready()", stdout=subprocess.PIPE) as process:
        assert sorted([process.stdout.readline(), process.stdout.readline()]) == ["driving\n", "ready\n"]
        yield process


def test_sigterm_is_passed_on_to_the_program(tmp_path: Path) -> None:
    with ready(tmp_path, "") as process:
        process.terminate()
        assert process.wait(60) == 143
    events = [json.loads(line) for line in (tmp_path / EVENTS).read_text().splitlines()]
    assert events == [{"event": "stopped", "result": None}], "the agent knows why it was told to end"


def test_what_a_program_has_started_ends_with_it_if_it_is_terminated(tmp_path: Path) -> None:
    with ready(tmp_path, "start_child()") as process:
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
