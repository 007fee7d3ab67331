"""Who uses the memory of GPUs, in `status -o json` and `metrics`, with a library of the test in place of NVIDIA's."""

from __future__ import annotations

import json

import pytest

from tests.conftest import Sandbox, wait_for

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
SCRIPT = """
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
    run = sandbox("launch", "--detach", sandbox.spec(SCRIPT, "uses.py")).stdout.strip()
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
