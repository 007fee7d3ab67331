"""Prints what its member has, and ends as the argument with its name says: `worker:1=3` is exit code 3; others wait."""

import json
import os
import sys
import time

import beside  # type: ignore[import-not-found]  # a file beside this one, on hosts

import tfcluster

acts = dict(argument.split("=") for argument in sys.argv[1:])
act = acts.get(os.environ["TFCLUSTER_TASK"], "wait")
if "first" in acts and os.environ["TFCLUSTER_ATTEMPT"] != "0":
    act = "0"
cluster = json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"]
tfcluster.metric("rank", int(os.environ["TFCLUSTER_RANK"]), 0)
print(json.dumps({"act": act, "beside": beside.NAME, "cluster": cluster}), flush=True)
if act == "wait":
    time.sleep(1000)
sys.exit(int(act))
