"""What a training changes in its process, put back after each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import tensorflow as tf

from tfcluster.programs import context as run_context


@pytest.fixture(autouse=True)
def own_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The process of a run is its own: the run, and how TensorFlow builds loops, are not those of other tests."""
    monkeypatch.setattr(run_context, "_current_run", [])
    yield
    tf.compat.v1.enable_control_flow_v2()
