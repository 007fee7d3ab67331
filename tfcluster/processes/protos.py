"""The protocol buffers of TensorFlow's C API and WorkerService, without importing TensorFlow.

TensorFlow's own classes require `import tensorflow`, which takes 1.5 s. This module declares the messages a second
time, with only the fields that tfcluster uses. They are in a separate descriptor pool, so that they do not conflict
with TensorFlow's in the same process. Names and numbers are those of tensorflow/core/protobuf/tensorflow_server.proto,
cluster.proto, config.proto, worker.proto and framework/device_attributes.proto, and of profiler_options.proto and
profiler_service.proto of tsl/profiler; a test compares the serialised bytes.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

_STRING = FieldDescriptorProto.TYPE_STRING
_INT32 = FieldDescriptorProto.TYPE_INT32
_INT64 = FieldDescriptorProto.TYPE_INT64
_FIXED64 = FieldDescriptorProto.TYPE_FIXED64
_BOOL = FieldDescriptorProto.TYPE_BOOL
_UINT32 = FieldDescriptorProto.TYPE_UINT32
_UINT64 = FieldDescriptorProto.TYPE_UINT64
_MESSAGE = FieldDescriptorProto.TYPE_MESSAGE
_ONE = FieldDescriptorProto.LABEL_OPTIONAL
_MANY = FieldDescriptorProto.LABEL_REPEATED

# Message -> field -> (number, type or message name, label). The type of a map is a pair: the types of key and value.
_MESSAGES: dict[str, dict[str, tuple[int, Any, Any]]] = {
    "JobDef": {"name": (1, _STRING, _ONE), "tasks": (2, (_INT32, _STRING), _MANY)},
    "ClusterDef": {"job": (1, "JobDef", _MANY)},
    "ConfigProto": {"device_count": (1, (_STRING, _INT32), _MANY)},
    "ServerDef": {
        "cluster": (1, "ClusterDef", _ONE),
        "job_name": (2, _STRING, _ONE),
        "task_index": (3, _INT32, _ONE),
        "default_session_config": (4, "ConfigProto", _ONE),
        "protocol": (5, _STRING, _ONE),
    },
    "DeviceAttributes": {
        "name": (1, _STRING, _ONE),
        "device_type": (2, _STRING, _ONE),
        "memory_limit": (4, _INT64, _ONE),
        "incarnation": (6, _FIXED64, _ONE),
        "physical_device_desc": (7, _STRING, _ONE),
    },
    "GetStatusResponse": {"device_attributes": (1, "DeviceAttributes", _MANY)},
    "CleanupAllRequest": {"container": (1, _STRING, _MANY)},
    "ProfileOptions": {
        "include_dataset_ops": (1, _BOOL, _ONE),
        "host_tracer_level": (2, _UINT32, _ONE),
        "device_tracer_level": (3, _UINT32, _ONE),
        "version": (5, _UINT32, _ONE),
        "enable_hlo_proto": (7, _BOOL, _ONE),
        "duration_ms": (9, _UINT64, _ONE),
    },
    "ProfileRequest": {
        "opts": (4, "ProfileOptions", _ONE),
        "repository_root": (5, _STRING, _ONE),
        "session_id": (6, _STRING, _ONE),
        "host_name": (7, _STRING, _ONE),
    },
    "ProfileResponse": {"empty_trace": (7, _BOOL, _ONE)},
}


@cache
def _pool() -> DescriptorPool:
    file = FileDescriptorProto(name="tfcluster.proto", package="tensorflow", syntax="proto3")
    for message_name, fields in _MESSAGES.items():
        message = file.message_type.add(name=message_name)
        for name, (number, kind, label) in fields.items():
            field = message.field.add(name=name, number=number, label=label)
            if isinstance(kind, tuple):
                entry = message.nested_type.add(name=f"{name.title().replace('_', '')}Entry")
                entry.options.map_entry = True
                entry.field.add(name="key", number=1, type=kind[0], label=_ONE)
                entry.field.add(name="value", number=2, type=kind[1], label=_ONE)
                kind = f"{message_name}.{entry.name}"
            if isinstance(kind, str):
                field.type, field.type_name = _MESSAGE, f".tensorflow.{kind}"
            else:
                field.type = kind
    pool = DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return pool


def _message(name: str) -> Any:
    return GetMessageClass(_pool().FindMessageTypeByName(f"tensorflow.{name}"))()


def server_def(addresses: dict[str, list[str]], job: str, index: int, cpus: int) -> bytes:
    """Return a serialised ServerDef.

    `addresses` has the `host:port` of every task, by job. `cpus` is the number of logical CPU devices of the server.
    """
    message = _message("ServerDef")
    for job_name, tasks in addresses.items():
        added = message.cluster.job.add(name=job_name)
        for number, address in enumerate(tasks):
            added.tasks[number] = address
    message.job_name = job
    message.task_index = index
    message.protocol = "grpc"
    message.default_session_config.device_count["CPU"] = cpus
    return bytes(message.SerializeToString())


def parse_status(response: bytes) -> tuple[list[dict[str, Any]], int]:
    """Return the devices in a serialised GetStatusResponse, and the incarnation of the server.

    Of each device, the name, type, memory in bytes and description are returned. The incarnation is that of the first
    device: the server draws this random number when it starts, so it changes when the server is restarted. It is 0 if
    the response contains no device.
    """
    message = _message("GetStatusResponse")
    message.ParseFromString(response)
    devices = [
        {
            "name": device.name,
            "type": device.device_type,
            "memory_bytes": device.memory_limit,
            "description": device.physical_device_desc,
        }
        for device in message.device_attributes
    ]
    return devices, next((int(device.incarnation) for device in message.device_attributes), 0)


def cleanup_request(container: str) -> bytes:
    """Return a serialised CleanupAllRequest that clears one container."""
    message = _message("CleanupAllRequest")
    message.container.append(container)
    return bytes(message.SerializeToString())


def profile_request(folder: str, session: str, host: str, seconds: float) -> bytes:
    """Return a serialised ProfileRequest; the server writes the trace to FOLDER/SESSION/HOST.xplane.pb."""
    message = _message("ProfileRequest")
    # Without a version, the server would ignore the other options.
    message.opts.version = 1
    message.opts.include_dataset_ops = message.opts.enable_hlo_proto = True
    message.opts.host_tracer_level, message.opts.device_tracer_level = 2, 1
    message.opts.duration_ms = round(1000 * seconds)
    message.repository_root, message.session_id, message.host_name = folder, session, host
    return bytes(message.SerializeToString())


def is_trace_empty(profile_response: bytes) -> bool:
    """Return whether a server has found nothing to trace, from a serialised ProfileResponse."""
    message = _message("ProfileResponse")
    message.ParseFromString(profile_response)
    return bool(message.empty_trace)
