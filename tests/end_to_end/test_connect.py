"""Hosts that no ssh reaches: a program on this machine runs commands there, as `docker exec` does in a container."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.clusters import Hosts
from tests.conftest import mostly_slow, read_until, wait_for
from tests.end_to_end.test_reboot import run_as_cron
from tests.end_to_end.ways import check_way
from tests.hosts import CHANGED, CONNECT, HostsSandbox, over
from tests.strikes import reboot
from tfcluster.os.process_handle import ProcessHandle

NAMES = ("alpha", "beta")
JOBS = "jobs:\n  ps: {tasks: 1, hosts: [alpha]}\n  worker: {tasks: 2, hosts: [alpha, beta]}\n"


#: Whatever the fork server, and with it the drivers, find in their environment, runs have their folders from the agent.
HOSTS = Hosts(
    NAMES,
    JOBS,
    keys={"alpha": {"state": "{home}/scratch"}},
    has_sshd=False,
    changes={"tfcluster.processes.runs.fork_server": "os.environ['XDG_STATE_HOME'] = '/nowhere'"},
)


def kept_on(hosts: HostsSandbox, name: str) -> int:
    """The one process that is kept on a host; a session of a command ends a moment after the command has."""
    (kept,) = wait_for(lambda: len(entered := hosts.network.entered(name)) == 1 and entered)
    return int(kept)


def test_the_first_command_starts_one_on_each_host_and_later_ones_none(hosts: HostsSandbox) -> None:
    assert hosts.tasks("host") == {"ps:0": "alpha", "worker:0": "alpha", "worker:1": "beta"}
    kept = [kept_on(hosts, name) for name in NAMES]
    before = len(hosts.network.ssh_calls())
    hosts.spec("print('done')\n", "script.py")
    for command in (["status"], ["run", "script.py"], ["logs", "-n", "1"], ["up"]):
        hosts(*command)
    assert len(hosts.network.ssh_calls()) == before
    assert [kept_on(hosts, name) for name in NAMES] == kept


def test_all_that_a_command_does_on_a_host(hosts: HostsSandbox) -> None:
    check_way(hosts, "wide", "alpha")


# Ends well at SIGTERM, before it has said so.
_ENDS_WELL = "trap 'exit 0' TERM; echo ready; while :; do sleep 0.1; done"
# What it is given ends later, as with `docker exec`.
_LEAVES = """sh -c 'trap "exit 0" TERM; exec 3<&0; "$@" <&3 & wait' x """


def signalled(hosts: HostsSandbox, *arguments: str) -> int:
    """The exit code of an `exec` of a host that is ended by a signal."""
    process = hosts.start("exec", "--on", "alpha", *arguments, "--", "sh", "-c", _ENDS_WELL, stdin=subprocess.PIPE)
    assert process.stdout.readline() == "ready\n"
    process.terminate()
    return process.wait(60)


def test_exec_has_the_exit_code_of_what_a_signal_has_not_ended(hosts: HostsSandbox) -> None:
    assert signalled(hosts) == 0


@pytest.mark.slow
def test_exec_that_left_its_command_does_not_say_that_all_went_well(hosts: HostsSandbox) -> None:
    text = hosts.text(("alpha",), "jobs:\n  worker: {tasks: 1}\n").replace("name: wide", "name: left")
    hosts("up", hosts.spec(text.replace(f"'{CONNECT}'", json.dumps(_LEAVES + CONNECT)), "left.yaml"))
    try:
        assert signalled(hosts, "-c", "left") == 128 + signal.SIGTERM
    finally:
        hosts("down", "-c", "left")


@pytest.mark.slow
def test_a_way_that_falls_silent_is_given_up(hosts: HostsSandbox) -> None:
    soon = hosts.with_settings({"PING_SECONDS": 0.5, "PING_LOST_SECONDS": 6.0})
    follow = hosts.start("logs", "-f", "-n", "0", "worker:1", env=soon)
    entered = kept_on(hosts, "beta")
    time.sleep(8)  # longer than silence is accepted: the agent answers although it has nothing to say
    assert hosts.network.entered("beta") == [entered]
    os.kill(entered, signal.SIGSTOP)
    wait_for(lambda: hosts.network.entered("beta") not in ([], [entered]))
    hosts("restart", "worker:1")
    read_until(follow.stdout, "Started server")
    follow.send_signal(signal.SIGINT)
    assert follow.wait(60) == 130


@pytest.mark.slow
def test_a_cluster_that_nobody_started_here_runs_no_command(hosts: HostsSandbox, tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text(
        f"name: strange\nhosts: {{a: {{connect: sh -c 'touch {tmp_path / 'run'}'}}}}\njobs: {{worker: {{tasks: 1}}}}\n"
    )
    for command in (["status"], ["logs"], ["fetch", "run"], ["down"]):
        refused = hosts(*command, cwd=tmp_path, code=3).stderr
        assert "the command of `connect:` of host 'a' is not run" in refused, command
    hosts("status", "-c", "strange", cwd=tmp_path, code=3)
    assert not (tmp_path / "run").exists()
    hosts("up", cwd=tmp_path, code=5)
    assert (tmp_path / "run").exists()


_CAUSES = {
    "not found": ("nothing-like-this {host}", "cannot run nothing-like-this: No such file or directory"),
    "exit code": ("sh -c 'echo first >&2; echo last >&2; exit 9'", "sh ended with exit code 9 first last"),
    "no words": (
        "true",
        "true ended with exit code 0, and printed no error `true sh -c true` prints nothing either: correct `connect:`",
    ),
    "silence": ("sh -c 'sleep 600'", "no response within 1 s"),
    "no input": (
        "sh -c 'exec \"$@\" </dev/null' x",
        "sh does not pass on its standard input Add the option for that to `connect:`: -i for docker",
    ),
    "a terminal": (
        "script -qec {command} /dev/null",
        "script allocates a terminal, which changes the bytes that it passes on Delete that option, such as -t, from",
    ),
    "no shell": ("env -i PATH=/nowhere", "env ended with exit code 127 env: 'sh': No such file or directory"),
}


def ill_spec(folder: Path, keys: str) -> Path:
    """Write the spec of a cluster on alpha, with these keys of that host."""
    path = folder / "cluster.yaml"
    path.write_text(f"name: ill\nhosts: {{alpha: {{{keys}}}}}\njobs: {{worker: {{tasks: 1}}}}\n")
    return path


@pytest.mark.parametrize("cause", mostly_slow(_CAUSES, fast=["exit code", "silence", "no input"]))
def test_the_doctor_names_the_cause(hosts: HostsSandbox, tmp_path: Path, cause: str) -> None:
    connect, message = _CAUSES[cause]
    spec = ill_spec(tmp_path, f"address: 10.0.0.1, connect: {json.dumps(connect)}")
    few = hosts.with_settings({"SSH_FIRST_MESSAGE_SECONDS": 1.0}) if cause == "silence" else {}
    shown = (
        " ".join(hosts("doctor", spec, code=5, env=few).stdout.split()).replace("\u2018", "'").replace("\u2019", "'")
    )
    assert f"alpha reach problem cannot be reached: {message}" in shown


@pytest.mark.parametrize(
    ("keys", "code", "messages"),
    [
        (f"connect: '{CONNECT}', python: /nowhere/python", 1, ["there is no /nowhere/python to run"]),
        (
            f"connect: '{CONNECT}', python: /bin/ls",
            1,
            ["/bin/ls ended with exit code 2 before it answered as Python does", "correct `python:` of this host"],
        ),
        (f"setup: ['true'], connect: {json.dumps(_CAUSES['no input'][0])}", 5, ["does not pass on its standard input"]),
    ],
)
def test_up_names_the_key_to_correct(
    hosts: HostsSandbox, tmp_path: Path, keys: str, code: int, messages: list[str]
) -> None:
    error = hosts("up", ill_spec(tmp_path, f"address: {hosts.network.address('alpha')}, {keys}"), code=code).stderr
    assert all(message in error for message in messages), error
    assert not (hosts.network.home("alpha") / "state" / "tfcluster" / "ill").exists()


def link_process_of(hosts: HostsSandbox) -> ProcessHandle:
    """The process here that keeps the connections to the hosts."""
    (pid,) = hosts.pids("tfcluster: wide connections")
    process = ProcessHandle.from_pid(pid)
    assert process is not None
    return process


@pytest.mark.slow
def test_a_link_process_that_is_stopped_is_named_and_one_that_was_killed_costs_new_starts_only(
    hosts: HostsSandbox,
) -> None:
    link_process = link_process_of(hosts)
    os.kill(link_process.pid, signal.SIGSTOP)
    few = hosts.with_settings({"HOST_LINK_REPLY_SECONDS": 0.5, "HOST_LINK_START_SECONDS": 0.5})
    said = hosts("status", env=few, code=5).stderr
    assert "the process here that keeps its connection does not answer" in said
    assert "`ps` shows it as `tfcluster: wide connections`: kill it" in said
    link_process.kill()
    wait_for(lambda: not link_process.exists() and not any(map(hosts.network.entered, NAMES)))
    before = len(hosts.network.ssh_calls())
    hosts("status")
    hosts("status")
    assert len(hosts.network.ssh_calls()) - before == len(NAMES)
    assert link_process_of(hosts) != link_process


@pytest.mark.slow
def test_a_host_without_tasks_has_an_agent_only(needs_network: None, tmp_path: Path) -> None:
    with over(tmp_path, *NAMES, has_sshd=False) as sandbox:
        sandbox("up", sandbox.spec(sandbox.text(NAMES, "jobs:\n  worker: {tasks: 1, hosts: [alpha, beta]}\n")))
        titles = {pid: title.split(" ", 2)[-1] for pid, title in sandbox.processes().items()}
        assert sorted(titles.values()).count("log writer") == 1
        has_tensorflow = {
            titles[pid]: "libtensorflow" in Path(f"/proc/{pid}/maps").read_text()
            for pid in titles
            if titles[pid].startswith("agent on")
        }
        assert has_tensorflow == {"agent on alpha": True, "agent on beta": False}
        sandbox("scale", "worker=2", "--yes")
        sandbox("wait", "--ready")
        assert {task["host"] for task in sandbox.status()["tasks"]} == set(NAMES)


@pytest.mark.slow
def test_tensorboard_is_outside_of_a_private_network(needs_network: None, tmp_path: Path) -> None:
    with over(tmp_path, "alpha", has_sshd=False) as sandbox:
        jobs = "network: private\njobs: {worker: {tasks: 1}}\n"
        sandbox("up", sandbox.spec(sandbox.text(("alpha",), jobs)))
        code = "import os; open(os.environ['TFCLUSTER_OUTPUT'] + '/events.out.tfevents.1', 'w')"
        sandbox("run", sandbox.spec(code, "writes.py"))
        process = sandbox.start("tensorboard", sandbox.json("runs")[-1]["run"], "-o", "json")
        assert json.loads(process.stdout.readline())["url"], "it is shown when it has answered"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130


@pytest.mark.slow
def test_a_host_without_psutil_shows_no_usage_and_all_else_works(needs_network: None, tmp_path: Path) -> None:
    with over(tmp_path, *NAMES, has_sshd=False) as sandbox:
        lacking = tmp_path / "lacking"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(lacking)], check=True)
        [packages] = lacking.glob("lib/python*/site-packages")
        (packages / "psutil.py").write_text("raise ModuleNotFoundError(name='psutil')\n")
        (packages / "others.pth").write_text("\n".join(path for path in sys.path if "site-packages" in path))
        jobs = "jobs: {worker: {tasks: 2, hosts: [alpha, beta]}}\n"
        spec = sandbox.spec(sandbox.text(NAMES, jobs, {"beta": lacking / "bin" / "python"}))
        (note,) = [each for each in sandbox.json("doctor", spec)["checks"] if each["check"] == "usage"]
        assert (note["host"], note["ok"]) == ("beta", True)
        assert f"`{lacking}/bin/python -m pip install psutil`" in note["hint"]
        sandbox("up", spec)
        status = sandbox.status()
        assert [host["load"] is None for host in status["hosts"]] == [False, True]
        assert [task["rss_bytes"] is None for task in status["tasks"]] == [False, True]
        sandbox("run", "pi", "--samples", "1e5")
        sandbox("down")


@pytest.mark.slow
def test_different_versions_are_refused_unless_allowed(needs_network: None, tmp_path: Path) -> None:
    version = 'TensorFlow.version = property(lambda self: "2.9.9", lambda self, value: None)'
    changes = json.dumps({"tfcluster.processes.servers.c_api": version})
    other = tmp_path / "python"
    variables = f"TEST_CHANGES={shlex.quote(changes)} PYTHONPATH={CHANGED}"
    other.write_text(f'#!/bin/sh\n{variables} exec {sys.executable} "$@"\n')
    other.chmod(0o755)
    with over(tmp_path, *NAMES, has_sshd=False) as sandbox:
        spec = sandbox.spec(sandbox.text(NAMES, "jobs: {worker: {tasks: 2}}\n", {"beta": other}))
        assert "2.9.9 on beta" in sandbox("up", spec, code=1).stderr
        wait_for(lambda: not sandbox.network.leftovers())
        sandbox("up", spec, "--allow-version-mismatch")
        versions = [host["tensorflow"] for host in sandbox.status()["hosts"]]
        assert versions[1] == "2.9.9" != versions[0]


def test_a_run_has_its_folders_from_the_agent(hosts: HostsSandbox) -> None:
    hosts.spec("TEXT = 'done'\n", "beside.py")
    script = hosts.spec("import beside\nprint(beside.TEXT)\n", "prints.py")
    assert hosts("run", script).stdout == "done\n"
    assert hosts("launch", script).stdout.count("done") == 2  # on each host
    assert not Path("/nowhere").exists()
    assert not (hosts.network.home("alpha") / "state" / "tfcluster" / "wide").exists()


@pytest.mark.slow
def test_python_and_state_in_the_home_folder(needs_network: None, tmp_path: Path) -> None:
    with over(tmp_path, "alpha", has_sshd=False) as sandbox:
        home = sandbox.network.home("alpha")
        (home / "its own").mkdir()
        (home / "its own" / "python").write_text(f'#!/bin/sh\ntouch ~/started\nexec {sys.executable} "$@"\n')
        (home / "its own" / "python").chmod(0o755)
        text = sandbox.text(("alpha",), "jobs: {worker: {tasks: 1}}\n", {"alpha": Path("~/its own/python")})
        spec = sandbox.spec(text.replace("alpha: {", "alpha: {state: ~/kept there, "))
        sandbox("up", spec)
        assert (home / "started").exists()
        assert (home / "kept there" / "wide" / "alpha" / "lock").exists()
        assert not any((home / "state").iterdir())
        (unit,) = sandbox.json("doctor", spec, "--print-systemd")
        reboot(sandbox, home / "run")
        environment = {"HOME": str(home), "PATH": os.environ["PATH"], "TEST_MARK": sandbox.network.mark}
        run_as_cron(sandbox.network.network["alpha"].command(), unit["cron"], environment)
        sandbox.wait_until("running")
        sandbox("down")
        wait_for(lambda: not sandbox.network.leftovers())
