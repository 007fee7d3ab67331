"""Saves its state when it is terminated, for longer than a run has that is cancelled."""

import signal
import sys
import time
from typing import Any


def save(*_: Any) -> None:
    time.sleep(4)
    with open("checkpoint", "w") as file:
        file.write("all")
    sys.exit(143)


signal.signal(signal.SIGTERM, save)
print("trains", flush=True)
time.sleep(1000)
