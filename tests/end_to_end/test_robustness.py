"""Things that break underneath: folders, helpers that hang, commands that die, descriptors, ports that others take."""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pexpect
import pytest

from tests.conftest import COMMAND, HANG, HANGING_AGENT, Result, Sandbox, lines_of, running, wait_for
from tests.stuck import is_stuck, silent_file_system

pytestmark = pytest.mark.slow

SPEC = "name: tough\njobs:\n  ps: {tasks: 1}\n  worker: {tasks: 2}\n"


def helper(sandbox: Sandbox, word: str) -> int:
    return int(wait_for(lambda: [pid for pid, title in sandbox.processes().items() if title.endswith(word)])[0])


def test_commands_connect_whatever_the_runtime_directory(sandbox: Sandbox, tmp_path: Path) -> None:
    sandbox("up", sandbox.spec(SPEC))
    elsewhere = {"XDG_RUNTIME_DIR": str(tmp_path / "elsewhere")}
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    assert json.loads(sandbox("status", "-o", "json", env=elsewhere).stdout)["state"] == "running"
    assert "already" in sandbox("up", env=elsewhere).stdout
    sandbox("down", env=elsewhere)
    assert sandbox.leftovers() == []


def test_a_command_does_not_hang_when_the_agent_dies_during_adoption(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec(SPEC))
    first = helper(sandbox, " log writer")
    stopped = sandbox.task("worker:0")["pid"]
    os.kill(stopped, signal.SIGSTOP)  # the next agent waits for its answer before it says that it listens
    sandbox.kill_agent()
    status = sandbox.start("status")
    keeper = wait_for(
        lambda: [pid for pid, title in sandbox.processes().items() if title.endswith(" log writer") and pid != first]
    )[0]
    os.kill(int(Path(f"/proc/{keeper}/stat").read_text().rpartition(")")[2].split()[1]), signal.SIGKILL)
    _, error = status.communicate(timeout=90)
    assert "has not said that it listens" not in error, "the keeper lives on and must not keep the line open"
    os.kill(stopped, signal.SIGCONT)
    sandbox.wait_until("running")


def test_down_goes_on_when_its_command_dies(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec(SPEC))
    for task in sandbox.status()["tasks"]:
        os.kill(task["pid"], signal.SIGSTOP)  # so that it takes the grace period
    for grace in ("600", "1"):  # the ps, which comes last, has no more time than the second one gives either
        down = sandbox.start("down", "--grace", grace)
        down.stderr.readline()
        down.kill()
        down.communicate()
    wait_for(lambda: not sandbox.leftovers())
    sandbox("up")


def has_ended(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_a_run_says_that_tensorflow_is_being_imported(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec(SPEC, warm=True))
    script = sandbox.spec("print('begins', flush=True)\nprint('got', input())\n", "asks.py")
    for is_terminal in (False, True):
        ended = helper(sandbox, " fork server")
        os.kill(ended, signal.SIGKILL)
        wait_for(partial(has_ended, ended))
        if is_terminal:
            shown = sandbox.at_terminal(*sandbox.command, "run", script)
            shown.expect_exact("TensorFlow is being imported")
            shown.expect_exact("begins\r\n")
            shown.sendline("typed")
            shown.expect_exact("got typed\r\n")
            shown.expect(pexpect.EOF)
            shown.close()
            assert shown.exitstatus == 0
        else:
            result = sandbox.execute(*sandbox.command, "run", "-o", "json", script, input="x\n")
            kinds = [each["event"] for each in lines_of(result.stdout)]
            assert (kinds[:3], {*kinds[3:]}) == (["run", "importing", "imported"], {"output", "result"})


def test_runs_cost_the_agent_no_descriptors_and_are_cancelled_where_their_command_dies(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec(SPEC, warm=True))
    agent = sandbox.agent()

    def descriptors() -> int:
        return len(os.listdir(f"/proc/{agent}/fd"))

    sandbox("run", "pi", "--samples", "1000")
    before = descriptors()
    for _ in range(2):
        sandbox("run", "pi", "--samples", "1000")
        sandbox("run", "pi", "--samples", "1e12", "--timeout", "0.5", code=124)
        run = sandbox.start("run", "pi", "--samples", "1e14", "-o", "json")
        run.stdout.readline()
        run.kill()
        run.communicate()
        wait_for(lambda: sandbox.status()["runs"][-1]["state"] == "cancelled")
    wait_for(lambda: descriptors() <= before)  # the end of a command is seen, or a health check over, a moment later


def with_descriptors(sandbox: Sandbox, limit: int, *words: str) -> Result:
    """Run a command that may have at most this many open files; it does not crash."""
    limited = partial(resource.setrlimit, resource.RLIMIT_NOFILE, (limit, limit))
    result = sandbox.execute(*COMMAND, *words, preexec_fn=limited)
    assert result.returncode == 0 or "Too many open files" in result.stderr
    assert "Traceback" not in result.stderr
    return result


@pytest.mark.parametrize(("limit", "code"), [(110, 4), (64, 1)], ids=["for all servers", "for the ports"])
def test_too_few_file_descriptors_are_reported_and_nothing_is_left(sandbox: Sandbox, limit: int, code: int) -> None:
    sandbox.spec("name: many\njobs:\n  worker: {tasks: 30}\nrestart: {policy: never}\n")
    assert with_descriptors(sandbox, limit, "up", "--timeout", "20").returncode == code
    sandbox("down", code=0 if code == 4 else 3)
    wait_for(lambda: not sandbox.leftovers())


def test_servers_are_not_taken_for_dead_when_descriptors_run_out(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec(SPEC))
    before = sandbox.tasks("pid")
    for limit in (16, 17, 18):  # the agent runs out at another step of its adoption with each
        if any(title.endswith(" agent on localhost") for title in sandbox.processes().values()):
            sandbox.kill_agent()
        with_descriptors(sandbox, limit, "status")
    sandbox.wait_until("running")
    assert sandbox.tasks("pid") == before
    assert {*sandbox.tasks("restarts").values()} == {0}


def test_two_ups_of_different_specs_at_once(sandbox: Sandbox) -> None:
    one = sandbox.spec("name: same\njobs:\n  worker: {tasks: 1}\n", "one.yaml")
    two = sandbox.spec("name: same\njobs:\n  trainer: {tasks: 1}\n", "two.yaml")
    ups = [sandbox.start("up", spec, "--yes", "--replace-spec") for spec in (one, two)]
    errors = [up.communicate(timeout=60)[1] for up in ups]
    # The agent rejects the later plan, and its `up` plans again; the earlier `up` may still wait for the replaced task.
    assert sorted(up.returncode for up in ups) in ([0, 0], [0, 4]), errors
    (task,) = sandbox.status()["tasks"]
    assert task["job"] in ("worker", "trainer")


def test_following_ends_well_with_the_cluster_and_does_not_disturb_a_later_down(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec(SPEC))
    followers = [sandbox.start("logs", "-f"), sandbox.start("events", "-f")]
    for follower in followers:
        follower.stdout.readline()
    sandbox("down")
    outputs = [follower.communicate(timeout=60)[0] for follower in followers]
    assert [follower.returncode for follower in followers] == [0, 0]
    assert outputs[1].splitlines()[-1].split()[2:] == ["cluster", "down"]
    reading = sandbox.start("logs", "-f", "-c", "tough", "-n", "1")
    reading.stdout.readline()
    assert "is not running" in sandbox("down", "-c", "tough", code=3).stderr
    reading.send_signal(signal.SIGINT)
    reading.communicate(timeout=60)


def test_events_include_their_cause(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec("name: told\njobs:\n  worker: {tasks: 1}\n"))
    os.kill(sandbox.task("worker:0")["pid"], signal.SIGKILL)
    wait_for(lambda: sandbox.wait_until("running")["tasks"][0]["restarts"])
    sandbox.kill_agent()
    sandbox.wait_until("running")
    sandbox("down")
    events = sandbox.json_lines("events", "-c", "told")
    assert [(event["task"], event["event"]) for event in events] == [
        (None, "up"),
        ("worker:0", "started"),
        ("worker:0", "ready"),
        ("worker:0", "died"),
        ("worker:0", "started"),
        ("worker:0", "ready"),
        (None, "agent-started"),
        ("worker:0", "adopted"),
        ("worker:0", "ready"),  # the journal does not say whether a server that was just started answered
        ("worker:0", "stopping"),
        ("worker:0", "stopped"),
        (None, "down"),
    ]
    assert events[3]["detail"] == "SIGKILL; restarting immediately"


READ = """
import os
import tensorflow.compat.v1 as tf

with tf.Graph().as_default(), tf.Session(os.environ["TFCLUSTER_MASTER"]) as session:
    with tf.device("/job:worker/task:1"):
        session.run(tf.io.read_file(os.environ["STUCK_FILE"]))
"""


@pytest.mark.needs("root")
def test_down_names_a_server_that_waits_for_its_disk(
    sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """SIGKILL does not end it."""
    mounted = tmp_path_factory.mktemp("mounted")  # not beside the script, whose folder Python looks through
    sandbox("up", sandbox.spec(SPEC), env=sandbox.with_settings({"KILL_SECONDS": 2.0}))
    pid = sandbox.task("worker:1")["pid"]
    with silent_file_system(mounted):
        run = sandbox.start("run", sandbox.spec(READ, "read.py"), env={"STUCK_FILE": str(mounted / "data")})
        wait_for(lambda: is_stuck(pid))
        failed = sandbox("down", "--grace", "1", code=1, timeout=40)
        assert f"worker:1 (pid {pid}) of cluster 'tough': still running 2 s after SIGKILL" in failed.stderr
        assert not [title for title in sandbox.processes().values() if title.split()[-1] in ("ps:0", "worker:0")]
        run.wait(30)
    assert "tough is down" in sandbox("down").stdout


TAKEN = "name: taken\njobs:\n  worker: {tasks: 2}\n"

_LISTEN = """
import socket, sys
with socket.socket() as server:
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(("127.0.0.1", int(sys.argv[1])))
    server.listen()
    print("listening", flush=True)
    sys.stdin.read()
"""


@contextmanager
def taken(port: int) -> Iterator[int]:
    """Another process listens on a port; gives its pid."""
    with running(sys.executable, "-c", _LISTEN, str(port), stdin=-1, stdout=-1) as stranger:
        assert stranger.stdout.readline() == "listening\n"
        yield stranger.pid


def port_of(sandbox: Sandbox, short: str) -> int:
    return int(sandbox.task(short)["address"].rpartition(":")[2])


def kill_all(sandbox: Sandbox) -> None:
    """End the agent and all servers, as a machine does that is switched off."""
    servers = [os.pidfd_open(pid) for pid in sandbox.tasks("pid").values()]
    sandbox.kill_agent()
    for server in servers:
        signal.pidfd_send_signal(server, signal.SIGKILL)
    # A pidfd is readable when the last thread has exited: a process loses its mark before its sockets are closed.
    wait_for(lambda: len(select.select(servers, [], [], 0)[0]) == len(servers))
    for server in servers:
        os.close(server)


def test_the_holder_is_named_and_the_task_is_started_when_the_port_is_free(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec(TAKEN))
    port = port_of(sandbox, "worker:0")
    kill_all(sandbox)
    with taken(port) as stranger:

        def named() -> bool:
            last = sandbox.task("worker:0", code=4)["last_exit"]
            return f"port {port} is taken by process {stranger} (" in last["detail"]

        wait_for(named)
        task = sandbox.task("worker:0", code=4)
        assert (task["state"], task["last_exit"]["reason"]) == ("backing-off", "not started")
        assert f"port {port} is taken by process {stranger}" in sandbox("status", code=4).stdout
        wait_for(lambda: sandbox.task("worker:1", code=4)["state"] == "ready")
        # However long it takes: its end is not the task's.
        events = sandbox("events", "-o", "json").stdout
        assert events.count('"blocked"') == 1
        assert sandbox.task("worker:0", code=4)["restarts"] == 0
        assert "Could not start gRPC server" not in sandbox("logs").stdout
        # A restart waits for it, too.
        restart = sandbox.start("restart", "worker:0", "--yes")
        wait_for(lambda: sandbox("events", "-o", "json").stdout.count('"blocked"') == 2)
    _, error = restart.communicate(timeout=90)
    assert restart.returncode == 0, error
    assert sandbox.wait_until("running")["tasks"][0]["address"].endswith(f":{port}")


def test_a_task_without_restarts_reports_who_has_its_port(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec(TAKEN + "restart: {policy: never}\n"))
    port = port_of(sandbox, "worker:0")
    kill_all(sandbox)
    wait_for(lambda: sandbox.status(code=4)["state"] == "failed")
    sandbox.kill_agent()
    with taken(port) as stranger:
        error = sandbox("up", code=4).stderr
        assert f"port {port} is taken by process {stranger}" in error
    sandbox("up")
    assert sandbox.status()["state"] == "running"


def test_an_agent_that_a_signal_has_stopped_is_named_with_the_command_that_continues_it(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec(SPEC))
    agent, tasks = sandbox.agent(), sandbox.tasks("pid")
    os.kill(agent, signal.SIGSTOP)
    sooner = sandbox.with_settings({"RPC_TIMEOUT_SECONDS": 2.0, "RPC_SLOW_TIMEOUT_SECONDS": 2.0})
    for command in [sandbox.start(*words, env=sooner) for words in (["status"], ["down"], ["doctor"])]:
        output, error = command.communicate(timeout=90)
        assert command.returncode == 5, error
        assert f"the agent (pid {agent}) has not answered within 2 s" in output + error
        assert f"`kill -CONT {agent}`" in output + error
    os.kill(agent, signal.SIGCONT)
    assert (sandbox.agent(), sandbox.tasks("pid")) == (agent, tasks)


def test_an_agent_that_hangs_is_named_and_can_be_replaced(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec(SPEC), env=sandbox.with_fault(*HANGING_AGENT))
    agent = sandbox.agent()
    os.kill(agent, HANG)
    sooner = sandbox.with_settings({"RPC_TIMEOUT_SECONDS": 2.0, "AGENT_CONNECT_SECONDS": 1.0})
    for command in [sandbox.start(word, env=sooner) for word in ("status", "down", "logs")]:
        _, error = command.communicate(timeout=90)
        assert command.returncode == 5, error
        assert f"the agent (pid {agent}) has not answered within 2 s" in error
    sandbox.kill_agent()
    sandbox.wait_until("running")


@pytest.mark.slow
def test_a_fork_server_that_is_stopped_does_not_hold_up_down(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec(SPEC, warm=True))
    sandbox("run", "pi", "--samples", "1000")
    os.kill(helper(sandbox, " fork server"), signal.SIGSTOP)
    waiting = sandbox.start("run", "pi", "--samples", "1e14")
    wait_for(lambda: sandbox.status()["runs"][-1]["state"] in ("queued", "running"))
    sandbox("down")
    assert "was cancelled" in waiting.communicate(timeout=60)[1]
    assert waiting.returncode == 1
