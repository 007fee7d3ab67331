"""Secret values of environment variables are shown nowhere, and no file keeps them when the cluster is down."""

from __future__ import annotations

import pytest

from tests.conftest import Result, Sandbox

SPEC = """
name: quiet
jobs:
  ps: {tasks: 1}
  worker: {tasks: 1, max: 2, env: {TOKEN: {secret: xyzzy-1}, PLAIN: plugh}}
"""


@pytest.mark.slow
def test_no_command_shows_a_secret(sandbox: Sandbox) -> None:
    sandbox.spec(SPEC)
    shown = [sandbox(*words.split(), "-o", "json") for words in ("validate", "up --dry-run", "up", "doctor")]
    sandbox.spec(SPEC.replace("xyzzy-1", "xyzzy-2"))
    plain = ("up --dry-run", "up --dry-run -o json", "up", "scale worker=2", "status", "status -o json", "events")
    more = ("events -o json", "logs", "devices -o json", "down", "events")
    shown += [sandbox(*words.split()) for words in (*plain, *more)]
    assert any("env TOKEN changed" in each.stdout for each in shown)
    assert_nothing_is_shown_or_kept(sandbox, shown)


def test_neither_a_change_nor_a_status_shows_a_secret(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec(SPEC))
    sandbox.spec(SPEC.replace("xyzzy-1", "xyzzy-2"))
    shown = [sandbox("up", "--dry-run", "-o", "json"), sandbox("status", "-o", "json"), sandbox("down")]
    assert "env TOKEN changed" in shown[0].stdout
    assert_nothing_is_shown_or_kept(sandbox, shown)


def assert_nothing_is_shown_or_kept(sandbox: Sandbox, shown: list[Result]) -> None:
    """Check that the commands of a cluster that is down now, and its files, have no value of the variables."""
    for each in shown:
        assert "xyzzy" not in each.stdout + each.stderr, each.args
        assert "plugh" not in each.stdout + each.stderr, each.args
    state = [path for path in sandbox.folder.rglob("*") if path.is_file() and path.name != "cluster.yaml"]
    assert state
    assert not [path for path in state if b"xyzzy" in path.read_bytes()]


def test_a_secret_from_a_variable_is_neither_shown_nor_kept_and_only_up_requires_it(sandbox: Sandbox) -> None:
    text = SPEC.replace("xyzzy-1", '"${TOKEN}"').replace("plugh", '"<${PLAIN}>"')
    spec, values = sandbox.spec(text), {"TOKEN": "xyzzy-1", "PLAIN": "plugh"}
    assert "the variable TOKEN is not set" in sandbox("up", spec, code=2).stderr
    shown = [sandbox("status", code=3), sandbox("up", spec, env=values)]
    variables = sandbox("env", "worker:0").stdout
    assert "xyzzy-1" in variables
    assert "<plugh>" in variables
    shown.append(sandbox("up", "--dry-run", env={**values, "TOKEN": "xyzzy-2"}))
    assert "env TOKEN changed" in shown[-1].stdout
    shown += [sandbox("status"), sandbox("down"), sandbox("down", code=3), sandbox("runs")]
    assert_nothing_is_shown_or_kept(sandbox, shown)
