"""Waits inside TensorFlow, where Python handles no signal, or does so in a handler; the argument says which."""

import contextlib
import os
import signal
import sys
import threading
import time

import tensorflow.compat.v1 as tf


def get_from_empty_queue(message: str, seconds: float = 0.0) -> None:
    """Print a message inside TensorFlow, and stay there, for ever or for some seconds."""
    with tf.Graph().as_default(), tf.control_dependencies([tf.print(message, output_stream="file:///dev/stdout")]):
        item = tf.identity(tf.constant(0.0))
        with tf.control_dependencies([item]):
            never = tf.FIFOQueue(1, [tf.float32]).dequeue()
        with tf.Session() as session, contextlib.suppress(tf.errors.DeadlineExceededError):
            session.run(never, options=tf.RunOptions(timeout_in_ms=int(1000 * seconds)))


def report_signals() -> None:
    """Print as soon as the process has got a signal, though Python does not handle it."""
    while os.read(reading, 1):
        print("signalled", flush=True)


def save(*_: object) -> None:
    get_from_empty_queue("saving", 2.5)
    sys.exit()


match sys.argv[1]:
    case "hangs":
        get_from_empty_queue("on")
    case "reports":
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        signal.set_wakeup_fd(writing)
        threading.Thread(target=report_signals, daemon=True).start()
        get_from_empty_queue("on")
    case "saves":
        signal.signal(signal.SIGINT, save)
        print("on", flush=True)
        time.sleep(600)
    case "late":
        signal.signal(signal.SIGINT, lambda *_: print("handled", flush=True))
        get_from_empty_queue("on", 10)
        while True:
            time.sleep(0.1)
