"""Coordinates a group of two members on the hosts beta and gamma: `FOLDER MAX_RESTARTS SECRET`."""

import sys
from pathlib import Path

from tfcluster.core.groups import Group, Member
from tfcluster.core.runs import RunOptions
from tfcluster.processes.groups.coordinator import GroupCoordinator
from tfcluster.processes.runs.run_plan import RunPlan

folder, max_restarts, secret = sys.argv[1:]
members = tuple(Member("worker", rank, rank, host, "127.0.0.1") for rank, host in enumerate(["beta", "gamma"]))
options = RunOptions("script", {"path": "/x.py"}, max_restarts=int(max_restarts))
plan = RunPlan("x-1", "demo", options, Path(folder), {}, "alpha:1", [], [], host="alpha")
GroupCoordinator(plan, Group(members, {}, secret, "127.0.0.1"), None).run()
