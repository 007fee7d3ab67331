"""Draws at random what an interpreter draws while it starts, while TensorFlow is imported, or when first asked."""

import json
import multiprocessing
import os
import random
import secrets
import tempfile
import uuid

import numpy
import tensorflow as tf

drawn = {
    "random": random.random(),
    "numpy": numpy.random.rand(),
    "numpy generator": numpy.random.default_rng().random(),
    "tf.random": tf.random.uniform([]).numpy().item(),
    "tf.Generator": tf.random.Generator.from_non_deterministic_state().uniform([]).numpy().item(),
    "tf shuffle": [int(x) for x in tf.random.shuffle(tf.range(100))],
    "tf dataset": [int(x) for x in tf.data.Dataset.range(100).shuffle(100)],
    "uuid1": str(uuid.uuid1()),
    "uuid4": str(uuid.uuid4()),
    "secrets": secrets.token_hex(),
    "tempfile": os.path.basename(tempfile.mktemp()),
    "authkey": bytes(multiprocessing.current_process().authkey).hex(),
}
with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    drawn["session"] = float(session.run(tf.compat.v1.random_uniform([])))
    drawn["incarnation"] = [device.incarnation for device in session.list_devices()]
print("DRAWN" + json.dumps(drawn))
