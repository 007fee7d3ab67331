"""Checkpoints written and read by TensorFlow itself, folders that hold something else, and summaries."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tfcluster.errors import ClusterError, ExitCode
from tfcluster.programs.linear import LogFolder

VALUES = {"w": np.float64(2.006), "b": np.float64(0.1), "global_step": np.int64(7), "w/Adagrad": np.float64(3.5)}
NAMES = list(VALUES)


def refusal(folder: Path, names: list[str] = NAMES) -> str:
    with pytest.raises(ClusterError) as caught:
        LogFolder(str(folder)).latest(names)
    assert caught.value.exit_code is ExitCode.USAGE
    assert caught.value.hint
    return caught.value.message


def written(folder: Path) -> Path:
    LogFolder(str(folder)).write(VALUES)
    return folder


def test_a_checkpoint_can_be_read_by_tfcluster_and_by_tensorflow(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    checkpoints = LogFolder(str(folder))
    assert checkpoints.latest(NAMES) is None
    for step in range(7, 15):
        checkpoints.write({**VALUES, "global_step": np.int64(step)})
    assert LogFolder(str(folder)).latest(NAMES) == {**VALUES, "global_step": 14}
    path = tf.train.latest_checkpoint(str(folder))
    assert path == str(folder / "model.ckpt-14")
    assert dict(tf.train.list_variables(path)) == {name: [] for name in NAMES}
    assert len(list(folder.glob("*.index"))) == 5, "the saver keeps five"


def test_checkpoints_of_an_earlier_run_are_cleaned_up_too_and_one_is_written_when_it_is_due(tmp_path: Path) -> None:
    for step in range(7, 15):
        LogFolder(str(tmp_path)).write({**VALUES, "global_step": np.int64(step)})
    assert len(list(tmp_path.glob("*.index"))) == 5
    due = tmp_path / "due"
    LogFolder(str(due), 1000.0).write_if_due(VALUES)
    assert list(due.iterdir()) == []
    LogFolder(str(due), 0.0).write_if_due(VALUES)
    assert LogFolder(str(due)).latest(NAMES) == VALUES


def test_a_checkpoint_with_other_variables(tmp_path: Path) -> None:
    written(tmp_path)
    assert refusal(tmp_path, ["w", "b", "global_step"]).endswith("is a checkpoint with another optimizer: w/Adagrad")
    assert "with another optimizer: w/Adagrad, w/Adam" in refusal(tmp_path, ["w", "b", "global_step", "w/Adam"])
    other = tmp_path / "other"
    LogFolder(str(other)).write({"kernel": np.float32(1), "global_step": np.int64(1)})
    assert "is a checkpoint of another model: b, kernel, w" in refusal(other)


def test_a_damaged_checkpoint(tmp_path: Path) -> None:
    data = next(written(tmp_path / "data").glob("*.data*"))
    data.write_bytes(bytes(byte ^ 0xFF for byte in data.read_bytes()))
    assert "is damaged" in refusal(tmp_path / "data")
    index = next(written(tmp_path / "index").glob("*.index"))
    index.write_bytes(b"no index")
    assert "cannot be read as a checkpoint" in refusal(tmp_path / "index")
    (written(tmp_path / "state") / "checkpoint").write_text("no state")
    assert "names a checkpoint that does not exist" in refusal(tmp_path / "state")
    for path in written(tmp_path / "gone").glob("model*"):
        path.unlink()
    assert "names a checkpoint that does not exist" in refusal(tmp_path / "gone")


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/new")):
        message = refusal(path)
        assert message.startswith(f"--logdir {path}: cannot be written: ")


def test_the_error_about_a_deleted_folder_has_the_parameters(tmp_path: Path) -> None:
    checkpoints = LogFolder(str(tmp_path / "a"))
    (tmp_path / "a").rmdir()
    (tmp_path / "a").write_text("")
    with pytest.raises(ClusterError) as caught:
        checkpoints.write(VALUES)
    assert "the checkpoint of step 7 could not be written: " in caught.value.message
    assert caught.value.hint == "The training was at w = 2.006, b = 0.1."


def test_summaries_are_read_by_tensorflow_and_those_of_two_runs_within_a_second_are_both_kept(tmp_path: Path) -> None:
    with contextlib.closing(LogFolder(str(tmp_path))) as log:
        for step in (8, 16, 12, 40):
            log.add_summary(step, {"loss": 1.0 / step, "w": 2.0})
    (path,) = tmp_path.iterdir()
    events = [event for event in tf.compat.v1.train.summary_iterator(str(path)) if event.summary.value]
    assert [event.step for event in events] == [8, 16, 40]
    assert [(value.tag, value.simple_value) for value in events[0].summary.value] == [("loss", 0.125), ("w", 2.0)]
    for _ in range(3):  # two of three at least begin in the same second
        with contextlib.closing(LogFolder(str(tmp_path))) as log:
            log.add_summary(1, {"loss": 1.0})
    assert len(list(tmp_path.iterdir())) == 4
