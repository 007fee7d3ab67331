"""Compares messages of ours with TensorFlow's own, and prints in JSON what differs, with some of TensorFlow's in hex.

Its input is [[ServerDef in hex, addresses, job, index, cpus]...]: TensorFlow's class parses each of them, and builds
one for comparison. Then a server says its status, which is printed with the devices that TensorFlow itself finds.
"""

# mypy: disable-error-code="import-untyped"

import json
import sys

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
    ask = channel.unary_unary("/tensorflow.WorkerService/GetStatus", None, None)
    status = ask(b"", timeout=60)

gpu = DeviceAttributes(
    name="/job:w/replica:0/task:0/device:GPU:0", device_type="GPU", memory_limit=1 << 40, xla_global_id=-1
)
gpu.incarnation = (1 << 64) - 1
gpu.locality.links.link.add(device_id=1, type="x", strength=2)
gpu.physical_device_desc = "device: 0, name: H200"
options = ProfileOptions(version=1, include_dataset_ops=True, enable_hlo_proto=True, duration_ms=1500)
options.host_tracer_level, options.device_tracer_level = 2, 1
print(
    json.dumps(
        {
            "differences": differences,
            "devices": devices,
            "status": status.hex(),
            "gpu": gpu.SerializeToString().hex(),
            "options": options.SerializeToString().hex(),
        }
    )
)
