"""Ends as the argument with the member's name says: `worker:1=3` is exit code 3; others wait for ever."""

import os
import signal
import sys
import time

acts = dict(argument.split("=") for argument in sys.argv[1:])
act = acts.get(os.environ["TFCLUSTER_TASK"], acts.get("all", "wait"))
if "first" in acts and os.environ["TFCLUSTER_ATTEMPT"] != "0":
    act = "0"
for piece in ("doing", " ", act, "\n"):  # as `python -u` prints: those of members that print at once are not mixed
    sys.stdout.write(piece)
    sys.stdout.flush()
while act not in ("0", "lose") and "await" in acts and not os.path.exists(acts["await"]):
    time.sleep(0.1)
if act in ("unavailable", "lose"):
    sys.tracebacklimit = 0
    peer = int(act == "lose")
    raise OSError(f"Socket closed\nfrom remote target /job:worker/replica:0/task:{peer} while calling RecvBuf")
if act == "raise":
    sys.tracebacklimit = 0
    raise ValueError("no such data")
if act == "compute":
    while time.process_time() < 5:
        pass
    act = "0"
if act == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
if act == "wait":
    time.sleep(1000)
sys.exit(int(act))
