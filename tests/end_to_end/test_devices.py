"""`devices` asks the servers themselves."""

from __future__ import annotations

import os
import signal

import pytest

from tests.conftest import Sandbox, wait_for

SPEC = "name: dev\njobs:\n  ps: {tasks: 1}\n  worker: {tasks: 1, cpus: 2}\nrestart: {policy: never}\n"


@pytest.mark.slow
def test_every_device_of_every_task(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec(SPEC))
    devices = sandbox.json("devices")
    cpus = [device for device in devices if device["type"] == "CPU"]
    assert [(device["task"], device["name"]) for device in cpus] == [
        ("/job:ps/task:0", "/job:ps/replica:0/task:0/device:CPU:0"),
        ("/job:worker/task:0", "/job:worker/replica:0/task:0/device:CPU:0"),
        ("/job:worker/task:0", "/job:worker/replica:0/task:0/device:CPU:1"),
    ]
    assert all(device["memory_bytes"] > 0 and device["gpu"] is None for device in cpus)
    shown = sandbox("devices").stdout.splitlines()
    assert shown[0].split() == ["DEVICE", "TYPE", "MEMORY", "DESCRIPTION"]
    assert len(shown) == len(devices) + 1
    os.kill(sandbox.task("worker:0")["pid"], signal.SIGKILL)
    wait_for(lambda: sandbox.task("worker:0", code=None)["state"] == "failed")
    rest = sandbox("devices", "-o", "json", code=4)
    assert "worker:0" in rest.stderr
    assert "/job:ps/replica:0/task:0/device:CPU:0" in rest.stdout
    assert "/job:worker" not in rest.stdout


def test_a_driver_of_gpus_that_hangs_blocks_no_agent(sandbox: Sandbox) -> None:
    spec = sandbox.spec("name: dev\njobs: {worker: {tasks: 1}}\n")
    hangs = sandbox.with_fault("tfcluster.processes.gpus", "def list_gpus():\n    import time\n    time.sleep(600)\n")
    sandbox("up", spec, env=hangs)  # no task needs one
    sandbox.spec("name: dev\njobs: {worker: {tasks: 1, gpus: 1}}\n")
    up = sandbox.start("up", "--yes", env=hangs)
    wait_for(lambda: sandbox.pids("GPUs"))
    assert sandbox.status()["state"] == "running"
    os.kill(sandbox.pids("GPUs")[0], signal.SIGKILL)
    assert "the process 'tfcluster: GPUs' died" in up.communicate(timeout=60)[1]
    sandbox("down")
    sooner = {**hangs, **sandbox.with_settings({"HOST_CHECKS_SECONDS": 0.5})}
    assert "the driver of the GPUs has not answered within 0.5 s" in sandbox("up", code=1, env=sooner).stderr
