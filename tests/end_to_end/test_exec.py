"""`exec` and `env`: any command with the cluster's environment, here and on other hosts."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
from pathlib import Path

import pytest

from tests.clusters import Hosts
from tests.conftest import Sandbox, wait_for
from tests.hosts import HostsSandbox

_JOBS = """jobs:
  ps: {tasks: 1, hosts: [alpha]}
  worker: {tasks: 2, hosts: [alpha, localhost], env: {GREETING: "it's $HOME", TOKEN: {secret: s3cret}}}
"""


HOSTS = Hosts(("alpha",), _JOBS, keys={"alpha": {"shell": "export FROM_SHELL=yes"}})


def test_a_command_here_has_the_callers_streams_folder_and_exit_code(demo: Sandbox, tmp_path: Path) -> None:
    command = ("exec", "-c", "demo", "--", "sh", "-c", 'cat; pwd; echo "$TFCLUSTER_MASTER" >&2; exit 7')
    process = demo.start(*command, stdin=subprocess.PIPE)
    output, errors = process.communicate("from stdin\n", timeout=60)
    assert (process.returncode, output) == (7, f"from stdin\n{demo.folder}\n")
    assert errors == f"grpc://{demo.task('worker:0')['address']}\n"
    assert demo("exec", "nothing-like-this", code=127).stderr == "tfcluster: nothing-like-this: command not found\n"
    assert "Permission denied" in demo("exec", "--", tmp_path, code=126).stderr
    demo("exec", "--", "sh", "-c", "kill -TERM $$", code=-signal.SIGTERM)


def test_a_command_here_takes_the_place_of_tfcluster(demo: Sandbox) -> None:
    process = demo.start(
        "exec", "--", "sh", "-c", 'sleep 60 & trap "kill $!; echo interrupted; exit 3" INT; echo $$; wait'
    )
    assert process.stdout.readline() == f"{process.pid}\n"
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "interrupted\n"
    assert process.wait(60) == 3
    # What Python ignores is not ignored by the command: `yes` ends when its output is not read.
    line = f"{shlex.join(demo.command)} exec yes | head -n 1; echo ${{PIPESTATUS[0]}}"
    assert demo.execute("bash", "-c", line).stdout == f"y\n{128 + signal.SIGPIPE}\n"


def test_the_environment_is_what_a_shell_evaluates(demo: Sandbox) -> None:
    script = f'eval "$({shlex.join(demo.command)} env)" && {shlex.join(demo.command)} exec -- env -0'
    result = demo.execute("sh", "-c", script, env={"no_proxy": "mine", "http_proxy": "http://nobody:1"}, cwd="/")
    variables = dict(entry.split("=", 1) for entry in result.stdout.split("\0") if entry)
    assert variables["TFCLUSTER_CLUSTER"] == "demo"
    assert variables["no_grpc_proxy"] == "mine,localhost"
    assert json.loads(variables["TF_CONFIG"])["task"] == {"type": "chief", "index": 0}
    shown = json.loads(demo("env", "worker:1", "--format", "json").stdout)
    config = json.loads(shown["TF_CONFIG"])
    assert config["task"] == {"type": "worker", "index": 1}
    assert config["cluster"]["worker"][1] == demo.task("worker:1")["address"]
    assert f"TFCLUSTER_MASTER={shown['TFCLUSTER_MASTER']}\n" in demo("env", "--format", "dotenv").stdout


@pytest.mark.slow
def test_a_command_runs_as_a_task_on_another_host(hosts: HostsSandbox) -> None:
    shown = hosts(
        "exec", "--on", "worker:0", "--", "sh", "-c", 'pwd; echo "$GREETING"; echo "$TF_CONFIG"; exit 9', code=9
    )
    folder, greeting, config = shown.stdout.splitlines()
    assert folder == str(Path("~").expanduser())
    assert greeting == "it's $HOME"
    assert json.loads(config)["task"] == {"type": "worker", "index": 0}
    assert json.loads(hosts("env", "worker:0", "--format", "json").stdout)["TOKEN"] == "s3cret"
    process = hosts.start(
        "exec", "--on", "alpha", "--", "sh", "-c", "cat; echo $GREETING$FROM_SHELL", stdin=subprocess.PIPE
    )
    assert process.communicate("typed\n", timeout=60)[0] == "typed\nyes\n", "a client has no variables of a task"
    assert hosts("exec", "--on", "alpha", "nothing-like-this", code=127).stderr.count("\n") == 1
    assert "s3cret" not in "".join(hosts.network.ssh_calls())
    config = json.loads(hosts("exec", "--on", "alpha", "--", "sh", "-c", 'echo "$TF_CONFIG"').stdout)
    assert config["cluster"]["chief"][0].startswith(f"{hosts.network.address('alpha')}:")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_command_on_another_host_ends_with_exec(hosts: HostsSandbox, number: signal.Signals) -> None:
    process = hosts.start("exec", "--on", "alpha", "--", "sleep", "986", stdin=subprocess.PIPE)
    wait_for(lambda: "sleep 986" in hosts.network.processes().values())
    process.send_signal(number)
    assert process.wait(60) == (-number if number == signal.SIGKILL else 128 + number)
    wait_for(lambda: "sleep 986" not in hosts.network.processes().values())
    assert hosts.status()["state"] == "running"


@pytest.mark.slow
def test_down_does_not_wait_for_a_command_on_another_host(hosts: HostsSandbox) -> None:
    process = hosts.start("exec", "--on", "alpha", "--", "cat", stdin=subprocess.PIPE)
    wait_for(lambda: "cat" in hosts.network.processes().values())
    hosts("down")
    assert process.communicate("typed\n", timeout=60)[0] == "typed\n"
    hosts("up")
