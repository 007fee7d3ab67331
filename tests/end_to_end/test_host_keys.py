"""Every key of a host, for every kind of run, over ssh and over `connect:`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.clusters import Hosts
from tests.hosts import HostsSandbox

# Prints what each key has changed where it runs.
_PROBE = """
import json, os
print(json.dumps({
    "python": os.environ.get("FROM_PYTHON"),
    "shell": os.environ.get("FROM_SHELL"),
    "env": os.environ.get("FROM_ENV"),
    "state": os.environ.get("TFCLUSTER_OUTPUT"),
    "setup": str(os.path.exists(os.environ["HOME"] + "/set_up")),
    "slots": json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"],
}))
"""


#: Of two hosts, alpha has every key.
HOSTS = Hosts(
    ("alpha", "beta"),
    "jobs: {worker: {tasks: 3}}\n",
    keys={
        "alpha": {
            "python": "{home}/python",
            "setup": ["install -m 755 {folder}/python {home}/python", "touch {home}/set_up"],
            "slots": 2,
            "shell": "export FROM_SHELL=yes",
            "env": {"FROM_ENV": "yes"},
            "state": "{home}/elsewhere",
        }
    },
    files={"python": f'#!/bin/sh\nexport FROM_PYTHON=yes\nexec {sys.executable} "$@"\n', "probe.py": _PROBE},
)


def _printing(*arguments: str) -> Callable[[HostsSandbox], Any]:
    """A run that prints what `_PROBE` prints on alpha, and perhaps on beta."""

    def run(hosts: HostsSandbox) -> Any:
        printed = [json.loads(line[line.index("{") :]) for line in hosts(*arguments).stdout.splitlines()]
        return next(each for each in printed if each["python"] is not None)

    return run


def _program(hosts: HostsSandbox) -> dict[str, Any]:
    """A bundled program, of which one sees where its record is and which tasks it uses."""
    result = hosts.json("run", "pi", "--samples", "1e6")
    (record,) = hosts.network.home("alpha").glob(f"elsewhere/wide/alpha/runs/{result['run']}")
    tasks = [task["address"] for task in hosts.status()["tasks"]]
    return {"state": str(record), "slots": tasks}


_KINDS = {
    "program": _program,
    "script": _printing("run", "probe.py"),
    "module": _printing("run", "-m", "probe"),
    "launch": _printing("launch", "--each", "worker", "probe.py"),
    "exec": _printing("exec", "--on", "worker:0", "--", "sh", "-c", 'exec "$HOME/python" -c "$0"', _PROBE),
}


@pytest.mark.slow
@pytest.mark.every_way
@pytest.mark.parametrize("kind", _KINDS)
def test_every_key_holds_for_every_kind_of_run(hosts: HostsSandbox, kind: str) -> None:
    shown = _KINDS[kind](hosts)
    assert [address.partition(":")[0] for address in shown.pop("slots")].count(hosts.network.address("alpha")) == 2
    folder = shown.pop("state")
    if kind != "exec":  # which is no run
        assert Path(folder).is_relative_to(hosts.network.home("alpha") / "elsewhere" / "wide" / "alpha" / "runs")
    if kind != "program":
        assert shown == {"python": "yes", "shell": "yes", "env": "yes", "setup": "True"}
