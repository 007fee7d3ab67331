"""Prints what a trial sees, reports a loss, and ends as `--act` says; `--meet=FOLDER:N` waits for N trials."""

import json
import os
import sys
import time
from pathlib import Path

import tfcluster

options = dict(argument.removeprefix("--").split("=", 1) for argument in sys.argv[1:] if argument != "--")
seen = {name: value for name, value in os.environ.items() if name.startswith(("TFCLUSTER_", "TF_CONFIG"))}
print(json.dumps({"args": sys.argv[1:], **seen}), flush=True)
Path(os.environ["TFCLUSTER_OUTPUT"], "model").write_text(options.get("lr", ""))
if "lr" in options:
    tfcluster.metric("loss", 2 * float(options["lr"]), step=1, series=options.get("series"))
if "meet" in options:
    folder, number = options["meet"].rsplit(":", 1)
    open(os.path.join(folder, os.environ["TFCLUSTER_TRIAL"]), "w").close()
    while len(os.listdir(folder)) < int(number):
        time.sleep(0.05)
act = options.get("act", "0")
if act == "wait":
    time.sleep(1000)
if act == "raise":
    sys.tracebacklimit = 0
    raise ValueError("no such data")
sys.exit(int(act))
