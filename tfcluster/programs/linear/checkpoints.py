"""Write and read checkpoints and TensorBoard summaries in the user's folder, on the driver's host."""

from __future__ import annotations

import json
import os
import secrets
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfcluster.errors import ClusterError, usage_error

v1 = tf.compat.v1

_TRAINING = "training.json"
_KEPT = 5  # checkpoints, as tf.train.Saver keeps


class Checkpoints:
    """A folder of checkpoints in the format of tf.train.Saver. It is created if it does not exist.

    The operations that write run in a local session of the driver, on values read from the parameter servers. If they
    ran on the variables' own devices, each parameter server would write its part on its own host.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self._folder):
                pass
        except OSError as error:
            raise _usage_error(f"--logdir {folder}: cannot be written: {error.strerror}") from error

    def seed(self) -> int | None:
        """Return the seed of the training that wrote the checkpoint; None if there is none, or its seed is unknown."""
        try:
            seed = json.loads((self._folder / _TRAINING).read_text())["seed"] if self._has_checkpoint() else None
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return seed if isinstance(seed, int) else None

    def record_seed(self, seed: int) -> None:
        """Record the seed of this training, for the next one that continues from its checkpoint."""
        temporary = self._folder / f"{_TRAINING}.{os.getpid()}"
        try:
            temporary.write_text(json.dumps({"seed": seed}) + "\n")
            temporary.replace(self._folder / _TRAINING)
        except OSError as error:
            raise _usage_error(f"--logdir {self._folder}: cannot be written: {error.strerror}") from error

    def latest(self, names: list[str]) -> dict[str, Any] | None:
        """Return the variables' values in the latest checkpoint, if any; an unsuitable checkpoint is a usage error."""
        if not self._has_checkpoint():
            return None
        path = tf.train.latest_checkpoint(str(self._folder))
        if path is None:
            raise _usage_error(f"{self._folder / 'checkpoint'}: names no checkpoint that is there")
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

    def write(self, values: Mapping[str, Any]) -> None:
        """Write a checkpoint. Earlier checkpoints stay until it is complete; the latest five are kept."""
        path = str(self._folder / f"model.ckpt-{int(values['global_step'])}")
        try:
            with tf.Graph().as_default(), v1.Session() as session:
                tensors = [tf.constant(value) for value in values.values()]
                whole = [""] * len(tensors)
                save = tf.raw_ops.SaveV2(
                    prefix=path, tensor_names=list(values), shape_and_slices=whole, tensors=tensors
                )
                session.run(save)
            state = tf.train.get_checkpoint_state(str(self._folder))
            earlier = [each for each in (state.all_model_checkpoint_paths if state else ()) if each != path]
            kept = [*earlier[-(_KEPT - 1) :], path]
            v1.train.update_checkpoint_state(str(self._folder), path, kept)
            for each in earlier[: -(_KEPT - 1)]:
                v1.train.remove_checkpoint(each)
        except (tf.errors.OpError, OSError, ValueError) as error:
            raise ClusterError(
                f"--logdir {self._folder}: the checkpoint of step {int(values['global_step']):,} could not be written: "
                f"{_first_line(error)}",
                hint=f"The training was at w = {float(values['w'])!r}, b = {float(values['b'])!r}.",
            ) from error

    def _has_checkpoint(self) -> bool:
        return (self._folder / "checkpoint").exists()


class Summaries:
    """A TensorBoard event file of scalars."""

    def __init__(self, folder: str) -> None:
        with tf.Graph().as_default():  # FileWriter cannot be created in eager mode
            # The writer names its file by the time in seconds, and truncates an existing file. Without the random
            # suffix it could truncate the file of a run that ended within the same second.
            self._writer = v1.summary.FileWriter(folder, filename_suffix=f".{secrets.token_hex(4)}")
        self._last_step = -1

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Add values at a step, unless values of the same or a later step were added before."""
        if step <= self._last_step:
            return
        self._last_step = step
        entries = [v1.Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._writer.add_summary(v1.Summary(value=entries), step)

    def close(self) -> None:
        """Flush buffered summaries and close the file."""
        self._writer.close()


def _first_line(error: Exception) -> str:
    return str(getattr(error, "message", error)).strip().partition("\n")[0]


def _usage_error(message: str) -> ClusterError:
    return usage_error(message, "Give another --logdir, or remove what is in this one.")
