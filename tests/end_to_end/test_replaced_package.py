"""The package's files are replaced while a cluster is up, as by `pip install`: its processes keep their own code.

Every new file is poison: it leaves a trace and ends the process that imports it. Later commands come from another copy.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.clusters import write_files
from tests.conftest import ROOT, Sandbox, make_sandbox, wait_for

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
import pathlib, sys, time
import tfcluster
while not pathlib.Path(sys.argv[1]).exists():
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
    """Return the pid of a process of the cluster by the end of its title, or 0."""
    return next((pid for pid, title in sandbox.processes().items() if title.endswith(name)), 0)


def kill_helper(sandbox: Sandbox, name: str) -> int:
    """Kill such a process, and return its pid."""
    pid = int(wait_for(lambda: helper(sandbox, name)))
    os.kill(pid, signal.SIGKILL)
    return pid


@dataclass
class Replaced:
    """A cluster whose package has been replaced since, with runs that were begun before."""

    sandbox: Sandbox
    trace: Path  # where the new files write
    late: str
    linear: str
    group: str
    queued: str  # while a signal had stopped the fork server

    def record(self, run: str) -> Any:
        """Return all that is known of a run."""
        return json.loads(self.sandbox("runs", run, "-o", "json").stdout)


def has_begun(sandbox: Sandbox, group: str, attempt: int) -> bool:
    """Return whether both members of a launch have begun an attempt."""
    return sandbox("logs", group).stdout.count(f"attempt {attempt}") == 2


@pytest.fixture(scope="module")
def replaced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replaced]:
    """The cluster; when it has gone down, none of the new files has been imported."""
    with make_sandbox(tmp_path_factory.mktemp("kept")) as sandbox:
        package, trace = sandbox.folder / "site" / "tfcluster", sandbox.folder / "imported"
        shutil.copytree(ROOT / "tfcluster", package)
        files = {"late.py": LATE, "fresh.py": FRESH, "member.py": MEMBER, "data.csv": "1\n2\n3\n"}
        write_files(sandbox.folder, files)
        old = {"PYTHONPATH": ":".join(map(str, (ROOT / "tests" / "changed", package.parent)))}

        def begin(*arguments: str) -> str:
            return sandbox(*arguments, env=old).stdout.strip()

        sandbox("up", sandbox.spec(SPEC, warm=True), env=old)
        sandbox("run", "pi", "--samples", "1e5", env=old)
        late = begin("run", "--detach", "--notify", f"cat > {sandbox.folder / 'notice'}", "late.py", "go")
        linear = begin("run", "linear", "--steps", "3000", "--detach")
        group = begin("launch", "--detach", "--max-restarts", "2", "member.py")
        wait_for(lambda: has_begun(sandbox, group, 0))
        os.kill(helper(sandbox, " fork server"), signal.SIGSTOP)
        queued = begin("run", "pi", "--samples", "1e5", "--detach")
        for path in package.rglob("*.py"):
            path.write_text(POISON % str(trace))
        for path in list(package.rglob("__pycache__")):
            shutil.rmtree(path)
        yield Replaced(sandbox, trace, late, linear, group, queued)
        sandbox("down")
        assert not trace.exists(), trace.read_text()


@pytest.fixture
def kept(replaced: Replaced) -> Iterator[Replaced]:
    """The same, for a test that names what it has had imported."""
    yield replaced
    imported = replaced.trace.read_text() if replaced.trace.exists() else ""
    replaced.trace.unlink(missing_ok=True)  # the next test is not to blame
    assert imported == ""


def test_what_an_agent_does_by_itself_is_done_with_its_own_code(kept: Replaced) -> None:
    sandbox = kept.sandbox
    wait_for(lambda: kept.record(kept.queued)["state"] == "succeeded")
    assert kept.record(kept.linear)["state"] in ("running", "succeeded")
    before = sandbox.task("worker:1")
    os.kill(before["pid"], signal.SIGKILL)
    killed = {name: kill_helper(sandbox, name) for name in (" health prober", " log writer")}
    kill_helper(sandbox, " fork server")  # the next run starts another one
    wait_for(lambda: all(helper(sandbox, name) not in (0, pid) for name, pid in killed.items()))
    wait_for(lambda: sandbox.task("worker:1", code=None)["restarts"] > before["restarts"])
    sandbox.wait_until("running")


def test_runs_that_had_begun_end_with_their_own_code(kept: Replaced) -> None:
    sandbox = kept.sandbox
    member = sandbox("logs", kept.group).stdout.split("attempt 0 ", 1)[1].split()[0]
    os.kill(int(member), signal.SIGKILL)
    wait_for(lambda: has_begun(sandbox, kept.group, 1))
    (sandbox.folder / "go").touch()
    runs = (kept.late, kept.linear, kept.group)
    sandbox("wait", *runs)
    assert [kept.record(run)["state"] for run in runs] == ["succeeded"] * 3
    assert "connected to grpc://" in sandbox("logs", kept.late).stdout
    assert kept.record(kept.late)["result"]["metrics"]["loss"]
    notice = sandbox.folder / "notice"
    assert kept.late in wait_for(lambda: notice.exists() and notice.read_text())


@pytest.mark.parametrize(
    "command",
    [
        "run pi --samples 1e5 --log-placement",
        "run mean data.csv",
        "run linear --steps 20 --logdir traces",
        "run expfit --steps 5",
        "run graph 'a = 1\nb = a + 2'",
        "run late.py .",
        "run --cold late.py .",
        "launch late.py .",
        "launch --cold late.py .",
        "logs",
        "events",
        "devices",
        "metrics",
        "restart worker:0 --yes",
        "scale worker=3 --yes",
    ],
)
def test_a_later_command_is_answered_with_the_agents_own_code(kept: Replaced, command: str) -> None:
    kept.sandbox(*shlex.split(command))


def test_later_runs_are_started_and_looked_at_with_the_agents_own_code(kept: Replaced) -> None:
    sandbox = kept.sandbox
    assert "modules 0\n" in sandbox("run", "fresh.py").stdout
    waiting = sandbox("run", "--detach", "late.py", "never").stdout.strip()
    wait_for(lambda: "late.py" in sandbox("stack", waiting, code=None).stdout)
    sandbox("cancel", waiting)
    computing = sandbox("run", "pi", "--samples", "1e13", "--detach").stdout.strip()
    sandbox("profile", "worker:0", "--seconds", "0.2", "--logdir", "traces", code=None)
    sandbox("cancel", computing)
