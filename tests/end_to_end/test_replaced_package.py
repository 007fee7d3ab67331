"""The package's files are replaced while a cluster is up, as by `pip install`: its processes keep their own code.

Every new file is poison: it leaves a trace and ends the process that imports it. Later commands come from another copy.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, Sandbox, make_sandbox, wait_for
from tests.end_to_end.test_program_of_a_package import RUN, install

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


class Package:
    """A copy of the package, from which a cluster is started.

    Args:
        sandbox: The sandbox of the cluster.
        site: The folder of the copy.
        path: More folders with packages.
    """

    def __init__(self, sandbox: Sandbox, site: Path, path: tuple[Path, ...] = ()) -> None:
        self._folder = site / "tfcluster"
        self._trace = sandbox.folder / "imported"
        self.environment = {"PYTHONPATH": ":".join(map(str, (ROOT / "tests" / "changed", site, *path)))}
        shutil.copytree(ROOT / "tfcluster", self._folder, ignore=shutil.ignore_patterns("__pycache__"))

    def replace(self) -> None:
        """Replace every module, and remove what Python has compiled."""
        for path in self._folder.rglob("*.py"):
            path.write_text(POISON % str(self._trace))
        for path in list(self._folder.rglob("__pycache__")):
            shutil.rmtree(path)

    def imported(self) -> list[str]:
        """Return the new modules that a process has imported."""
        return self._trace.read_text().splitlines() if self._trace.exists() else []


@pytest.fixture
def kept(tmp_path: Path, unchanged: None) -> Iterator[Sandbox]:
    """A sandbox in which a fork server is started when a cluster is ready."""
    with make_sandbox(tmp_path) as sandbox:
        yield sandbox


def helper(sandbox: Sandbox, name: str) -> int:
    """Return the pid of a helper of the agent; 0 if there is none."""
    return next((pid for pid, title in sandbox.processes().items() if title.endswith(name)), 0)


def kill_helper(sandbox: Sandbox, name: str) -> int:
    """Kill a helper of the agent, and return its pid."""
    pid = int(wait_for(lambda: helper(sandbox, name)))
    os.kill(pid, signal.SIGKILL)
    return pid


def restart_server(sandbox: Sandbox, task: str) -> None:
    """Kill a server, and wait until it is ready again."""
    before = sandbox.task(task)
    os.kill(before["pid"], signal.SIGKILL)

    def is_back() -> bool:
        after = sandbox.task(task, code=None)
        return bool(after["restarts"] > before["restarts"] and after["state"] == "ready")

    wait_for(is_back)


def record_of(sandbox: Sandbox, run: str) -> Any:
    return json.loads(sandbox("runs", run, "-o", "json").stdout)


@pytest.mark.slow
def test_a_server_a_program_and_a_script_start_with_the_code_of_the_agent(kept: Sandbox, tmp_path: Path) -> None:
    package = Package(kept, tmp_path / "site")
    kept("up", kept.spec("name: kept\njobs:\n  worker: {tasks: 1}\n"), env=package.environment)
    package.replace()
    restart_server(kept, "worker:0")
    kill_helper(kept, " fork server")  # the next run starts another one
    assert "pi = 3.1" in kept("run", "pi", "--samples", "1e5").stdout
    (kept.folder / "fresh.py").write_text(FRESH)
    assert "modules 0\n" in kept("run", "fresh.py").stdout
    kept("down")
    assert package.imported() == []


@pytest.mark.slow
def test_all_that_an_agent_does_later_is_done_with_its_own_code(kept: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "plugins").mkdir()
    plugins = install(tmp_path / "plugins")
    package = Package(kept, tmp_path / "site", (tmp_path / "plugins",))
    for name, text in {"late.py": LATE, "fresh.py": FRESH, "member.py": MEMBER}.items():
        (kept.folder / name).write_text(text)
    old = package.environment
    kept("up", kept.spec(SPEC), env=old)
    kept("run", "pi", "--samples", "1e5", env=old)
    notice = kept.folder / "notice"
    late = kept("run", "--detach", "--notify", f"cat > {notice}", "late.py", env=old).stdout.strip()
    linear = kept("run", "linear", "--steps", "3000", "--detach", env=old).stdout.strip()
    group = kept("launch", "--detach", "--max-restarts", "2", "member.py", env=old).stdout.strip()
    wait_for(lambda: kept("logs", group).stdout.count("attempt 0") == 2)
    os.kill(helper(kept, " fork server"), signal.SIGSTOP)
    queued = kept("run", "pi", "--samples", "1e5", "--detach", env=old).stdout.strip()
    package.replace()

    # What happens by itself.
    wait_for(lambda: record_of(kept, queued)["state"] == "succeeded")
    assert record_of(kept, linear)["state"] in ("running", "succeeded")
    restart_server(kept, "worker:1")
    killed = {name: kill_helper(kept, name) for name in (" health prober", " log writer")}
    kill_helper(kept, " fork server")  # the next run starts another one
    wait_for(lambda: all(helper(kept, name) not in (0, pid) for name, pid in killed.items()))
    member = kept("logs", group).stdout.split("attempt 0 ", 1)[1].split()[0]
    os.kill(int(member), signal.SIGKILL)
    wait_for(lambda: kept("logs", group).stdout.count("attempt 1") == 2)
    (kept.folder / "go").touch()
    kept("wait", late, linear, group)
    assert [record_of(kept, run)["state"] for run in (late, linear, group)] == ["succeeded"] * 3
    assert "connected to grpc://" in kept("logs", late).stdout
    assert record_of(kept, late)["result"]["metrics"]["loss"]
    assert late in wait_for(lambda: notice.exists() and notice.read_text())

    # What later commands ask for.
    data = kept.folder / "data.csv"
    data.write_text("1\n2\n3\n")
    for arguments in (
        ("run", "pi", "--samples", "1e5", "--log-placement"),
        ("run", "mean", "data.csv"),
        ("run", "linear", "--steps", "20", "--logdir", kept.folder / "logs"),
        ("run", "expfit", "--steps", "5"),
        ("run", "graph", "a = 1\nb = a + 2"),
        ("run", "late.py"),
        ("run", "fresh.py"),
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
        kept(*arguments)
    kept(*RUN, env=plugins)
    (kept.folder / "go").unlink()
    waiting = kept("run", "--detach", "late.py").stdout.strip()
    wait_for(lambda: "late.py" in kept("stack", waiting, code=None).stdout)
    kept("cancel", waiting)
    computing = kept("run", "pi", "--samples", "1e13", "--detach").stdout.strip()
    kept("profile", "worker:0", "--seconds", "0.2", "--logdir", tmp_path / "traces", code=None)
    kept("cancel", computing)
    kept("down")
    assert package.imported() == []
