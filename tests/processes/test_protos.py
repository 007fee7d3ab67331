"""Our declarations of TensorFlow's messages against TensorFlow's own, which another process imports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tfcluster.processes.protos import cleanup_request, is_trace_empty, parse_status, profile_request, server_def

# Reads [[ServerDef in hex, addresses, job, index, cpus]…], parses each with TensorFlow's class and compares it
# with one that is built with TensorFlow's class; prints what differs. Then has a server say its status, and prints
# that in hex with the devices that TensorFlow finds by itself.
_TENSORFLOW = """
import json, sys
import grpc
import tensorflow as tf
from tensorflow.core.framework.device_attributes_pb2 import DeviceAttributes
from tensorflow.core.protobuf.tensorflow_server_pb2 import ServerDef
from tensorflow.tsl.profiler.protobuf.profiler_options_pb2 import ProfileOptions

differences = []
for data, addresses, job, index, cpus in json.load(sys.stdin):
    expected = ServerDef(job_name=job, task_index=index, protocol="grpc")
    for name, tasks in addresses.items():
        added = expected.cluster.job.add(name=name)
        for number, address in enumerate(tasks):
            added.tasks[number] = address
    expected.default_session_config.device_count["CPU"] = cpus
    decoded = ServerDef.FromString(bytes.fromhex(data))
    # Serialised again, a field of ours that TensorFlow does not know would still be there.
    if decoded != expected or len(decoded.SerializeToString()) != len(expected.SerializeToString()):
        differences.append([str(decoded), str(expected)])

config = tf.compat.v1.ConfigProto(device_count={"CPU": 2})
server = tf.distribute.Server({"w": ["localhost:0"]}, job_name="w", task_index=0, config=config)
with tf.compat.v1.Session(server.target) as session:
    devices = [
        {"name": each.name, "type": each.device_type, "memory_bytes": each.memory_limit_bytes, "description": ""}
        for each in session.list_devices()
    ]
address = server.target.removeprefix("grpc://")
with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
    status = channel.unary_unary("/tensorflow.WorkerService/GetStatus")(b"", timeout=60)

gpu = DeviceAttributes(name="/job:w/replica:0/task:0/device:GPU:0", device_type="GPU", memory_limit=1 << 40)
gpu.incarnation = (1 << 64) - 1
gpu.locality.links.link.add(device_id=1, type="x", strength=2)
gpu.physical_device_desc = "device: 0, name: H200"
gpu.xla_global_id = -1
options = ProfileOptions(version=1, include_dataset_ops=True, enable_hlo_proto=True, duration_ms=1500)
options.host_tracer_level, options.device_tracer_level = 2, 1
print(json.dumps({
    "differences": differences,
    "devices": devices,
    "status": status.hex(),
    "gpu": gpu.SerializeToString().hex(),
    "options": options.SerializeToString().hex(),
}))
"""

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
    answer = subprocess.run(
        [sys.executable, "-c", _TENSORFLOW],
        input=json.dumps(cases),
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(answer.stdout)


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
