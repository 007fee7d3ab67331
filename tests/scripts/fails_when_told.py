"""Waits for a line of input, and then fails with a message that TensorFlow gives when a server has gone."""

import sys

print("waits", flush=True)
sys.stdin.readline()
raise RuntimeError("Socket closed")
