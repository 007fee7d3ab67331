"""Secret values: out of the topology into a private file, and back."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.agent.hosts import task_of, topology_of
from tfcluster.agent.state.secret_store import SecretStore
from tfcluster.core.secrets import without_values
from tfcluster.core.topology import Notify

RETENTION = {"PLAIN": "seen"}
TASK = task_of("worker:0", "a", env={"TOKEN": "hunter2", **RETENTION, "KEY": "ü\n"}, secrets=("TOKEN", "KEY"))
TOPOLOGY = topology_of(
    [TASK, task_of("worker:1", "b", env=RETENTION)], reserved=(task_of("ps:0", "a", secrets=("TOKEN",)),)
)


@pytest.fixture
def values(tmp_path: Path) -> SecretStore:
    return SecretStore(tmp_path / "run" / "demo.secrets")


def test_redacted_secrets_are_restored(values: SecretStore) -> None:
    redacted = values.redact(TOPOLOGY)
    assert [task.env for task in redacted.tasks] == [RETENTION, RETENTION]
    assert redacted.tasks[0].lost_secrets == ["TOKEN", "KEY"]
    assert values.path.stat().st_mode & 0o777 == 0o600
    assert SecretStore(values.path).restore(redacted, values.path) == TOPOLOGY
    assert TOPOLOGY.tasks[0].lost_secrets == []
    assert TOPOLOGY.reserved[0].lost_secrets == ["TOKEN"], "it never had one"


def test_the_file_is_written_only_when_it_has_to_be(values: SecretStore) -> None:
    values.redact(TOPOLOGY)
    os.utime(values.path, (0, 0))
    values.redact(TOPOLOGY)
    assert values.path.stat().st_mtime == 0
    shutil.rmtree(values.path.parent)  # as a logout does
    values.redact(TOPOLOGY)
    assert not values.path.exists()
    other = replace(TOPOLOGY, generation=TOPOLOGY.generation + 1)
    assert values.restore(values.redact(other), values.path) == other
    assert values.path.exists()


@pytest.mark.parametrize("text", [None, "", "{", "[]", '{"/job:worker/task:0": 5}'])
def test_without_the_file_the_values_are_lost(values: SecretStore, text: str | None) -> None:
    redacted = values.redact(TOPOLOGY)
    values.path.unlink()
    if text is not None:
        values.path.write_text(text)
    assert values.restore(redacted, values.path) == redacted


def test_a_topology_without_secrets_has_no_file(values: SecretStore) -> None:
    values.redact(TOPOLOGY)
    plain = topology_of([task_of("worker:1", "b", env=RETENTION)])
    for _ in range(2):  # when it is written again the journal has it
        assert values.redact(plain) == plain
    assert not values.path.exists()


def test_the_url_of_a_webhook_is_secret(values: SecretStore) -> None:
    notify = Notify("https://hooks.example.org/T0", None, ())
    topology = replace(topology_of([task_of("worker:0", "a")]), notify=notify)
    redacted = values.redact(topology)
    assert redacted.notify is not None
    assert redacted.notify.webhook is None
    assert SecretStore(values.path).restore(redacted, values.path) == topology


def test_a_file_that_cannot_be_written_leaves_nothing(values: SecretStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(source: Path, target: Path) -> None:
        raise OSError(28, "No space left on device", str(target))

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="No space left"):
        values.redact(TOPOLOGY)
    assert list(values.path.parent.iterdir()) == []


def test_the_values_are_kept_until_the_journal_has_the_next_topology(values: SecretStore) -> None:
    redacted = values.redact(TOPOLOGY)
    other = replace(TASK, env={**TASK.env, "TOKEN": "hunter3"})
    following = replace(topology_of([other]), generation=TOPOLOGY.generation + 1)
    for topologies in ((TOPOLOGY, following), (following,)):
        values.redact(*topologies)
        # An agent that dies before the journal is written is followed by one that reads what the journal has.
        later = SecretStore(values.path)
        assert later.restore(redacted, values.path) == TOPOLOGY
        assert later.restore(without_values(following), values.path) == following
    values.prune()
    assert "hunter2" not in values.path.read_text()
    later = SecretStore(values.path)
    assert later.restore(without_values(following), values.path) == following


def test_only_values_of_secrets_are_restored_and_only_from_a_file_of_this_user(values: SecretStore) -> None:
    redacted = values.redact(TOPOLOGY)
    stored = json.loads(values.path.read_text())
    for of_tasks in stored.values():
        of_tasks[TASK.name]["LD_PRELOAD"] = "/tmp/theirs.so"
    values.path.write_text(json.dumps(stored))
    assert SecretStore(values.path).restore(redacted, values.path) == TOPOLOGY
    link = values.path.with_name("link.secrets")
    link.symlink_to(values.path)
    assert SecretStore(link).restore(redacted, link) == redacted, "others could have made the link"


def test_nothing_is_written_to_a_folder_that_others_can_enter(values: SecretStore) -> None:
    values.path.parent.mkdir(mode=0o755)
    values.path.parent.chmod(0o755)
    with pytest.raises(PermissionError, match="only you can enter"):
        values.redact(TOPOLOGY)
    assert list(values.path.parent.iterdir()) == []
