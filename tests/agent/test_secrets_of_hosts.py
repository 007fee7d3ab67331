"""Where secret values of a cluster on several hosts are, and where not: two agents on this machine."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from tests.agent.hosts import PI, TASKS, Hosts, topology_of
from tests.conftest import wait_for
from tfcluster.errors import ClusterError
from tfcluster.protocol.api.cluster import RestartRequest, TopologyRequest

SECRET = "hunter2-öß-9f3c7a"
WITH_SECRET = tuple(
    replace(task, env={"TOKEN": SECRET, "PLAIN": "seen"}, secrets=("TOKEN",)) if task.job == "worker" else task
    for task in TASKS
)


def holders(folder: Path) -> list[str]:
    """The files in a folder that hold the secret, as it is or as JSON has it."""
    forms = [SECRET.encode(), json.dumps(SECRET)[1:-1].encode(), b"hunter2"]
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [str(path.name) for path in files if any(form in path.read_bytes() for form in forms)]


def environment_of(pid: int) -> bytes:
    """The environment that a process was started with, and what else it says of itself."""
    return b"".join(Path(f"/proc/{pid}/{name}").read_bytes() for name in ("cmdline", "environ", "comm"))


def test_secret_values_are_in_one_private_file_and_nowhere_else(hosts: Hosts) -> None:
    hosts.up(topology_of(WITH_SECRET))
    hosts.ask("a", RestartRequest(("worker:0",), 1.0))
    hosts.wait_until_ready()
    assert holders(hosts.sandbox.folder / "state") == []
    runtime = hosts.sandbox.folder / "run" / "tfcluster"
    assert sorted(holders(runtime)) == sorted(path.name for path in runtime.glob("*.secrets"))
    assert len(list(runtime.glob("*.secrets"))) == 2
    assert {path.stat().st_mode & 0o777 for path in runtime.glob("*.secrets")} == {0o600}
    told = json.dumps([hosts.status("a"), hosts.status("b"), hosts.events("a"), hosts.events("b")], ensure_ascii=False)
    assert "hunter2" not in told
    assert not [pid for pid in hosts.sandbox.processes() if b"hunter2" in environment_of(pid)]
    # A topology that differs in it alone is told without it.
    changed = [replace(task, env={**task.env, "TOKEN": "another"}) if task.env else task for task in WITH_SECRET]
    for told in hosts.prepare(topology_of(changed)).values():
        assert told["observed"].topology.tasks[1].env["TOKEN"] == SECRET, "by which a change is seen"
    hosts.down("a")
    hosts.down("b")
    wait_for(lambda: not hosts.sandbox.leftovers())
    assert holders(hosts.sandbox.folder) == []


@pytest.mark.slow
def test_the_next_agent_restores_the_secrets_with_another_socket(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts.up(topology_of(WITH_SECRET))
    hosts.kill_agent("a")
    runtime_dir = hosts.sandbox.folder / "other"
    runtime_dir.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime_dir))
    before = hosts.task("worker:0")["pid"]
    os.kill(before, signal.SIGKILL)
    wait_for(lambda: hosts.task("worker:0")["state"] == "ready" and hosts.task("worker:0")["pid"] != before)
    assert hosts.ask("a", TopologyRequest())["tasks"][1]["env"] == {"PLAIN": "seen", "TOKEN": SECRET}
    runtime = hosts.sandbox.folder / "run" / "tfcluster"
    assert [path.name.split(".")[1] for path in runtime.glob("*.secrets")] == ["b"]
    for path in runtime.glob("two.a.*"):
        path.unlink()  # the socket of the agent that was killed
    assert len(list((runtime_dir / "tfcluster").glob("*.secrets"))) == 1
    hosts.down("a")
    wait_for(lambda: not list((runtime_dir / "tfcluster").iterdir()))


@pytest.mark.slow
def test_a_task_whose_secret_is_missing_is_not_started(hosts: Hosts) -> None:
    """As after a reboot, when the folder in memory is gone."""
    hosts.up(topology_of(WITH_SECRET))
    before = {short: hosts.task(short)["pid"] for short in ("ps:0", "worker:1")}
    hosts.kill_agent("b")
    for path in (hosts.sandbox.folder / "run" / "tfcluster").glob("two.b.*.secrets"):
        path.unlink()
    os.kill(before["worker:1"], signal.SIGKILL)
    task = wait_for(lambda: found if (found := hosts.task("worker:1"))["state"] == "failed" else None)
    assert task["last_exit"]["reason"] == "not started"
    assert task["last_exit"]["detail"] == (
        "secret TOKEN is lost (the journal does not store secrets): `tfcluster up SPEC` supplies it again"
    )
    assert hosts.task("ps:0")["pid"] == before["ps:0"], "it has no secret"
    with pytest.raises(ClusterError, match=r"worker:1 at localhost:\d+ on b does not answer"):
        next(hosts.run("pi", PI, strict=True))
    failed = [each["detail"] for each in hosts.events("b") if each["event"] == "failed"]
    assert failed == [f"not started: {task['last_exit']['detail']}"]
    hosts.up(topology_of(WITH_SECRET))
    assert hosts.ask("b", TopologyRequest())["tasks"][2]["env"]["TOKEN"] == SECRET
    assert hosts.task("ps:0")["pid"] == before["ps:0"]
