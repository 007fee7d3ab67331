"""`network: private`: the cluster of an ordinary account, which no other account can connect to, enter or look into."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import attack
from tests.accounts import Account, account
from tests.clusters import Cluster, sandbox_of
from tests.conftest import COMMAND, ROOT, Sandbox, wait_for
from tfcluster.os.network import bind_free_port

# Connects to every task, from wherever it is started.
ASK = """
import json, os, socket
for addresses in json.loads(os.environ["TF_CONFIG"])["cluster"].values():
    for address in addresses:
        host, port = address.split(":")
        if os.environ["TFCLUSTER_MASTER"].endswith(address):
            socket.create_connection((host, int(port)), 60).close()
print("answered in", os.stat("/proc/self/ns/net").st_ino)
"""


EMPTY: dict[str, list[Any]] = {"addresses": [], "ports": [], "pids": [], "sockets": [], "paths": []}


@pytest.fixture(scope="module")
def stranger(needs_root: None) -> Iterator[Account]:
    with account("tfc-x") as made:
        yield made


def spec(network: str, **counts: int) -> str:
    """Return a spec with ports that nothing else on this machine uses."""
    sockets = {job: [bind_free_port() for _ in range(count)] for job, count in counts.items()}
    jobs = {job: [f"localhost:{each.getsockname()[1]}" for each in ports] for job, ports in sockets.items()}
    for each in (each for ports in sockets.values() for each in ports):
        each.close()
    return json.dumps({"name": "demo", "network": network, "jobs": jobs})


CLUSTER = Cluster(spec("private", ps=1, worker=2), has_account=True)


def holder(sandbox: Sandbox) -> int:
    (pid,) = wait_for(lambda: sandbox.pids("private network"))
    return int(pid)


def namespace(pid: int | str) -> str:
    return os.readlink(f"/proc/{pid}/ns/net")


def targets_of(sandbox: Sandbox) -> dict[str, list[Any]]:
    """Return all processes, sockets and files of a sandbox, as `intrude` expects them."""
    files = [*(sandbox.folder / "state").rglob("*"), *(sandbox.folder / "run").rglob("*")]
    return {
        **EMPTY,
        "pids": sorted(sandbox.processes()),
        "sockets": [str(path) for path in files if path.is_socket()],
        "paths": [str(path) for path in files if path.parts[-2:] != ("state", "tfcluster")],
    }


def intrude(stranger: Account, targets: dict[str, Any]) -> dict[str, Any]:
    """Try everything as another account, and return how much was tried and what succeeded."""
    command = stranger.command(sys.executable, str(ROOT / "tests" / "intrude.py"))
    data = json.dumps(targets)
    result = subprocess.run(command, input=data, text=True, stdout=subprocess.PIPE, timeout=120, check=True)
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def addresses_of_this_machine() -> list[str]:
    shown = subprocess.run(["ip", "-json", "address"], check=True, capture_output=True, text=True).stdout
    return [each["local"] for device in json.loads(shown) for each in device["addr_info"] if each["scope"] != "link"]


def test_what_an_ordinary_account_starts_is_in_a_network_of_its_own(cluster: Sandbox) -> None:
    status = cluster.status()
    assert (status["state"], status["network"]) == ("running", "private")
    assert {task["address"].partition(":")[0] for task in status["tasks"]} == {"localhost"}
    assert "  private network  " in cluster("status").stdout
    inside = {namespace(task["pid"]) for task in status["tasks"]}
    assert inside == {namespace(holder(cluster))}
    assert inside != {namespace("self")}
    assert namespace(status["hosts"][0]["agent_pid"]) == namespace("self")


def test_exec_enters_the_network_and_env_says_that_it_does_not(cluster: Sandbox) -> None:
    inside = namespace(holder(cluster)).strip("net:[]")
    assert cluster("exec", "--", sys.executable, "-c", ASK).stdout == f"answered in {inside}\n"
    task = cluster("exec", "--on", "worker:1", "--", sys.executable, "-c", ASK).stdout
    assert task == f"answered in {inside}\n"
    env = cluster("env", "--format", "json")
    assert "`tfcluster exec -- COMMAND` runs a command inside" in env.stderr
    nested = cluster("exec", "--", *COMMAND, "env", "--format", "json")
    assert nested.stderr == ""
    assert json.loads(nested.stdout)["TFCLUSTER_MASTER"] == json.loads(env.stdout)["TFCLUSTER_MASTER"]


def test_a_program_outside_enters_or_is_told_how(cluster: Sandbox) -> None:
    ask = (
        "import socket, sys, threading, tfcluster\n"
        "cluster = tfcluster.connect('demo')\n"
        "assert len(cluster.devices()) == 3\n"
        "if 'threads' in sys.argv: threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "try:\n"
        "    host, port = cluster.target.removeprefix('grpc://').split(':')\n"
        "except Exception as error:\n"
        "    sys.exit(f'{error} {error.hint}')\n"
        "socket.create_connection((host, int(port)), 60).close()\n"
        "print('connected')\n"
    )
    command = [*cluster.command[: cluster.command.index(sys.executable)], sys.executable, "-c", ask]

    connected = cluster.execute(*command)
    assert connected.stdout == "connected\n", connected.stderr
    refused = cluster.execute(*command, "threads")
    assert refused.returncode == 1
    assert "a process with several threads" in refused.stderr
    assert "`tfcluster exec -- python PROGRAM`" in refused.stderr


@pytest.mark.needs("network")
def test_another_account_is_refused_everywhere(cluster: Sandbox, stranger: Account) -> None:
    targets = targets_of(cluster)
    targets["addresses"] = addresses_of_this_machine()
    targets["ports"] = [int(address.partition(":")[2]) for address in cluster.tasks("address").values()]
    assert "127.0.0.1" in targets["addresses"]
    assert len(targets["pids"]) >= 7, "the tasks, the agent, the holder, the prober and the log writer"
    assert targets["sockets"]
    assert any(path.endswith("journal.json") or "journal" in path for path in targets["paths"])
    found = intrude(stranger, targets)
    assert found["succeeded"] == []
    assert found["tried"] > 100


@pytest.mark.slow
@pytest.mark.parametrize("network", ["private", "open"])
@pytest.mark.needs("root")
def test_a_graph_of_another_account_reads_a_file_of_the_owner_only_if_the_network_is_not_private(
    network: str, stranger: Account, tmp_path: Path
) -> None:
    with account("tfc-o") as owner, sandbox_of(owner) as sandbox:
        sandbox("up", sandbox.spec(spec(network, worker=1)))
        secret = sandbox.folder / "secret"
        secret.touch(0o600)
        os.chown(secret, owner.uid, owner.uid)
        secret.write_text("the owner's alone")
        found = sandbox.folder / "found"  # the owner's server writes it, where everyone can read it
        (task,) = sandbox.status()["tasks"]
        data = attack.requests(found, secret, "/job:worker/replica:0/task:0/device:CPU:0")
        # Seconds: an open server works for long on what it is sent in a whole one.
        port = task["address"].partition(":")[2]
        command = stranger.command(sys.executable, attack.__file__, "127.0.0.1", port, "0.1")

        def strike() -> int:
            return int(subprocess.run(command, input=data, stdout=subprocess.PIPE, check=True, timeout=120).stdout)

        if network == "open":
            wait_for(lambda: strike() and found.exists() and found.read_text() == "the owner's alone")
        else:
            assert strike() == 0, "no server accepts a connection"
            assert not found.exists()
            assert str(secret) not in intrude(stranger, {**EMPTY, "paths": [str(secret)]})["succeeded"]


@pytest.mark.slow
def test_the_network_outlives_a_task_its_agent_and_its_holder(cluster: Sandbox) -> None:
    inside = namespace(holder(cluster))
    killed = cluster.task("worker:1")["pid"]
    os.kill(killed, signal.SIGKILL)
    wait_for(lambda: cluster.wait_until("running")["tasks"][2]["pid"] != killed)
    before = cluster.tasks("pid")
    assert {namespace(pid) for pid in before.values()} == {inside}

    def still_serves() -> None:
        cluster.wait_until("running")
        assert cluster.tasks("pid") == before
        assert namespace(holder(cluster)) == inside
        assert "answered in" in cluster("exec", "--", sys.executable, "-c", ASK).stdout

    first = holder(cluster)
    cluster.kill_agent()
    still_serves()
    assert holder(cluster) == first, "it is adopted"
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: cluster.pids("private network") not in ([], [first]))
    still_serves()
    second = holder(cluster)
    cluster.kill_agent()
    os.kill(second, signal.SIGKILL)
    still_serves()


def test_a_script_runs_inside(cluster: Sandbox) -> None:
    script = cluster.folder / "script.py"
    script.write_text(f"import sys\nprint('input', sys.stdin.read())\n{ASK}")
    inside = namespace(holder(cluster)).strip("net:[]")
    line = [*cluster.command, "run", str(script)]
    for command in (line, [*cluster.command, "exec", "--", *COMMAND, "run", str(script)]):
        ran = cluster.execute(*command, input="of the command")
        assert ran.stdout == f"input of the command\nanswered in {inside}\n", ran.stderr


@pytest.mark.slow
def test_without_its_network_no_task_is_started(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec(spec("private", worker=1)))
    before = sandbox.task("worker:0")
    sandbox.kill_agent()
    for pid in (holder(sandbox), before["pid"]):
        os.kill(pid, signal.SIGKILL)
    forbidden = sandbox.with_fault(
        "tfcluster.os.netns", "def make_namespaces():\n    raise PermissionError(1, 'not permitted')"
    )
    sandbox("status", code=None, env=forbidden)

    def is_explained() -> bool:
        output = sandbox("status", "-o", "json", code=None).stdout  # nothing if the agent took too long
        tasks = json.loads(output)["tasks"] if output else []
        return any("private network no longer exists" in str(task["last_exit"]) for task in tasks)

    wait_for(is_explained)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(before["address"].partition(":")[2])), 60)
    refused = sandbox("exec", "--", "true", code=1)
    assert "`tfcluster doctor` shows what forbids it" in refused.stderr
    sandbox("down")
    assert sandbox.leftovers() == []
