"""Every key of a host, for every kind of run, over ssh and over `connect:`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.test_ssh import CONNECT, Over, over

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


@pytest.fixture(scope="module", params=["ssh", "connect"])
def host(
    needs_sshd: None,
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Over]:
    """A cluster on two hosts, of which alpha has every key."""
    has_sshd = request.param == "ssh"
    with over(tmp_path_factory.mktemp("keys"), "alpha", "beta", has_sshd=has_sshd) as sandbox:
        home, way = sandbox.network.home("alpha"), {} if has_sshd else {"connect": CONNECT}
        python = sandbox.folder / "python"
        python.write_text(f'#!/bin/sh\nexport FROM_PYTHON=yes\nexec {sys.executable} "$@"\n')
        python.chmod(0o755)
        setup = [f"cp {python} {home}/python", f"touch {home}/set_up"]
        alpha = {"address": sandbox.network.address("alpha"), "python": f"{home}/python", "setup": setup, "slots": 2}
        alpha |= {"shell": "export FROM_SHELL=yes", "env": {"FROM_ENV": "yes"}, "state": f"{home}/elsewhere"}
        beta = {"address": sandbox.network.address("beta"), "python": sys.executable}
        hosts = {"alpha": {**alpha, **way}, "beta": {**beta, **way}}
        # YAML contains JSON.
        sandbox.spec(json.dumps({"name": "wide", "hosts": hosts, "jobs": {"worker": {"tasks": 3}}}))
        sandbox("up")
        (sandbox.folder / "probe.py").write_text(_PROBE)
        yield sandbox


def _printing(*arguments: str) -> Callable[[Over], Any]:
    """A run that prints what `_PROBE` prints on alpha, and perhaps on beta."""

    def run(host: Over) -> Any:
        printed = [json.loads(line[line.index("{") :]) for line in host(*arguments).stdout.splitlines()]
        return next(each for each in printed if each["python"] is not None)

    return run


def _program(host: Over) -> dict[str, Any]:
    """A bundled program, of which one sees where its record is and which tasks it uses."""
    result = host.json("run", "pi", "--samples", "1e6")
    (record,) = host.network.home("alpha").glob(f"elsewhere/wide/alpha/runs/{result['run']}")
    tasks = [task["address"] for task in host.status()["tasks"]]
    return {"state": str(record), "slots": tasks}


_KINDS = {
    "program": _program,
    "script": _printing("run", "probe.py"),
    "module": _printing("run", "-m", "probe"),
    "launch": _printing("launch", "--each", "worker", "probe.py"),
    "exec": _printing("exec", "--on", "worker:0", "--", "sh", "-c", 'exec "$HOME/python" -c "$0"', _PROBE),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", _KINDS)
def test_every_key_holds_for_every_kind_of_run(host: Over, kind: str) -> None:
    shown = _KINDS[kind](host)
    assert [address.partition(":")[0] for address in shown.pop("slots")].count(host.network.address("alpha")) == 2
    folder = shown.pop("state")
    if kind != "exec":  # which is no run
        assert Path(folder).is_relative_to(host.network.home("alpha") / "elsewhere" / "wide" / "alpha" / "runs")
    if kind != "program":
        assert shown == {"python": "yes", "shell": "yes", "env": "yes", "setup": "True"}
