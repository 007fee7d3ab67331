"""`tensorboard`: a real TensorBoard beside the data, here and on another host over a real sshd."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.conftest import Sandbox, wait_for
from tests.end_to_end.test_ssh import Over, over
from tests.hosts import HERE

_JOBS = "jobs:\n  worker: {tasks: 1, hosts: [alpha]}\n"
# Prints what a TensorBoard says of itself.
_ASK = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1] + 'data/environment').read().decode())"
_WRITES = """
import sys
import tensorflow as tf
with tf.summary.create_file_writer(sys.argv[sys.argv.index("--log_dir") + 1]).as_default():
    tf.summary.scalar("loss", 0.5, step=1)
"""


@pytest.fixture(scope="module")
def away(needs_sshd: None, way: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Over]:
    """A cluster on the host alpha, whose machine `here` is not part of it."""
    with over(tmp_path_factory.mktemp("away"), "alpha", has_sshd=way == "ssh") as sandbox:
        sandbox("up", sandbox.spec(sandbox.text(("alpha",), _JOBS)))
        yield sandbox


def started(sandbox: Sandbox, *arguments: str | Path, env: Mapping[str, str] | None = None) -> dict[str, str]:
    """Start a TensorBoard, and return what the command says of it."""
    process = sandbox.start("tensorboard", *arguments, "-o", "json", env=env)
    line = process.stdout.readline()
    assert line, process.communicate(timeout=60)[1]
    shown: dict[str, str] = json.loads(line)
    return shown


def ended(sandbox: Sandbox, number: signal.Signals = signal.SIGINT) -> None:
    """End the TensorBoard that was started last, and wait until nothing is left of it."""
    process = sandbox.started[-1]
    process.send_signal(number)
    assert process.wait(60) == 128 + number
    wait_for(lambda: not [line for line in everything(sandbox) if "tensorboard" in line])


def everything(sandbox: Sandbox) -> list[str]:
    remote = sandbox.network.processes().values() if isinstance(sandbox, Over) else []
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
@pytest.mark.every_way
def test_data_on_another_host_is_shown_here(away: Over) -> None:
    (away.folder / "writes.py").write_text(
        "import os; open(os.environ['TFCLUSTER_OUTPUT'] + '/events.out.tfevents.1', 'w')"
    )
    away("run", "writes.py")
    run = away.json("runs")[-1]["run"]
    folder = next(away.network.home("alpha").glob(f"state/tfcluster/wide/alpha/runs/{run}"))
    shown = started(away, run)
    assert (shown["host"], shown["logdir"]) == ("alpha", str(folder))
    answer = json.loads(away.network.run(HERE, sys.executable, "-c", _ASK, shown["url"]))
    assert answer["data_location"] == str(folder)
    port = shown["url"].rpartition(":")[2].strip("/")
    assert f"127.0.0.1:{port} " in away.network.run(HERE, "ss", "-Hltn")
    ended(away, signal.SIGTERM)
    assert f"127.0.0.1:{port} " not in away.network.run(HERE, "ss", "-Hltn")
    away("status")  # the connection that the commands share goes on


_FAULT = ("tfcluster.transport.remote.tensorboard", "_find_command = lambda: []")


def test_what_is_missing_is_said(demo: Sandbox, tmp_path: Path) -> None:
    error = demo("tensorboard", tmp_path, env=demo.with_fault(*_FAULT), code=1).stderr
    assert f"TensorBoard is not installed for {sys.executable} on this machine" in error
    assert f"Install it: {shlex.quote(sys.executable)} -m pip install tensorboard" in error
    assert "no run 'nothing'" in demo("tensorboard", "nothing", code=2).stderr
    assert "there is no folder /nothing on this machine" in demo("tensorboard", "/nothing", code=2).stderr
    run = demo("run", "pi", "--samples", "1000", "--detach").stdout.strip()
    demo("attach", run)
    assert f"{run} has no data for TensorBoard" in demo("tensorboard", run, code=2).stderr


@pytest.mark.slow
@pytest.mark.every_way
def test_what_is_missing_on_another_host_is_said(away: Over) -> None:
    error = away("tensorboard", "alpha:/nothing", code=2).stderr
    assert "there is no folder alpha:/nothing on host 'alpha'" in error
    folder = away.network.home("alpha")
    assert f"there is no folder {folder}/x on host 'alpha'" in away("tensorboard", f"{folder}/x", code=2).stderr
    assert "there is no folder /nothing on host 'alpha'" in away("tensorboard", "/nothing", code=2).stderr


@pytest.mark.slow
def test_a_machine_that_is_no_host_is_told_that_the_ports_are_closed_to_it(away: Over) -> None:
    shown = away("exec", "--", "sh", "-c", 'echo "$TFCLUSTER_MASTER"')
    assert shown.stdout == f"grpc://{away.task('worker:0')['address']}\n"
    assert "this machine is not a host of wide" in shown.stderr
    assert "`tfcluster exec --on alpha -- COMMAND`" in shown.stderr
