"""A member of a group: the first worker requires the ps alone, and the second one ends when it has connected."""

import json
import os
import sys
import threading
import time

import tensorflow as tf

config = json.loads(os.environ["TF_CONFIG"])
if os.environ["TFCLUSTER_TASK"] == "worker:1":
    while not os.path.exists("connected"):
        time.sleep(0.1)
    sys.exit()
job, index = config["task"]["type"], config["task"]["index"]
server = tf.compat.v1.train.Server(config["cluster"], job_name=job, task_index=index)
if job == "ps":
    server.join()
options = tf.compat.v1.ConfigProto(device_filters=["/job:ps", "/job:worker/task:0"])
with tf.Graph().as_default(), tf.compat.v1.Session(server.target, config=options) as session:
    session.run(tf.no_op())
    open("connected", "x").close()
    queue = tf.queue.FIFOQueue(1, tf.float32)
    dequeued, enqueue = queue.dequeue(), queue.enqueue(6.0)
    timer = threading.Timer(5, lambda: session.run(enqueue))
    timer.start()
    print(session.run(dequeued))
    timer.join()  # its own step may end after the one that it feeds
