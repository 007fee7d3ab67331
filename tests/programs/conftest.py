"""TensorFlow, imported once before the tests that compute with it; and runs on devices of the test's own process."""

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# Warnings are errors in these tests, but those of TensorFlow's own import (of numpy, in its older versions) are not
# ours, and one of them as an error leaves TensorFlow half imported.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import tensorflow as tf

from tfcluster import reporting
from tfcluster.programs import context as run_context
from tfcluster.programs.context import Context


@pytest.fixture(autouse=True)
def own_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Begin as a process of its own: no run, no reporter of metrics, and TensorFlow's loops as they were."""
    monkeypatch.setattr(run_context, "_current_run", [])
    monkeypatch.setattr(reporting, "_reporters", [])
    yield
    tf.compat.v1.enable_control_flow_v2()


@pytest.fixture(scope="session")
def local_server() -> tuple[str, str]:
    """A server with four CPU devices in this process: its job's name and its address."""
    config = tf.compat.v1.ConfigProto(device_count={"CPU": 4})
    server = tf.distribute.Server(tf.train.ClusterSpec({"local": ["localhost:0"]}), config=config)
    return "local", server.target.removeprefix("grpc://")


@pytest.fixture
def local_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, local_server: tuple[str, str]
) -> Callable[[int], Context]:
    """Gives runs on some number of devices of the server in this process, at most four."""
    job, address = local_server

    def run(devices: int) -> Context:
        names = tuple(f"/job:{job}/replica:0/task:0/device:CPU:{number}" for number in range(devices))
        context = Context("script-1", {job: [address]}, names, lambda event, **fields: None, folder=tmp_path)
        monkeypatch.setattr(run_context, "_current_run", [context])
        return context

    return run
