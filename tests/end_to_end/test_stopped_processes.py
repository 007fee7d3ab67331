"""What a signal has stopped is continued or replaced by the agent: drivers, servers, the health prober."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.clusters import Cluster
from tests.conftest import (
    Sandbox,
    stopped_repeatedly,
    wait_for,
)
from tfcluster import settings
from tfcluster.os.process_handle import is_frozen

SPEC = "name: stopped\njobs:\n  ps: {tasks: 1}\n  worker: {tasks: 1}\n"


CLUSTER = Cluster(SPEC)


def test_a_stopped_driver_is_continued(demo: Sandbox) -> None:
    demo.spec("import os, time\nprint(os.getppid(), flush=True)\ntime.sleep(600)\n", "waits.py")
    run, driver = start_script(demo)
    os.kill(driver, signal.SIGSTOP)
    demo.wait_for_event(f"the driver of {run}, pid {driver}, was stopped by a signal and was continued")
    wait_for(lambda: not is_frozen(driver))
    demo("cancel", run)
    demo("wait", run, code=1)


def start_script(sandbox: Sandbox, name: str = "waits.py") -> tuple[str, int]:
    run = sandbox("run", "--detach", name).stdout.strip()
    (output,) = sandbox.folder.glob(f"state/tfcluster/*/localhost/runs/{run}")
    log = output / "output.log"
    return run, int(wait_for(lambda: log.exists() and log.read_text().endswith("\n") and log.read_text()))


@pytest.mark.slow
def test_a_script_that_is_stopped_on_purpose_stays_so(demo: Sandbox) -> None:
    text = "import os, signal, time\nprint(os.getppid(), flush=True)\ntime.sleep(1)\n"
    demo.spec(f"{text}os.kill(os.getpid(), signal.SIGSTOP)\ntime.sleep(600)\n", "waits.py")
    demo.spec(f"{text}time.sleep(600)\n", "runs.py")
    run, driver = start_script(demo)
    script = int(Path(f"/proc/{driver}/task/{driver}/children").read_text().split()[0])
    wait_for(lambda: is_frozen(script))
    os.kill(driver, signal.SIGSTOP)
    other, other_driver = start_script(demo, "runs.py")
    os.kill(other_driver, signal.SIGSTOP)
    demo.wait_for_event(f"the driver of {other}, pid {other_driver}, was stopped by a signal and was continued")
    demo("cancel", other)
    assert is_frozen(script)
    assert is_frozen(driver), "the check of the other one has left it as it is"
    os.kill(script, signal.SIGCONT)
    wait_for(lambda: not is_frozen(driver), seconds=30)
    os.kill(driver, signal.SIGSTOP)
    demo("cancel", run)
    demo("wait", run, code=1)


@pytest.mark.slow
def test_down_ends_a_run_whose_driver_is_stopped(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec(SPEC))
    sandbox.spec("import os, time\nprint(os.getppid(), flush=True)\ntime.sleep(600)\n", "waits.py")
    _, driver = start_script(sandbox)
    with stopped_repeatedly(driver):
        sandbox("down")
    assert sandbox.leftovers() == []


@pytest.mark.slow
def test_the_process_that_starts_the_members_of_a_launch_is_continued(demo: Sandbox) -> None:
    demo.spec("import time\ntime.sleep(600)\n", "waits.py")
    run = demo("launch", "--detach", "waits.py").stdout.strip()
    host = min(wait_for(lambda: demo.pids(f"{run} host")))  # a member that it forks has its title for a moment
    os.kill(host, signal.SIGSTOP)
    time.sleep(1)  # it may be continued before it could be seen to be stopped
    wait_for(lambda: not is_frozen(host), seconds=30)
    demo("cancel", run)


@pytest.mark.slow
def test_a_stopped_server_is_replaced_after_half_as_many_probes(sandbox: Sandbox) -> None:
    fast = sandbox.with_settings({"HEALTH_INTERVAL_SECONDS": 0.3, "PROBE_TIMEOUT_SECONDS": 1.0})
    sandbox("up", sandbox.spec("name: frozen\njobs: {worker: {tasks: 1}}\n"), env=fast)
    pid = sandbox.task("worker:0")["pid"]
    failed_before = sandbox("logs", "--agent").stdout.count("did not answer a probe")
    os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: sandbox.task("worker:0", code=None)["pid"] not in (pid, None))
    assert "it does not answer" in sandbox("events").stdout
    _, first_process, *_ = sandbox("logs", "--agent").stdout.split(" started: ")
    assert first_process.count("did not answer a probe") - failed_before == settings.FAILED_PROBES_MAX


def test_a_stopped_health_prober_is_replaced_at_the_next_check(cluster: Sandbox) -> None:
    [pid] = cluster.pids("health")
    os.kill(pid, signal.SIGSTOP)
    cluster.wait_for_event(f"the health prober, pid {pid}, was stopped by a signal")
    assert cluster.wait_until("running")
