"""Secret values: out of the layout into a private file, and back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.agent.hosts import layout_of, task_of
from tfcluster.agent.files import Files
from tfcluster.agent.secret_values import SecretValues, lost, without_values

KEPT = {"PLAIN": "seen"}
TASK = task_of("worker:0", "a", env={"TOKEN": "hunter2", **KEPT, "KEY": "ü\n"}, secrets=("TOKEN", "KEY"))
LAYOUT = layout_of([TASK, task_of("worker:1", "b", env=KEPT)], reserved=(task_of("ps:0", "a", secrets=("TOKEN",)),))


@pytest.fixture
def values(tmp_path: Path) -> SecretValues:
    return SecretValues(tmp_path / "demo.secrets")


def test_what_is_hidden_is_shown_again(values: SecretValues) -> None:
    hidden = values.hidden(LAYOUT)
    assert [task.env for task in hidden.tasks] == [KEPT, KEPT]
    assert lost(hidden.tasks[0]) == ["TOKEN", "KEY"]
    assert values.path.stat().st_mode & 0o777 == 0o600
    assert SecretValues(values.path).shown(hidden, values.path) == LAYOUT
    assert lost(LAYOUT.tasks[0]) == []
    assert lost(LAYOUT.reserved[0]) == ["TOKEN"], "it never had one"


def test_the_file_is_written_only_when_it_has_to_be(values: SecretValues, monkeypatch: pytest.MonkeyPatch) -> None:
    written = []
    write = Files.write

    def count(self: Files, path: Path, data: bytes, *, durable: bool) -> None:
        written.append(data)
        write(self, path, data, durable=durable)

    monkeypatch.setattr(Files, "write", count)
    values.hidden(LAYOUT)
    values.hidden(LAYOUT)
    assert len(written) == 1
    values.path.unlink()  # somebody has tidied up
    values.hidden(LAYOUT)
    assert values.shown(values.hidden(LAYOUT), values.path) == LAYOUT
    assert len(written) == 2


@pytest.mark.parametrize("text", [None, "", "{", "[]", '{"/job:worker/task:0": 5}'])
def test_without_the_file_the_values_are_lost(values: SecretValues, text: str | None) -> None:
    hidden = values.hidden(LAYOUT)
    values.path.unlink()
    if text is not None:
        values.path.write_text(text)
    assert values.shown(hidden, values.path) == hidden


def test_a_layout_without_secrets_has_no_file(values: SecretValues) -> None:
    values.hidden(LAYOUT)
    plain = layout_of([task_of("worker:1", "b", env=KEPT)])
    for _ in range(2):  # when it is written again the journal has it
        assert values.hidden(plain) == plain
    assert not values.path.exists()


def test_a_file_that_cannot_be_written_leaves_nothing(values: SecretValues, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Files, source: Path, target: Path) -> None:
        raise OSError(28, "No space left on device", str(target))

    monkeypatch.setattr(Files, "replace", fail)
    with pytest.raises(OSError, match="No space left"):
        values.hidden(LAYOUT)
    assert list(values.path.parent.iterdir()) == []


def test_the_values_of_a_layout_are_kept_until_the_journal_has_the_next_one(values: SecretValues) -> None:
    hidden = values.hidden(LAYOUT)
    other = replace(TASK, env={**TASK.env, "TOKEN": "hunter3"})
    following = replace(layout_of([other]), generation=LAYOUT.generation + 1)
    for layouts in ((LAYOUT, following), (following,)):
        values.hidden(*layouts)
        # An agent that dies before the journal is written is followed by one that reads what the journal has.
        later = SecretValues(values.path)
        assert later.shown(hidden, values.path) == LAYOUT
        assert later.shown(without_values(following), values.path) == following
    values.hidden(following)
    assert "hunter2" not in values.path.read_text()
    later = SecretValues(values.path)
    assert later.shown(without_values(following), values.path) == following
