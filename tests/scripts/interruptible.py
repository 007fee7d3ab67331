"""Waits until it is interrupted, and ends with the exit code that is its argument, or as Python does."""

import sys
import time

try:
    print("on", flush=True)
    time.sleep(600)
except KeyboardInterrupt:
    print("saved", flush=True)
    if len(sys.argv) > 1:
        sys.exit(int(sys.argv[1]))
    raise
