"""What becomes of a cluster whose helpers are killed or stopped: drivers, fork server, those that start members."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from pathlib import Path

import pexpect
import pytest

from tests.conftest import (
    Sandbox,
    lines_of,
    stopped_repeatedly,
    wait_for,
)
from tfcluster.os.process_handle import is_frozen

SPEC = "name: stopped\njobs:\n  ps: {tasks: 1}\n  worker: {tasks: 1}\n"


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
def test_a_run_says_that_tensorflow_is_being_imported(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec(SPEC, warm=True))
    script = sandbox.spec("print('begins', flush=True)\nprint('got', input())\n", "asks.py")
    for is_terminal in (False, True):
        (ended,) = wait_for(lambda: sandbox.pids(" fork server"))
        os.kill(ended, signal.SIGKILL)
        wait_for(partial(lambda pid: not Path(f"/proc/{pid}").exists(), ended))
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


@pytest.mark.slow
def test_a_fork_server_that_is_stopped_does_not_hold_up_down(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec(SPEC, warm=True))
    sandbox("run", "pi", "--samples", "1000")
    os.kill(sandbox.pids(" fork server")[0], signal.SIGSTOP)
    waiting = sandbox.start("run", "pi", "--samples", "1e14")
    wait_for(lambda: sandbox.status()["runs"][-1]["state"] in ("queued", "running"))
    sandbox("down")
    assert "was cancelled" in waiting.communicate(timeout=60)[1]
    assert waiting.returncode == 1
