"""The package's files are replaced while a cluster is up, as by `pip install`: its processes keep their own code.

Every new file is poison: it leaves a trace and ends the process that imports it. Later commands come from another copy.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, Sandbox, wait_for

pytestmark = pytest.mark.slow

SPEC = "name: kept\njobs:\n  ps: {tasks: 1}\n  worker: {tasks: 2}\n"
POISON = """
import os
trace = os.open(%r, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
os.write(trace, f"{__name__}\\n".encode())
raise SystemExit("imported after the upgrade")
"""
# Uses, after the upgrade, what no process of the cluster has imported before.
LATE = """
import pathlib, time
import tfcluster
while not pathlib.Path("go").exists():
    time.sleep(0.05)
tfcluster.metric("loss", 0.5, 1)
print("connected to", tfcluster.connect().target)
"""
# Names a variable that is read early, which takes a fresh interpreter.
FRESH = """
import os, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tfcluster
tfcluster.metric("loss", 0.5, 1)
print("modules", len([name for name in sys.modules if name.endswith(".fork_server")]))
"""
MEMBER = """
import os, pathlib, time
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
print("attempt", os.environ["TFCLUSTER_ATTEMPT"], os.getpid(), flush=True)
while os.environ["TFCLUSTER_ATTEMPT"] == "0" or not pathlib.Path("go").exists():
    time.sleep(0.05)
"""


def helper(sandbox: Sandbox, name: str) -> int:
    return next((pid for pid, title in sandbox.processes().items() if title.endswith(name)), 0)


def kill_helper(sandbox: Sandbox, name: str) -> int:
    pid = int(wait_for(lambda: helper(sandbox, name)))
    os.kill(pid, signal.SIGKILL)
    return pid


def restart_server(sandbox: Sandbox, task: str) -> None:
    before = sandbox.task(task)
    os.kill(before["pid"], signal.SIGKILL)

    def is_back() -> bool:
        after = sandbox.task(task, code=None)
        return bool(after["restarts"] > before["restarts"] and after["state"] == "ready")

    wait_for(is_back)


def record_of(sandbox: Sandbox, run: str) -> Any:
    return json.loads(sandbox("runs", run, "-o", "json").stdout)


def test_all_that_an_agent_does_later_is_done_with_its_own_code(sandbox: Sandbox, tmp_path: Path) -> None:
    package, trace = tmp_path / "site" / "tfcluster", tmp_path / "imported"
    shutil.copytree(ROOT / "tfcluster", package, ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in {"late.py": LATE, "fresh.py": FRESH, "member.py": MEMBER}.items():
        (sandbox.folder / name).write_text(text)
    old = {"PYTHONPATH": ":".join(map(str, (ROOT / "tests" / "changed", package.parent)))}
    sandbox("up", sandbox.spec(SPEC, warm=True), env=old)
    sandbox("run", "pi", "--samples", "1e5", env=old)
    notice = sandbox.folder / "notice"
    late = sandbox("run", "--detach", "--notify", f"cat > {notice}", "late.py", env=old).stdout.strip()
    linear = sandbox("run", "linear", "--steps", "3000", "--detach", env=old).stdout.strip()
    group = sandbox("launch", "--detach", "--max-restarts", "2", "member.py", env=old).stdout.strip()
    wait_for(lambda: sandbox("logs", group).stdout.count("attempt 0") == 2)
    os.kill(helper(sandbox, " fork server"), signal.SIGSTOP)
    queued = sandbox("run", "pi", "--samples", "1e5", "--detach", env=old).stdout.strip()
    for path in package.rglob("*.py"):
        path.write_text(POISON % str(trace))
    for path in list(package.rglob("__pycache__")):
        shutil.rmtree(path)

    # What happens by itself.
    wait_for(lambda: record_of(sandbox, queued)["state"] == "succeeded")
    assert record_of(sandbox, linear)["state"] in ("running", "succeeded")
    restart_server(sandbox, "worker:1")
    killed = {name: kill_helper(sandbox, name) for name in (" health prober", " log writer")}
    kill_helper(sandbox, " fork server")  # the next run starts another one
    wait_for(lambda: all(helper(sandbox, name) not in (0, pid) for name, pid in killed.items()))
    member = sandbox("logs", group).stdout.split("attempt 0 ", 1)[1].split()[0]
    os.kill(int(member), signal.SIGKILL)
    wait_for(lambda: sandbox("logs", group).stdout.count("attempt 1") == 2)
    (sandbox.folder / "go").touch()
    sandbox("wait", late, linear, group)
    assert [record_of(sandbox, run)["state"] for run in (late, linear, group)] == ["succeeded"] * 3
    assert "connected to grpc://" in sandbox("logs", late).stdout
    assert record_of(sandbox, late)["result"]["metrics"]["loss"]
    assert late in wait_for(lambda: notice.exists() and notice.read_text())

    # What later commands ask for.
    data = sandbox.folder / "data.csv"
    data.write_text("1\n2\n3\n")
    for arguments in (
        ("run", "pi", "--samples", "1e5", "--log-placement"),
        ("run", "mean", "data.csv"),
        ("run", "linear", "--steps", "20", "--logdir", sandbox.folder / "logs"),
        ("run", "expfit", "--steps", "5"),
        ("run", "graph", "a = 1\nb = a + 2"),
        ("run", "late.py"),
        ("run", "--cold", "late.py"),
        ("launch", "late.py"),
        ("launch", "--cold", "late.py"),
        ("logs",),
        ("events",),
        ("devices",),
        ("metrics",),
        ("restart", "worker:0", "--yes"),
        ("scale", "worker=3", "--yes"),
    ):
        sandbox(*arguments)
    assert "modules 0\n" in sandbox("run", "fresh.py").stdout
    (sandbox.folder / "go").unlink()
    waiting = sandbox("run", "--detach", "late.py").stdout.strip()
    wait_for(lambda: "late.py" in sandbox("stack", waiting, code=None).stdout)
    sandbox("cancel", waiting)
    computing = sandbox("run", "pi", "--samples", "1e13", "--detach").stdout.strip()
    sandbox("profile", "worker:0", "--seconds", "0.2", "--logdir", tmp_path / "traces", code=None)
    sandbox("cancel", computing)
    sandbox("down")
    assert not trace.exists(), trace.read_text()
