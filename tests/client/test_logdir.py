"""The folders for TensorBoard that a run's parameters name."""

from __future__ import annotations

from typing import Any

import pytest

from tfcluster.client.tensorboard import named_folders


@pytest.mark.parametrize(
    ("parameters", "folders"),
    [
        ({}, []),
        ({"logdir": None, "steps": 3}, []),
        ({"logdir": "/data/logs"}, ["/data/logs"]),
        ({"args": ["--epochs", "3"], "cwd": "/w"}, []),
        ({"args": ["--logdir", "logs"], "cwd": "/w"}, ["/w/logs", "/r/logs"]),
        ({"args": ["-v", "--log-dir=/data/x=y"], "cwd": "/w"}, ["/data/x=y", "/data/x=y"]),
        ({"args": ["--model_dir", "m", "--logdir"], "cwd": "/w"}, ["/w/m", "/r/m"]),
        ({"args": ["--logdir=logs/run-{index}"], "cwd": "/w"}, ["/w/logs", "/r/logs"]),
        ({"args": ["--logdir={job}"], "cwd": "/w"}, []),
    ],
)
def test_folders(parameters: dict[str, Any], folders: list[str]) -> None:
    assert list(named_folders(parameters, "/r")) == folders
