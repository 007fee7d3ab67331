"""Saves for two seconds when it is told to end, and exits with 3."""

import signal
import sys
import time


def save(*_: object) -> None:
    time.sleep(2)
    print("saved", flush=True)
    sys.exit(3)


signal.signal(signal.SIGTERM, save)
print("started", flush=True)
time.sleep(600)
