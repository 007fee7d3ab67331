"""Checkpoints and summaries in the user's folder, written where the driver is: on the head host."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfcluster.errors import ClusterError, ExitCode

v1 = tf.compat.v1

_PREFIX = "model.ckpt"
_STATE = "checkpoint"


class Checkpoints:
    """A folder of checkpoints, as tf.train.Saver keeps them.

    The saver's operations run in a session within the driver, on values read from the servers: on the variables'
    own devices each parameter server would write its part on its own host.

    Args:
        folder: The folder; made when missing.

    Raises:
        ClusterError: It cannot be made or written.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._saver: Any = None
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self._folder):
                pass
        except OSError as error:
            raise _refusal(f"--logdir {folder}: cannot be written: {error.strerror}") from error

    def latest(self, names: list[str]) -> dict[str, Any] | None:
        """The variables' values in the latest checkpoint; None when there is no checkpoint.

        Args:
            names: The variables.

        Raises:
            ClusterError: It cannot be read, or has other variables.
        """
        state_file = self._folder / _STATE
        if not state_file.exists():
            return None
        path = tf.train.latest_checkpoint(str(self._folder))
        if path is None:
            raise _refusal(f"{state_file}: names no checkpoint that is there")
        try:
            reader = tf.train.load_checkpoint(path)
            shapes = reader.get_variable_to_shape_map()
        except (tf.errors.OpError, ValueError, RuntimeError) as error:
            raise _refusal(f"{path}: cannot be read as a checkpoint: {_first_line(error)}") from error
        if strange := sorted({name for name in names if shapes.get(name) != []} | (shapes.keys() - set(names))):
            model = "with another optimizer" if {"w", "b", "global_step"} <= shapes.keys() else "of another model"
            raise _refusal(f"{path}: is a checkpoint {model}: {', '.join(strange[:4])}")
        try:
            return {name: reader.get_tensor(name) for name in names}
        except (tf.errors.OpError, ValueError, RuntimeError) as error:
            raise _refusal(f"{path}: is damaged: {_first_line(error)}") from error

    def write(self, values: Mapping[str, Any]) -> None:
        """Write a checkpoint; the earlier ones stay until it is complete.

        Raises:
            ClusterError: It cannot be written.
        """
        try:
            if self._saver is None:
                self._saver = _Saver(self._folder, values)
            self._saver.save(values)
        except (tf.errors.OpError, OSError, ValueError) as error:
            raise ClusterError(
                f"--logdir {self._folder}: the checkpoint of step {int(values['global_step']):,} could not be written: "
                f"{_first_line(error)}",
                hint=f"The training was at w = {float(values['w'])!r}, b = {float(values['b'])!r}.",
            ) from error


class _Saver:
    """A graph with the variables and a session of it within this process."""

    def __init__(self, folder: Path, values: Mapping[str, Any]) -> None:
        self._prefix = str(folder / _PREFIX)
        with tf.Graph().as_default() as graph:
            variables = {name: v1.Variable(value, name=name, use_resource=True) for name, value in values.items()}
            self._inputs = {name: v1.placeholder(variable.dtype, []) for name, variable in variables.items()}
            self._assign = tf.group(*(variable.assign(self._inputs[name]) for name, variable in variables.items()))
            self._saver = v1.train.Saver(list(variables.values()))
        earlier = tf.train.get_checkpoint_state(str(folder))
        if earlier is not None:  # so that they too are removed when there are more than the saver keeps
            self._saver.recover_last_checkpoints(earlier.all_model_checkpoint_paths)
        self._session = v1.Session(graph=graph)

    def save(self, values: Mapping[str, Any]) -> None:
        self._session.run(self._assign, {self._inputs[name]: value for name, value in values.items()})
        with self._session.graph.as_default():  # in eager mode the saver does not take a graph's variables
            self._saver.save(
                self._session, self._prefix, global_step=int(values["global_step"]), write_meta_graph=False
            )


class Summaries:
    """An event file of scalars, which TensorBoard shows."""

    def __init__(self, folder: str) -> None:
        with tf.Graph().as_default():  # a FileWriter refuses to be made in eager mode
            # The writer names its file by the second, and empties one that is there: that of a run just before.
            self._writer = v1.summary.FileWriter(folder, filename_suffix=f".{secrets.token_hex(4)}")
        self._last = -1

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Add values at a step; one that comes after those of a later step is left out."""
        if step <= self._last:
            return
        self._last = step
        entries = [v1.Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._writer.add_summary(v1.Summary(value=entries), step)

    def close(self) -> None:
        """Write what is not yet written."""
        self._writer.close()


def _first_line(error: Exception) -> str:
    return str(getattr(error, "message", error)).strip().partition("\n")[0]


def _refusal(message: str) -> ClusterError:
    return ClusterError(
        message,
        hint="Give another --logdir, or remove what is in this one.",
        exit_code=ExitCode.USAGE,
    )
