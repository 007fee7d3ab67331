"""Prints what Keras passes to its backend, and what its DataParallel finds with that of TensorFlow."""

import json
import sys
from typing import Any

import keras  # type: ignore[import-untyped]
from keras.src.distribution import distribution_lib  # type: ignore[import-untyped]
from tensorflow.experimental import dtensor

seen: dict[str, Any] = {"job": dtensor.job_name()}


def initialize(job_addresses: str, num_processes: int, process_id: int) -> None:
    """Note what Keras passes."""
    seen["given"] = [job_addresses.split(","), num_processes, process_id]


distribution_lib.distribution_lib.initialize = initialize  # TensorFlow's backend has none
keras.distribution.initialize()
dtensor.initialize_accelerator_system("CPU")
seen["shape"] = keras.distribution.DataParallel(devices=keras.distribution.list_devices("cpu")).device_mesh.shape
sys.stdout.write(json.dumps(seen) + "\n")
