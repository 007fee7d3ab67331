"""`tensorboard`: a real TensorBoard beside the data, here and on another host; and `profile`, whose traces it shows."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.clusters import Hosts
from tests.conftest import Command, Sandbox, wait_for
from tests.hosts import HERE, HostsSandbox

_JOBS = "jobs:\n  worker: {tasks: 1, hosts: [alpha]}\n"
# Prints what a TensorBoard says of itself.
_ASK = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1] + 'data/environment').read().decode())"
_WRITES = """
import sys
import tensorflow as tf
with tf.summary.create_file_writer(sys.argv[sys.argv.index("--log_dir") + 1]).as_default():
    tf.summary.scalar("loss", 0.5, step=1)
"""


#: The machine `here` is not part of the cluster.
HOSTS = Hosts(("alpha",), _JOBS)


def started(sandbox: Sandbox, *arguments: str | Path, env: Mapping[str, str] | None = None) -> dict[str, str]:
    process = sandbox.start("tensorboard", *arguments, "-o", "json", env=env)
    line = process.stdout.readline()
    assert line, process.communicate(timeout=60)[1]
    shown: dict[str, str] = json.loads(line)
    return shown


def ended(sandbox: Sandbox, number: signal.Signals = signal.SIGINT) -> None:
    process = sandbox.started[-1]
    process.send_signal(number)
    assert process.wait(60) == 128 + number
    wait_for(lambda: not [line for line in everything(sandbox) if "tensorboard" in line])


def everything(sandbox: Sandbox) -> list[str]:
    remote = sandbox.network.processes().values() if isinstance(sandbox, HostsSandbox) else []
    return [*sandbox.processes().values(), *remote]


def test_a_run_is_shown_by_its_folder_and_nothing_is_left(demo: Sandbox, tmp_path: Path) -> None:
    (demo.folder / "writes.py").write_text(_WRITES)
    demo("run", "writes.py", "--log_dir", "summaries")
    (run,) = demo.json("runs", "-n", "1")
    # Without TensorFlow, TensorBoard starts in a fraction of the time.
    (tmp_path / "tensorflow.py").write_text("raise ImportError")
    without = demo.with_fault("tfcluster.transport.remote.tensorboard", f"os.environ['PYTHONPATH'] = {str(tmp_path)!r}")
    shown = started(demo, run["run"], env=without)
    assert (shown["host"], shown["logdir"]) == ("localhost", str(demo.folder / "summaries"))
    command = [sys.executable, "-c", _ASK, shown["url"]]
    answer = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert answer["data_location"] == shown["logdir"]
    ended(demo)


@pytest.mark.slow
def test_data_on_another_host_is_shown_here(hosts: HostsSandbox) -> None:
    (hosts.folder / "writes.py").write_text(
        "import os; open(os.environ['TFCLUSTER_OUTPUT'] + '/events.out.tfevents.1', 'w')"
    )
    hosts("run", "writes.py")
    run = hosts.json("runs")[-1]["run"]
    folder = next(hosts.network.home("alpha").glob(f"state/tfcluster/wide/alpha/runs/{run}"))
    shown = started(hosts, run)
    assert (shown["host"], shown["logdir"]) == ("alpha", str(folder))
    answer = json.loads(hosts.network.run(HERE, sys.executable, "-c", _ASK, shown["url"]))
    assert answer["data_location"] == str(folder)
    port = shown["url"].rpartition(":")[2].strip("/")
    assert f"127.0.0.1:{port} " in hosts.network.run(HERE, "ss", "-Hltn")
    ended(hosts, signal.SIGTERM)
    assert f"127.0.0.1:{port} " not in hosts.network.run(HERE, "ss", "-Hltn")
    hosts("status")  # the connection that the commands share goes on


@pytest.fixture
def computing(demo: Sandbox) -> Iterator[str]:
    run = demo("run", "pi", "--samples", "1e13", "--detach").stdout.strip()
    wait_for(lambda: any(json.loads(line)["event"] == "progress" for line in events_of(demo, run)))
    yield run
    demo("cancel", run)


def events_of(sandbox: Sandbox, run: str) -> list[str]:
    (file,) = sandbox.folder.glob(f"state/tfcluster/*/*/runs/{run}/events.jsonl")
    return file.read_text().splitlines()


def test_the_traces_of_a_job_are_where_tensorboard_looks(demo: Sandbox, computing: str, tmp_path: Path) -> None:
    def traced() -> Any:  # on a busy machine, a worker may compute nothing in that time
        shown = demo("profile", "worker", "--seconds", "0.5", "--logdir", tmp_path / "logs", "-o", "json", code=None)
        result = json.loads(shown.stdout or "{}")
        return result if result.get("tasks") == ["worker:0", "worker:1"] and result["idle"] == [] else None

    result = wait_for(traced)
    folder = Path(result["folder"])
    assert folder.parent == tmp_path / "logs" / "plugins" / "profile"
    assert sorted(path.name for path in folder.iterdir()) == ["worker_0.xplane.pb", "worker_1.xplane.pb"]
    for trace in folder.iterdir():
        assert b"/host:CPU" in trace.read_bytes()
    assert not list(demo.folder.glob("state/tfcluster/*/*/profiles/*"))


@pytest.mark.slow
def test_an_interrupt_leaves_nothing_and_the_next_trace_works(demo: Sandbox, computing: str, tmp_path: Path) -> None:
    def begun() -> Command | None:
        process = demo.start("profile", "worker:0", "--seconds", "300", "--logdir", tmp_path / "logs")
        wait_for(lambda: list(demo.folder.glob("state/tfcluster/*/*/profiles/*")))
        other = demo("profile", "worker:0", "--seconds", "0.1", "--logdir", tmp_path / "other", code=None)
        if "there is no trace of worker:0" in other.stderr and process.poll() is None:
            return process
        process.send_signal(signal.SIGINT)  # the other one was first
        process.communicate(timeout=60)
        return None

    process = wait_for(begun)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert not (tmp_path / "logs").exists()
    wait_for(lambda: not list(demo.folder.glob("state/tfcluster/*/*/profiles/*")))
    wait_for(lambda: demo("profile", "worker:0", "--seconds", "0.1", "--logdir", tmp_path, code=None).returncode == 0)
