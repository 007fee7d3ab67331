"""Waits for a line of input, and then fails as TensorFlow does when a server has gone."""

import sys

print("waits", flush=True)
sys.stdin.readline()
raise RuntimeError("Socket closed")
