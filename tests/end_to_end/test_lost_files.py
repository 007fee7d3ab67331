"""What others remove or do not see while a cluster runs: the runtime folder, the lock, the socket, the state, /tmp."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import COMMAND, Sandbox, mostly_slow, wait_for
from tfcluster.os.process_handle import ProcessHandle

SPEC = "name: lost\njobs:\n  worker: {tasks: 2, env: {TOKEN: {secret: hunter2}}}\n"


def folder_of(sandbox: Sandbox, cluster: str = "lost") -> Path:
    return sandbox.folder / f"state/tfcluster/{cluster}/localhost"


def agent_of(sandbox: Sandbox) -> ProcessHandle:
    process = ProcessHandle.from_pid(sandbox.recorded_agent())
    assert process is not None, "it runs"
    return process


def kill_worker(sandbox: Sandbox) -> Any:
    """Kill worker:0, and return its status once it has another process, or has failed."""
    pid = sandbox.task("worker:0", code=None)["pid"]
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: sandbox.task("worker:0", code=None)["pid"] != pid)
    wait_for(lambda: sandbox.task("worker:0", code=None)["state"] in ("ready", "failed"))
    return sandbox.task("worker:0", code=None)


@pytest.mark.slow
def test_a_logout_that_removes_the_runtime_folder(sandbox: Sandbox) -> None:
    spec = sandbox.spec(SPEC)
    sandbox("up", spec)
    agent, pids = sandbox.agent(), sandbox.tasks("pid")
    shutil.rmtree(sandbox.folder / "run")
    assert (sandbox.agent(), sandbox.tasks("pid")) == (agent, pids)
    # The agent knows the secrets, also for a new process.
    assert kill_worker(sandbox)["state"] == "ready"
    # The next one does not, and names the command that gives them again. Tasks that run continue.
    sandbox.kill_agent()
    assert sandbox.tasks("pid")["worker:1"] == pids["worker:1"]
    failed = kill_worker(sandbox)
    assert failed["state"] == "failed"
    assert "TOKEN" in json.dumps(failed)
    assert "`tfcluster up" in sandbox("status", code=4).stdout
    sandbox("up", spec, "--yes")  # what worker:1 has cannot be compared
    assert "hunter2" in sandbox("env", "worker:0").stdout
    sandbox("down")
    assert sandbox.leftovers() == []


@pytest.mark.parametrize("damage", mostly_slow(["delete", "replace"], fast=["delete"]))
def test_an_agent_exits_when_its_lock_file_is_gone(sandbox: Sandbox, damage: str) -> None:
    sandbox("up", sandbox.spec(SPEC))
    pids, agent = sandbox.tasks("pid"), agent_of(sandbox)
    run = sandbox.start("run", "pi", "--samples", "1e12", "--timeout", "600", "-o", "json")
    assert json.loads(run.stdout.readline())["event"] == "run"
    lock = folder_of(sandbox) / "lock"
    lock.unlink()
    if damage == "replace":
        lock.touch()
    wait_for(lambda: not agent.is_alive())
    # The next command starts another one, which adopts all.
    sandbox.wait_until("running")
    assert sandbox.json("runs")[-1]["state"] in ("queued", "running")
    assert sandbox.tasks("pid") == pids
    assert agent_of(sandbox) != agent
    log = (folder_of(sandbox) / "logs/agent.log").read_text()
    assert re.search(rf"agent-stopped: pid {agent.pid}, as its lock file in \S+ was deleted; the tasks continue", log)
    run.send_signal(signal.SIGINT)
    run.communicate(timeout=60)
    sandbox("down")
    assert sandbox.leftovers() == []


def test_a_deleted_state_folder_ends_the_agent_and_down_ends_the_servers(sandbox: Sandbox) -> None:
    spec = sandbox.spec(SPEC)
    sandbox("up", spec)
    agent, tasks = agent_of(sandbox), {f"{name} (pid {pid})" for name, pid in sandbox.tasks("pid").items()}
    subprocess.run(["rm", "-r", sandbox.folder / "state"], check=True)  # as it is deleted without a word
    wait_for(lambda: not agent.is_alive())
    assert not (sandbox.folder / "state").exists()
    for command, code in ((("status",), 3), (("up", spec), 1)):
        error = sandbox(*command, code=code).stderr
        assert "`tfcluster down -c lost` stops them" in error
        assert tasks <= set(re.findall(r"\w+:\d \(pid \d+\)", error))
    assert tasks <= set(re.findall(r"\w+:\d \(pid \d+\)", sandbox("down").stderr))
    assert sandbox.leftovers() == []


@pytest.mark.slow
def test_a_stopped_agent_whose_state_folder_was_deleted_keeps_a_second_one_from_starting(sandbox: Sandbox) -> None:
    spec = sandbox.spec(SPEC)
    sandbox("up", spec)
    agent = agent_of(sandbox)
    os.kill(agent.pid, signal.SIGSTOP)
    shutil.rmtree(sandbox.folder / "state")
    sooner = sandbox.with_settings({"AGENT_EXIT_SECONDS": 3.0})
    for command in (("up", spec), ("down",)):
        error = sandbox(*command, code=5, env=sooner).stderr
        assert f"the agent of cluster 'lost' (pid {agent.pid}) is running, but does not listen at" in error
        assert f"`kill -9 {agent.pid}`" in error
    os.kill(agent.pid, signal.SIGKILL)
    wait_for(lambda: not agent.is_alive())
    assert "stopped 2 processes of lost that no journal recorded" in sandbox("down").stderr
    assert sandbox.leftovers() == []


@pytest.mark.slow
def test_a_deleted_socket_is_named_with_the_command_that_helps(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec(SPEC))
    pids, agent = sandbox.tasks("pid"), agent_of(sandbox)
    (folder_of(sandbox) / "socket").unlink()
    error = sandbox("status", code=5, env=sandbox.with_settings({"AGENT_CONNECT_SECONDS": 1.0})).stderr
    assert f"(pid {agent.pid}) is running, but does not listen at {folder_of(sandbox)}/socket" in error
    assert f"`kill -9 {agent.pid}`: the tasks continue, and the next command starts another agent" in error
    os.kill(agent.pid, signal.SIGKILL)
    assert sandbox.wait_until("running")["state"] == "running"
    assert sandbox.tasks("pid") == pids
    sandbox("down")
    assert sandbox.leftovers() == []


@pytest.mark.slow
def test_a_state_folder_with_a_long_path(sandbox: Sandbox) -> None:
    """Longer than the address of a Unix socket."""
    long = sandbox.folder / ("x" * 100) / ("y" * 100)
    env = {"XDG_STATE_HOME": str(long)}
    sandbox("up", sandbox.spec(SPEC), env=env)
    assert sandbox("exec", "--", "sh", "-c", "echo $TF_CONFIG", env=env).stdout.startswith("{")
    assert "pi = 3.1" in sandbox("run", "pi", "--samples", "1e5", env=env).stdout
    sandbox("down", env=env)
    assert {path.name for path in (long / "tfcluster/lost/localhost").iterdir()} == {"logs", "runs"}
    assert sandbox.processes() == {}


LOCK_DAMAGE: dict[str, Callable[[Path], object]] = {
    "deep": lambda path: path.write_text("[" * 100_000),
    "nothing": lambda path: os.truncate(path, 0),
    "not a number": lambda path: path.write_text('{"pid": "x"}'),
}


@pytest.mark.slow
def test_commands_work_with_a_damaged_lock_file(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec(SPEC))
    for name, damage in LOCK_DAMAGE.items():
        if name == "deep":  # this one the next agent finds
            sandbox.kill_agent()
        damage(folder_of(sandbox) / "lock")
        sandbox.wait_until("running")
    sandbox("down")
    assert sandbox.leftovers() == []


@pytest.mark.needs("root")
@pytest.mark.parametrize("inside", mostly_slow(["agent", "commands"], fast=["agent"]))
def test_an_agent_and_commands_with_different_folders_tmp(sandbox: Sandbox, tmp_path: Path, inside: str) -> None:
    """As a service of systemd with PrivateTmp=, and commands outside of it, or the reverse."""
    spec, temporary = sandbox.spec(SPEC), tmp_path / "tmp"
    temporary.mkdir()
    env = {**sandbox.with_settings({"TEMPORARY_FOLDER": str(temporary)}), "XDG_RUNTIME_DIR": ""}
    private = ("unshare", "--mount", "sh", "-c", f'mount -t tmpfs none {temporary} && exec "$@"', "sh")

    def call(who: str, *arguments: str | Path) -> str:
        result = sandbox.execute(*(private if who == inside else ()), *COMMAND, *arguments, env=env)
        assert result.returncode == 0, result.stderr
        return str(result.stdout)

    call("agent", "up", spec)
    assert json.loads(call("commands", "status", "-o", "json"))["state"] == "running"
    assert "pi = 3.1" in call("commands", "run", "pi", "--samples", "1e5")
    assert "2 tasks stopped" in call("commands", "down")
    assert sandbox.leftovers() == []


# Executes a command for which no file system has sockets, see landlock(7).
_WITHOUT_SOCKETS = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
make_sockets = ctypes.c_uint64(1 << 9)  # LANDLOCK_ACCESS_FS_MAKE_SOCK
ruleset = libc.syscall(444, ctypes.byref(make_sockets), ctypes.sizeof(make_sockets), 0)
assert ruleset >= 0, os.strerror(ctypes.get_errno())
assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
assert libc.syscall(446, ruleset, 0) == 0, os.strerror(ctypes.get_errno())
os.execvp(sys.argv[1], sys.argv[1:])
"""


def test_a_file_system_without_sockets(sandbox: Sandbox) -> None:
    """As FAT, SFTP and some network file systems."""
    up = sandbox.execute(sys.executable, "-c", _WITHOUT_SOCKETS, *COMMAND, "up", sandbox.spec(SPEC))
    assert up.returncode == 1
    assert f"error: {folder_of(sandbox)}/socket: cannot create the agent's socket: Permission denied" in up.stderr
    assert "XDG_STATE_HOME" in up.stderr
    assert "`state:`" in up.stderr
    assert sandbox.leftovers() == []


@pytest.mark.slow
@pytest.mark.needs("strace")
def test_a_file_system_that_hangs_stops_no_probes(sandbox: Sandbox) -> None:
    """As NFS does: an agent with nothing to record looks at no file but the kernel's own."""
    sandbox("up", sandbox.spec(SPEC))
    sandbox("run", "pi", "--samples", "1e5")
    pid, trace = sandbox.agent(), sandbox.folder / "trace"
    command = ["strace", "-p", str(pid), "-e", "trace=%file", "-o", str(trace)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as tracing:
        assert tracing.stderr is not None
        assert "attached" in tracing.stderr.readline()
        wait_for(lambda: trace.read_text().count('"/proc/stat"') >= 4)  # it measures the host once a second
        tracing.terminate()
    paths = set(re.findall(r'"(/[^"]*)"', trace.read_text()))
    assert {path for path in paths if not path.startswith(("/proc/", "/sys/"))} == set()


@pytest.mark.slow
def test_commands_connect_whatever_the_runtime_directory(sandbox: Sandbox, tmp_path: Path) -> None:
    sandbox("up", sandbox.spec(SPEC))
    elsewhere = {"XDG_RUNTIME_DIR": str(tmp_path / "elsewhere")}
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    assert json.loads(sandbox("status", "-o", "json", env=elsewhere).stdout)["state"] == "running"
    assert "already" in sandbox("up", env=elsewhere).stdout
    sandbox("down", env=elsewhere)
    assert sandbox.leftovers() == []
