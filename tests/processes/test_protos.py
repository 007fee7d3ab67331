"""Our declarations of TensorFlow's messages against TensorFlow's own, which another process imports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.conftest import SCRIPTS
from tfcluster.processes.protos import cleanup_request, is_trace_empty, parse_status, profile_request, server_def

SERVERS: list[tuple[dict[str, list[str]], str, int, int]] = [
    ({"ps": ["localhost:2222"], "worker": ["localhost:2223", "[::1]:2224"]}, "worker", 1, 4),
    ({"ps": ["localhost:2222"], "worker": ["localhost:2223", "[::1]:2224"]}, "ps", 0, 1),
    ({"local": ["127.0.0.1:1"]}, "local", 0, 256),
    ({"b": ["h:1"], "a": [f"host-{number}:{number}" for number in range(1, 300)]}, "a", 298, 2),
]


@pytest.fixture(scope="module")
def tensorflow() -> Any:
    cases = [(server_def(*case).hex(), *case) for case in SERVERS]
    environment = {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": "-1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "no_grpc_proxy": "localhost",
    }
    command = [sys.executable, str(SCRIPTS / "tensorflow_messages.py")]
    return json.loads(subprocess.check_output(command, input=json.dumps(cases), env=environment, text=True))


@pytest.mark.slow
def test_a_server_def_is_tensorflows(tensorflow: Any) -> None:
    assert tensorflow["differences"] == []


@pytest.mark.slow
def test_the_devices_of_a_servers_own_answer_are_those_that_tensorflow_finds(tensorflow: Any) -> None:
    devices = tensorflow["devices"]
    assert [device["name"] for device in devices if device["type"] == "CPU"] == [
        "/job:w/replica:0/task:0/device:CPU:0",
        "/job:w/replica:0/task:0/device:CPU:1",
    ]
    assert parse_status(bytes.fromhex(tensorflow["status"]))[0] == devices


@pytest.mark.slow
def test_unused_fields_of_a_device_are_skipped(tensorflow: Any) -> None:
    gpu = bytes.fromhex(tensorflow["gpu"])
    assert len(gpu) < 128  # its length is one byte
    answer = bytes.fromhex(tensorflow["status"]) + b"\x0a" + bytes([len(gpu)]) + gpu
    assert parse_status(answer)[0] == [
        *tensorflow["devices"],
        {
            "name": "/job:w/replica:0/task:0/device:GPU:0",
            "type": "GPU",
            "memory_bytes": 1 << 40,
            "description": "device: 0, name: H200",
        },
    ]


def test_a_request_to_clear_a_container_is_its_name_in_the_first_field_and_no_devices_are_none() -> None:
    assert parse_status(b"") == ([], 0)
    # What servers make of it is tested with real variables in end_to_end/test_runs.py.
    assert cleanup_request("pi-1") == b"\x0a\x04pi-1"


@pytest.mark.slow
def test_a_request_for_a_trace_has_tensorflows_options(tensorflow: Any) -> None:
    # The service itself has no Python class. What servers make of it is tested in end_to_end/test_tensorboard.py.
    options = bytes.fromhex(tensorflow["options"])
    fields = {4: options, 5: b"/folder", 6: b"session", 7: b"host"}
    expected = b"".join(bytes([number << 3 | 2, len(value)]) + value for number, value in fields.items())
    assert profile_request("/folder", "session", "host", 1.5) == expected
    assert (is_trace_empty(b"\x38\x01"), is_trace_empty(b"")) == (True, False)
