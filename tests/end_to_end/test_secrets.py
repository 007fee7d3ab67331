"""Secret values of environment variables are shown nowhere, and no file keeps them when the cluster is down."""

from __future__ import annotations

from tests.conftest import Sandbox

SPEC = """
name: quiet
jobs:
  ps: {tasks: 1}
  worker: {tasks: 1, max: 2, env: {TOKEN: {secret: xyzzy-1}, PLAIN: plugh}}
"""


def test_no_command_shows_a_secret(sandbox: Sandbox) -> None:
    spec = sandbox.spec(SPEC)
    shown = [sandbox("validate", spec, "-o", "json"), sandbox("up", spec, "--dry-run", "-o", "json")]
    shown += [sandbox("up", spec, "-o", "json"), sandbox("doctor", spec, "-o", "json")]
    sandbox.spec(SPEC.replace("xyzzy-1", "xyzzy-2"))
    shown += [sandbox("up", spec, "--dry-run"), sandbox("up", spec, "--dry-run", "-o", "json"), sandbox("up", spec)]
    shown += [sandbox("scale", "worker=2"), sandbox("status"), sandbox("status", "-o", "json")]
    shown += [sandbox("events"), sandbox("events", "-o", "json"), sandbox("logs"), sandbox("devices", "-o", "json")]
    shown += [sandbox("down"), sandbox("events")]
    assert any("env TOKEN changed" in each.stdout for each in shown)
    for each in shown:
        assert "xyzzy" not in each.stdout + each.stderr, each.args
        assert "plugh" not in each.stdout + each.stderr, each.args
    state = [path for path in sandbox.folder.rglob("*") if path.is_file() and path != spec]
    assert state
    assert not [path for path in state if b"xyzzy" in path.read_bytes()]
