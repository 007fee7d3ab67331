"""Runs programs and scripts of the cluster `demo` from a plain Python process, and prints what fails."""

import sys
from typing import Any

import tfcluster
from tfcluster.errors import ClusterError

cluster = tfcluster.connect("demo")
assert len(cluster.devices()) == 3
result = cluster.run("pi", samples=1e6, seed=7, devices=["/job:worker/task:0", "/job:worker/task:1"])
assert result["samples"] == 10**6, result
assert abs(result["pi"] - 3.14) < 0.1, result
seen: list[dict[str, Any]] = []
cluster.run("graph", "x + 1", x=2, on_event=seen.append)
assert seen[-1]["result"]["value"] == 3, seen
assert cluster.run("hello.py", "you", "--there") == {"exit_code": 0}
try:
    cluster.run("fails.py")
except ClusterError as error:
    print(error)
for program, options in (("nothing", {}), ("pi", {"samples": "many"}), ("pi", {"x": 1})):
    try:
        cluster.run(program, **options)
    except ClusterError as error:
        print(int(error.exit_code))
run = cluster.submit("pi", samples=1e6, seed=7)
*_, last = cluster.attach(run)
assert last["result"]["inside"] == result["inside"]
cluster.cancel(run)
events = cluster.events("pi", samples=1e13)
run = next(events)["run"]
events.close()
*_, last = cluster.attach(run)
assert last["state"] == "cancelled", last
assert "tensorflow" not in sys.modules
