"""Runs a script in which every member that prints a line with a pattern waits there, at the first attempt."""

import builtins
import os
import re
import runpy
import sys
import time
from typing import Any

pattern, sys.argv = sys.argv[1], sys.argv[2:]
write, sleep = print, time.sleep


def print_and_wait(*values: object, **options: Any) -> None:
    """Print, and wait for ever at a line with the pattern."""
    write(*values, **options)
    if os.environ["TFCLUSTER_ATTEMPT"] == "0" and re.match(pattern, " ".join(map(str, values))):
        write("at the gate", flush=True)
        sleep(1000)


builtins.print = print_and_wait
# A worker of TensorFlow 1 looks only each 30 s whether the chief has initialised the variables.
time.sleep = lambda seconds: sleep(min(float(seconds), 1.0))
write("warm" if "tensorflow" in sys.modules else "cold", flush=True)
runpy.run_path(sys.argv[0], run_name="__main__")
