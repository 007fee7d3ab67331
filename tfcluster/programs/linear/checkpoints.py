"""The user's folder of checkpoints and TensorBoard summaries, on the driver's host."""

from __future__ import annotations

import json
import math
import secrets
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfcluster.errors import ClusterError, usage_error
from tfcluster.os.files import write_atomically

v1 = tf.compat.v1

_TRAINING = "training.json"
_KEPT = 5  # checkpoints, as tf.train.Saver keeps


class LogFolder:
    """The user's folder of checkpoints, in the format of tf.train.Saver, and TensorBoard summaries; None for no folder.

    It is created if it does not exist. A context manager that closes the file of summaries on exit. The operations that
    write checkpoints run in a local session of the driver, on values read from the parameter servers. If they ran on
    the variables' own devices, each parameter server would write its part on its own host.
    """

    def __init__(self, folder: str | None, checkpoint_seconds: float = math.inf) -> None:
        self.folder = None if folder is None else Path(folder)
        self._checkpoint_seconds = checkpoint_seconds
        self._written_at = time.monotonic()
        self._writer: Any = None  # of summaries
        self._last_step = -1
        if self.folder is None:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder):
                pass
        except OSError as error:
            raise _usage_error(f"--logdir {folder}: cannot be written: {error.strerror}") from error

    def __enter__(self) -> LogFolder:
        return self

    def __exit__(self, *error: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def seed(self) -> int | None:
        """Return the seed of the training that wrote the checkpoint; None if there is none, or its seed is unknown."""
        if self.folder is None or not (self.folder / "checkpoint").exists():
            return None
        try:
            seed = json.loads((self.folder / _TRAINING).read_text())["seed"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return seed if isinstance(seed, int) else None

    def record_seed(self, seed: int) -> None:
        """Record the seed of this training, for the next one that continues from its checkpoint."""
        if self.folder is None:
            return
        try:
            write_atomically(self.folder / _TRAINING, json.dumps({"seed": seed}).encode())
        except OSError as error:
            raise _usage_error(f"--logdir {self.folder}: cannot be written: {error.strerror}") from error

    def latest(self, names: list[str]) -> dict[str, Any] | None:
        """Return the variables' values in the latest checkpoint, if any; an unsuitable checkpoint is a usage error."""
        if self.folder is None or not (self.folder / "checkpoint").exists():
            return None
        path = tf.train.latest_checkpoint(str(self.folder))
        if path is None:
            raise _usage_error(f"{self.folder / 'checkpoint'}: names a checkpoint that does not exist")
        problem = "cannot be read as a checkpoint"
        try:
            reader = tf.train.load_checkpoint(path)
            shapes = reader.get_variable_to_shape_map()
            if others := sorted({name for name in names if shapes.get(name) != []} | (shapes.keys() - set(names))):
                model = "with another optimizer" if {"w", "b", "global_step"} <= shapes.keys() else "of another model"
                raise _usage_error(f"{path}: is a checkpoint {model}: {', '.join(others[:4])}")
            problem = "is damaged"
            return {name: reader.get_tensor(name) for name in names}
        except (tf.errors.OpError, ValueError, RuntimeError) as error:
            raise _usage_error(f"{path}: {problem}: {_first_line(error)}") from error

    def write_if_due(self, values: Mapping[str, Any]) -> None:
        """Write a checkpoint if the last one is old enough."""
        if time.monotonic() - self._written_at >= self._checkpoint_seconds:
            self.write(values)
            self._written_at = time.monotonic()

    def write(self, values: Mapping[str, Any]) -> None:
        """Write a checkpoint. Earlier checkpoints stay until it is complete; the latest five are kept."""
        if self.folder is None:
            return
        path = str(self.folder / f"model.ckpt-{int(values['global_step'])}")
        try:
            with tf.Graph().as_default(), v1.Session() as session:
                tensors = [tf.constant(value) for value in values.values()]
                whole = [""] * len(tensors)
                save = tf.raw_ops.SaveV2(
                    prefix=path, tensor_names=list(values), shape_and_slices=whole, tensors=tensors
                )
                session.run(save)
            state = tf.train.get_checkpoint_state(str(self.folder))
            earlier = [each for each in (state.all_model_checkpoint_paths if state else ()) if each != path]
            kept = [*earlier[-(_KEPT - 1) :], path]
            v1.train.update_checkpoint_state(str(self.folder), path, kept)
            for each in earlier[: -(_KEPT - 1)]:
                v1.train.remove_checkpoint(each)
        except (tf.errors.OpError, OSError, ValueError) as error:
            raise ClusterError(
                f"--logdir {self.folder}: the checkpoint of step {int(values['global_step']):,} could not be written: "
                f"{_first_line(error)}",
                hint=f"The training was at w = {float(values['w'])!r}, b = {float(values['b'])!r}.",
            ) from error

    def add_summary(self, step: int, values: Mapping[str, float]) -> None:
        """Add values at a step, unless values of the same or a later step were added before."""
        if self.folder is None or step <= self._last_step:
            return
        if self._writer is None:
            with tf.Graph().as_default():  # FileWriter cannot be created in eager mode
                # The writer names its file by the time in seconds, and truncates an existing file. Without the random
                # suffix it could truncate the file of a run that ended within the same second.
                suffix = f".{secrets.token_hex(4)}"
                self._writer = v1.summary.FileWriter(str(self.folder), filename_suffix=suffix)
        self._last_step = step
        entries = [v1.Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._writer.add_summary(v1.Summary(value=entries), step)


def _first_line(error: Exception) -> str:
    return str(getattr(error, "message", error)).strip().partition("\n")[0]


def _usage_error(message: str) -> ClusterError:
    return usage_error(message, "Give another --logdir, or remove what is in this one.")
