"""The list of all clusters, by `ls` and by a `status` that does not say which one is meant."""

from __future__ import annotations

import time

from tests.conftest import Sandbox

SPEC = "name: {}\njobs: {{worker: {{tasks: {}}}}}\n"


def test_several_clusters_are_listed_with_what_is_known_of_each(sandbox: Sandbox) -> None:
    assert "no cluster is up" in sandbox("ls").stderr
    assert sandbox.json("ls") == []
    began = time.time()
    paths = [sandbox.spec(SPEC.format(name, tasks), f"{name}.yaml") for name, tasks in (("alpha", 1), ("beta", 2))]
    for path in paths:
        sandbox("up", path)
    listed = sandbox.json("ls")
    assert [
        (each["cluster"], each["state"], each["ready"], each["tasks"], each["hosts"], each["error"]) for each in listed
    ] == [("alpha", "running", 1, 1, ["localhost"], None), ("beta", "running", 2, 2, ["localhost"], None)]
    assert [each["spec"] for each in listed] == [str(sandbox.folder / path) for path in paths]
    assert began < listed[0]["started"] < listed[1]["started"] < time.time()
    assert sandbox("status").stdout == sandbox("ls").stdout
    assert sandbox.json("status") == listed
    assert sandbox.json("status", "-c", "beta")["started"] == listed[1]["started"]
    assert "several clusters are running: alpha, beta" in sandbox("restart", "worker:0", code=2).stderr
    sandbox("down", "-c", "alpha")
    assert sandbox.json("status")["cluster"] == "beta"
    sandbox("down", "-c", "beta")
