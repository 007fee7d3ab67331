"""Records 400 values, and then waits, is killed, or exits with its argument."""

import os
import signal
import sys
import time

import tfcluster

for step in range(400):
    tfcluster.metric("loss", 1 / (step + 1), step)
if sys.argv[1] == "wait":
    print("waits", flush=True)
    time.sleep(1000)
if sys.argv[1] == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(int(sys.argv[1]))
