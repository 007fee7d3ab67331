"""Multiplies a matrix whose rows are divided over two devices of each of two members, with DTensor."""

import json
import sys

import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
dtensor.initialize_accelerator_system("CPU")
mesh = dtensor.create_distributed_mesh([("rows", dtensor.num_global_devices("CPU"))], device_type="CPU")
everywhere = dtensor.Layout.replicated(mesh, rank=2)
a = np.arange(8 * 4, dtype=np.float32).reshape(8, 4)
b = np.arange(4 * 3, dtype=np.float32).reshape(4, 3)
divided = dtensor.relayout(dtensor.copy_to_mesh(a, everywhere), dtensor.Layout(["rows", dtensor.UNSHARDED], mesh))
product = tf.function(tf.matmul)(divided, dtensor.copy_to_mesh(b, everywhere))
rows = [part.numpy().tolist() for part in dtensor.unpack(product)]
whole = dtensor.unpack(dtensor.relayout(product, everywhere))[0].numpy()
seen = {"client": dtensor.client_id(), "clients": dtensor.num_clients(), "rows": rows}
sys.stdout.write(json.dumps({**seen, "is_right": bool((whole == a @ b).all())}) + "\n")
