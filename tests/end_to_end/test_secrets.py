"""Secret values of environment variables are shown nowhere, and no file keeps them when the cluster is down."""

from __future__ import annotations

from tests.conftest import Sandbox

SPEC = """
name: quiet
jobs:
  ps: {tasks: 1}
  worker: {tasks: 1, max: 2, env: {TOKEN: {secret: "${TOKEN}"}, PLAIN: "<${PLAIN}>"}}
"""


def test_a_secret_reaches_its_task_and_is_neither_shown_nor_kept(sandbox: Sandbox) -> None:
    """Even if it changes; tests/cli/test_secrets.py has more commands."""
    spec, values = sandbox.spec(SPEC), {"TOKEN": "xyzzy-1", "PLAIN": "plugh"}
    shown = [sandbox("up", spec, env=values)]
    variables = sandbox("env", "worker:0").stdout
    assert "xyzzy-1" in variables
    assert "<plugh>" in variables
    shown.append(sandbox("up", env={**values, "TOKEN": "xyzzy-2"}))
    assert "env TOKEN changed" in shown[-1].stdout
    assert "xyzzy-2" in sandbox("env", "worker:0").stdout
    shown += [sandbox("status", "-o", "json"), sandbox("logs"), sandbox("down"), sandbox("events")]
    for each in shown:
        assert "xyzzy" not in each.stdout + each.stderr, each.args
        assert "plugh" not in each.stdout + each.stderr, each.args
    state = [path for path in sandbox.folder.rglob("*") if path.is_file() and path.name != "cluster.yaml"]
    assert state
    assert not [path for path in state if b"xyzzy" in path.read_bytes()]
