"""Things that break underneath: folders that move, helpers that hang, commands that die, descriptors that run out."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
from functools import partial
from pathlib import Path

import pytest

from tests.conftest import COMMAND, HANG, HANGING_AGENT, Sandbox, wait_for
from tfcluster.version import PROTOCOL

SPEC = "name: tough\njobs:\n  ps: {tasks: 1}\n  worker: {tasks: 2}\n"


def helper(sandbox: Sandbox, word: str) -> int:
    """The pid of one of the agent's helpers, once it is there."""
    return int(wait_for(lambda: [pid for pid, title in sandbox.processes().items() if title.endswith(word)])[0])


@pytest.mark.slow
def test_commands_connect_whatever_the_runtime_directory(sandbox: Sandbox, tmp_path: Path) -> None:
    sandbox("up", sandbox.spec(SPEC))
    elsewhere = {"XDG_RUNTIME_DIR": str(tmp_path / "elsewhere")}
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    assert json.loads(sandbox("status", "-o", "json", env=elsewhere).stdout)["state"] == "running"
    assert "already" in sandbox("up", env=elsewhere).stdout
    sandbox("down", env=elsewhere)
    assert sandbox.leftovers() == []


@pytest.mark.slow
def test_an_agent_without_its_socket_is_named_and_can_be_replaced(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec(SPEC), env=sandbox.with_fault(*HANGING_AGENT))
    os.kill(sandbox.agent(), HANG)  # so that it cannot create the socket again
    next((sandbox.folder / "run/tfcluster").iterdir()).unlink()
    sooner = sandbox.with_settings({"AGENT_CONNECT_SECONDS": 1.0})
    commands = [sandbox.start(command, env=sooner) for command in ("status", "up", "down")]
    for command in commands:
        _, error = command.communicate(timeout=90)
        assert command.returncode == 5, error
        assert "does not listen at" in error
        assert f"{sandbox.folder}/state/tfcluster/tough/localhost/lock" in error
    sandbox.kill_agent()
    assert sandbox.status()["state"] == "running"


@pytest.mark.slow
def test_an_agent_that_hangs_is_named(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec(SPEC), env=sandbox.with_fault(*HANGING_AGENT))
    agent = sandbox.agent()
    os.kill(agent, HANG)
    sooner = sandbox.with_settings({"RPC_TIMEOUT_SECONDS": 2.0})
    commands = [sandbox.start(command, env=sooner) for command in ("status", "down", "logs")]
    for command in commands:
        _, error = command.communicate(timeout=90)
        assert command.returncode == 5, error
        assert f"the agent (pid {agent}) has not answered within 2 s" in error
    sandbox.kill_agent()
    assert sandbox.status()["state"] == "running"


@pytest.mark.slow
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


@pytest.mark.slow
def test_an_unreadable_journal_is_kept_and_reported(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec(SPEC))
    status = sandbox.status()
    journal = next(sandbox.folder.glob("state/**/journal.json"))
    kept = journal.read_text()
    damaged = json.dumps({"topology": 1, "protocol": PROTOCOL})
    sandbox.kill_agent()
    journal.write_text(damaged)
    journal.with_suffix(".copy").write_text(damaged)
    error = sandbox("status", code=1).stderr
    assert f"{journal} is damaged" in error
    assert {task["pid"] for task in status["tasks"]} <= set(sandbox.processes())
    journal.write_text(kept)
    assert sandbox.status()["state"] == "running"


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_fork_server_that_is_stopped_is_replaced_and_costs_no_run(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec(SPEC))
    sandbox("run", "pi", "--samples", "1000")
    for _ in range(2):
        stopped = helper(sandbox, " fork server")
        os.kill(stopped, signal.SIGSTOP)
        sandbox("run", "pi", "--samples", "1000")
        assert helper(sandbox, " fork server") != stopped
    assert sandbox("events").stdout.count("fork-server-killed") == 2


@pytest.mark.slow
def test_a_fork_server_that_hangs_does_not_hold_up_down(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec(SPEC))
    sandbox("run", "pi", "--samples", "1000")
    os.kill(helper(sandbox, " fork server"), signal.SIGSTOP)
    waiting = sandbox.start("run", "pi", "--samples", "1e14")
    wait_for(lambda: sandbox.status()["runs"][-1]["state"] in ("queued", "running"))
    sandbox("down")
    _, error = waiting.communicate(timeout=60)
    assert waiting.returncode == 1
    assert "was cancelled" in error


@pytest.mark.slow
def test_runs_cost_the_agent_no_descriptors_and_are_cancelled_where_their_command_dies(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec(SPEC))
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


@pytest.mark.slow
def test_too_few_file_descriptors_are_reported_and_down_cleans_up(sandbox: Sandbox) -> None:
    spec = sandbox.spec("name: many\njobs:\n  worker: {tasks: 30}\nrestart: {policy: never}\n")
    up = subprocess.run(
        [*COMMAND, "up", str(spec), "--timeout", "20"],
        env=sandbox.environment,
        cwd=sandbox.folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (110, 110)),  # for the ports, not for all servers
    )
    assert up.returncode == 4
    assert "Too many open files" in up.stderr
    assert "Traceback" not in up.stderr
    sandbox("down")
    assert sandbox.leftovers() == []


@pytest.mark.slow
def test_too_few_file_descriptors_for_the_ports_are_reported(sandbox: Sandbox) -> None:
    spec = sandbox.spec("name: many\njobs:\n  worker: {tasks: 30}\n")
    up = subprocess.run(
        [*COMMAND, "up", str(spec)],
        env=sandbox.environment,
        cwd=sandbox.folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)),
    )
    assert up.returncode == 1
    assert "Too many open files" in up.stderr
    assert "Traceback" not in up.stderr
    wait_for(lambda: not sandbox.leftovers())


@pytest.mark.slow
def test_servers_are_not_taken_for_dead_when_descriptors_run_out(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec(SPEC))
    before = sandbox.status()
    for limit in (16, 17, 18):  # the agent runs out at another step of its adoption with each
        if any(title.endswith(" agent on localhost") for title in sandbox.processes().values()):
            sandbox.kill_agent()
        status = subprocess.run(
            [*COMMAND, "status"],
            env=sandbox.environment,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
            preexec_fn=partial(resource.setrlimit, resource.RLIMIT_NOFILE, (limit, limit)),
        )
        assert status.returncode == 0 or "Too many open files" in status.stderr
        assert "Traceback" not in status.stderr
    after = sandbox.wait_until("running")
    assert [task["pid"] for task in after["tasks"]] == [task["pid"] for task in before["tasks"]]
    assert [task["restarts"] for task in after["tasks"]] == [0, 0, 0]


@pytest.mark.slow
def test_two_ups_of_different_specs_at_once(sandbox: Sandbox) -> None:
    one = sandbox.spec("name: same\njobs:\n  worker: {tasks: 1}\n", "one.yaml")
    two = sandbox.spec("name: same\njobs:\n  trainer: {tasks: 1}\n", "two.yaml")
    ups = [sandbox.start("up", spec, "--yes", "--replace-spec") for spec in (one, two)]
    errors = [up.communicate(timeout=60)[1] for up in ups]
    # The agent rejects the later plan, and its `up` plans again; the earlier `up` may still wait for the replaced task.
    assert sorted(up.returncode for up in ups) in ([0, 0], [0, 4]), errors
    (task,) = sandbox.status()["tasks"]
    assert task["job"] in ("worker", "trainer")


@pytest.mark.slow
def test_following_ends_well_with_the_cluster(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec(SPEC))
    followers = [sandbox.start("logs", "-f"), sandbox.start("events", "-f")]
    for follower in followers:
        follower.stdout.readline()
    sandbox("down")
    outputs = [follower.communicate(timeout=60)[0] for follower in followers]
    assert [follower.returncode for follower in followers] == [0, 0]
    assert outputs[1].splitlines()[-1].split()[2:] == ["cluster", "down"]


@pytest.mark.slow
def test_down_of_a_cluster_whose_logs_are_being_read(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec(SPEC))
    sandbox("down")
    reading = sandbox.start("logs", "-f", "-c", "tough", "-n", "1")
    reading.stdout.readline()
    assert "is not running" in sandbox("down", "-c", "tough", code=3).stderr
    reading.send_signal(signal.SIGINT)
    reading.communicate(timeout=60)
    wait_for(lambda: not sandbox.leftovers())


@pytest.mark.parametrize("command", ["status", "logs"])
def test_output_that_cannot_be_written_is_no_mistake_of_ours(demo: Sandbox, command: str) -> None:
    buffered = {name: value for name, value in demo.environment.items() if name != "PYTHONUNBUFFERED"}
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            [*COMMAND, command], env=buffered, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert result.returncode == 1
    assert result.stderr == "error: No space left on device\n"


@pytest.mark.slow
def test_events_include_their_cause(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec("name: told\njobs:\n  worker: {tasks: 1}\n"))
    os.kill(sandbox.task("worker:0")["pid"], signal.SIGKILL)
    wait_for(lambda: sandbox.wait_until("running")["tasks"][0]["restarts"])
    sandbox.kill_agent()
    sandbox("status")
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


@pytest.mark.slow
def test_a_journal_that_cannot_be_written_for_a_while(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec(SPEC + "restart: {backoff: {initial: 0.5, max: 0.5}, limit: 1000 in 60}\n"))
    obstacle = next(sandbox.folder.glob("state/**/journal.json")).with_suffix(".json.new")
    obstacle.mkdir()  # where the next record would be written
    worker = sandbox.task("worker:0")["pid"]
    os.kill(worker, signal.SIGKILL)
    wait_for(lambda: worker not in sandbox.processes())
    obstacle.rmdir()
    wait_for(lambda: sandbox.wait_until("running")["tasks"][1]["pid"] != worker)
    sandbox("down")
    assert sandbox.leftovers() == []
