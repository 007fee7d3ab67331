"""`devices` asks the servers themselves, and who uses the memory of GPUs, with libraries of the tests."""

from __future__ import annotations

import json
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


# Two GPUs, and a file with what each process uses on each of them. Any open file counts as a device of the driver.
NVML = """
import ctypes, json
from tfcluster.processes import gpus

class Nvml:
    def __getattr__(self, name):
        return lambda *_: 0
    def nvmlDeviceGetCount_v2(self, count):
        count._obj.value = 2
        return 0
    def nvmlDeviceGetComputeRunningProcesses_v3(self, device, room, processes):
        used = json.load(open({path!r}))
        room._obj.value = len(used)
        for number, (pid, memory) in enumerate(used):
            processes[number].pid, processes[number].memory = pid, memory
        return 0

original = ctypes.CDLL
ctypes.CDLL = lambda name, *others, **options: Nvml() if name == gpus._NVML else original(name, *others, **options)
gpus._DEVICES = "/"
_NVIDIA_DEVICE = Path("/dev/null")
"""
USES = """
import os, subprocess, time
with subprocess.Popen(["sleep", "1000"], stdin=subprocess.DEVNULL) as child:
    print(os.getpid(), child.pid, flush=True)
"""


@pytest.mark.slow
def test_tasks_and_runs_have_the_gpu_memory_of_their_processes(sandbox: Sandbox) -> None:
    path = sandbox.folder / "processes.json"
    path.write_text("[]")
    fault = sandbox.with_fault("tfcluster.agent.usage", NVML.format(path=str(path)))
    sandbox("up", sandbox.spec("name: demo\njobs:\n  worker: {tasks: 2}\n"), env=fault)
    run = sandbox("launch", "--detach", sandbox.spec(USES, "uses.py")).stdout.strip()
    lines = wait_for(lambda: len(found := sandbox("logs", run).stdout.splitlines()) == 2 and found)
    (first, child), (second, _) = ([int(word) for word in line.split()[-2:]] for line in lines)
    status = wait_for(lambda: len((now := sandbox.status())["hosts"][0]["load"]["gpus"]) == 2 and now)
    assert [each["gpu_memory_bytes"] for each in [*status["tasks"], *status["runs"]]] == [None, None, None]
    used = {first: 1, child: 10, second: 100, status["tasks"][1]["pid"]: 1000, sandbox.agent(): 10000}
    path.write_text(json.dumps(list(used.items())))

    def memory() -> list[int | None]:
        now = sandbox.status()
        return [each["gpu_memory_bytes"] for each in [*now["tasks"], *now["runs"]]]

    wait_for(lambda: memory() == [None, 2 * 1000, 2 * 111])
    metrics = sandbox("metrics").stdout.splitlines()
    assert [line.rpartition(" ")[2] for line in metrics if line.startswith("tfcluster_task_gpu_memory")] == ["2000"]
    assert [line.rpartition(" ")[2] for line in metrics if line.startswith("tfcluster_run_gpu_memory")] == ["222"]
    sandbox("cancel", run)
