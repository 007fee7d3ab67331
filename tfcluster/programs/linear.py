"""Fit a line by distributed training: parallel workers, with the parameters on parameter servers.

The graphs use the building blocks of TensorFlow 1 training: replica_device_setter, the optimizers with their slots and
the global step. They do not use SyncReplicasOptimizer. Its client queues tokens once per step, so the loop would leave
the worker after each step; it adds gradients in the order in which they arrive, so rounding differs from run to run;
and it waits forever for a worker that has exited. MonitoredTrainingSession does not notice a server that hangs.

The steps are shards of `map_shards`. Unlike other shards, they change shared variables: after the loss of a parameter
server, the steps since the restored snapshot are done again.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import tfcluster
from tfcluster.core.devices import Device
from tfcluster.core.text import pluralize, summarize_error
from tfcluster.core.topology import PS_JOB, short_task_name
from tfcluster.errors import ClusterError, usage_error
from tfcluster.os.files import write_atomically
from tfcluster.programs import settings
from tfcluster.programs.context import current_run
from tfcluster.programs.csv_rows import find_numbers, parse_number, read_rows
from tfcluster.programs.shards import DeviceLostError, map_shards

if TYPE_CHECKING:
    import click
    import numpy as np
    import tensorflow as tf
    from rich.text import Text

    from tfcluster.programs.sessions import ServerSession

#: Values of variables, and results of a training's graphs, by their names.
Values = dict[str, Any]


class Block(NamedTuple):
    """Steps that a worker has done on devices in one call, with the results of its loop."""

    worker: str
    steps: int
    results: Values
    devices: list[str]


#: Jobs whose first task evaluates the parameters separately from the training.
EVALUATOR_JOBS = ("evaluator", "scorer")
#: Default learning rate of each optimizer, suited to points in [-1, 1].
LEARNING_RATES = {"adagrad": 0.8, "sgd": 0.1, "momentum": 0.05, "adam": 0.1}

_STEPS = 1000  # the default of --steps
_FIRST_STEPS = 10  # are done one after another; Adagrad is close after ten
_SHARD_EXAMPLES = 1 << 20  # of those steps that are always done in one call
_POINTS_MAX = 50_000_000  # constants of 16 bytes: a graph is one protobuf message of at most 2 GiB
_DATA_HINT = "Give --data a CSV file with the columns x and y, or leave it out."

_CALL_TIMEOUT_MS = 10_000  # a block of steps takes 400 ms
_RECOVERY_SECONDS = 15.0  # of a lost task: an agent restarts a hanging one after 12 s
_RETRY_SECONDS = 0.1
_SNAPSHOT_SECONDS = 1.0  # the loss of a parameter server costs the steps since the last snapshot
_WORKERS_LOST_SECONDS = 30.0  # all of them; then the training fails
_EVALUATION_SECONDS = 0.5
_SCORES_MIN = 1000  # with twice as many every second one is dropped, so that a run of days keeps few
_EVALUATOR_JOIN_SECONDS = 10.0  # of the last score; a thread that is blocked by a hanging server ends with the driver
_CANCELLED_READ_SECONDS = 0.5  # with the next two, less than DRIVER_TERMINATE_SECONDS: read the variables for a last
_CANCELLED_JOIN_SECONDS = 1.0  # checkpoint, wait for the evaluator,
_CANCELLED_CLOSE_SECONDS = 0.5  # and close the sessions


def run(
    data: str,
    steps: int,
    epochs: int | None,
    batch: int,
    optimizer: str,
    lr: float | None,
    sync: bool,
    logdir: str | None,
    checkpoint_every: float,
    seed: int | None,
) -> None:
    """Fit the line; the arguments are the values of the options, which their help describes.

    `data` is the user's name for the uploaded file, if any; `epochs` replaces `steps`. Without `lr`, the optimizer's
    default applies; without `seed`, below 2^63, that in `logdir`, or a random one. The result is that of `fit`.
    """
    from tfcluster.programs.sessions import require_tasks

    context = current_run()
    servers, replicas, evaluator = assign_roles(context.addresses, context.head_address, context.devices)
    require_tasks(servers)
    with contextlib.closing(LogFolder(logdir, checkpoint_every)) as log:
        if seed is None:  # by default that of the training that is continued, which has the same data
            seed = secrets.randbits(32) if log.seed is None else log.seed
        elif log.seed not in (None, seed):
            tfcluster.note(f"the checkpoint is of a training with --seed {log.seed}, which had other data")
        log.seed = seed
        points = make_points(seed) if context.upload_path is None else read_csv(context.upload_path, data)
        rate = LEARNING_RATES[optimizer] if lr is None else lr
        config = Config(servers, replicas, evaluator, points, min(batch, len(points)), seed, optimizer, rate)
        check_sizes(config, data, sync)
        if epochs is not None:
            steps = -(-epochs * len(points) // config.batch)
        tfcluster.result(fit(config, steps, sync, log))


def assign_roles(
    addresses: Mapping[str, Sequence[str]], head_address: str, devices: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...], str | None]:
    """Return the devices that hold the variables, those that train, and the one that evaluates, as Config has them.

    The parameter servers hold the variables; without parameter servers the head task does, which is the first of its
    job. The devices to compute on train, except those of tasks with another role. If all of them belong to such tasks,
    all of them train and there is no evaluator.
    """
    servers = tuple(cpu_of(PS_JOB, index) for index in range(len(addresses.get(PS_JOB, ()))))
    if not servers:
        servers = (cpu_of(next(job for job, tasks in addresses.items() if head_address in tasks), 0),)
    replicas = tuple(device for device in devices if Device(device, "").job not in (PS_JOB, *EVALUATOR_JOBS))
    evaluator = next((cpu_of(job, 0) for job in EVALUATOR_JOBS if job in addresses), None)
    return servers, replicas or tuple(devices), evaluator if replicas else None


def cpu_of(job: str, index: int) -> str:
    """Return the full name of a task's first CPU device."""
    return f"/job:{job}/replica:0/task:{index}/device:CPU:0"


def short_name(device: str) -> str:
    """Return the short name of a device's task, such as `worker:1`."""
    return short_task_name(Device(device, "").task)


def name_workers(replicas: Sequence[str], sync: bool) -> dict[str, list[str]]:
    """Return the devices of each worker by its name.

    Asynchronous (between-graph) training has a worker for each device, named by its task, and by the device too if the
    task has several. Synchronous training has a single worker, whose loop uses all devices.
    """
    if sync:
        return {"all workers": list(replicas)}
    tasks = [short_name(device) for device in replicas]
    return {
        task if tasks.count(task) == 1 else f"{task}/{device.rpartition('/device:')[2]}": [device]
        for task, device in zip(tasks, replicas, strict=True)
    }


@dataclass(frozen=True)
class Points:
    """Points in the plane."""

    x: np.ndarray[Any, np.dtype[np.float64]]  # [n]
    y: np.ndarray[Any, np.dtype[np.float64]]  # [n]

    def __len__(self) -> int:
        return len(self.x)

    def loss(self, w: float, b: float) -> float:
        """Return the mean squared error of the line w x + b."""
        return float(((w * self.x + b - self.y) ** 2).mean())

    def least_squares(self) -> dict[str, float] | None:
        """Return w and b of the line with the smallest loss, in closed form; None if several have it (equal x)."""
        x = self.x - self.x.mean()
        spread = float(x @ x)
        if spread == 0:
            return None
        w = float(x @ self.y) / spread
        return {"w": w, "b": float(self.y.mean() - w * self.x.mean())}


def make_points(seed: int) -> Points:
    """Return 101 points on [-1, 1] around y = 2x + 0.2, with normal noise of standard deviation 0.4."""
    import numpy as np

    x = np.linspace(-1.0, 1.0, 101)
    noise = np.random.default_rng(seed).standard_normal(101)
    return Points(x, 2.0 * x + 0.2 + 0.4 * noise)


def read_csv(path: Path, name: str) -> Points:
    """Return the points in the columns x and y of a CSV file, or in the first two if no header names x and y."""
    import numpy as np

    columns: tuple[int, int] | None = None
    values: list[tuple[float, float]] = []
    for position, row in read_rows(path, name, _DATA_HINT):
        if columns is None:
            if len(row) < 2:
                raise usage_error(f"{position}: expected the two columns x and y, found one column", _DATA_HINT)
            names = [cell.strip().lower() for cell in row]
            is_named = "x" in names and "y" in names
            columns = (names.index("x"), names.index("y")) if is_named else (0, 1)
            if is_named or not any(find_numbers(row)):
                continue
        values.append((_parse(position, row, columns[0]), _parse(position, row, columns[1])))
        if len(values) > _POINTS_MAX:
            raise usage_error(f"{position}: more than {_POINTS_MAX:,} points", _DATA_HINT)
    if not values:
        raise usage_error(f"{name}: no points in it", _DATA_HINT)
    x, y = np.array(values, dtype=np.float64).T
    return Points(np.ascontiguousarray(x), np.ascontiguousarray(y))


def _parse(position: str, row: Sequence[str], column: int) -> float:
    number = parse_number(row[column])
    if number is None or not math.isfinite(number):
        problem = f"{row[column].strip()!r} in column {column + 1} is not a finite number"
        raise usage_error(f"{position}: {problem}", _DATA_HINT)
    return number


@dataclass(frozen=True)
class Config:
    """The settings of a training: full names of its devices by their roles, its data, and its optimizer."""

    servers: tuple[str, ...]  # the CPU of each task that holds variables; these are the tasks 0, 1, … of one job
    replicas: tuple[str, ...]  # the devices that train
    evaluator: str | None  # the CPU of the task that evaluates
    points: Points
    batch: int  # examples per step, at most the number of points
    seed: int  # for the order of the examples, below 2^63
    optimizer: str  # a key of `LEARNING_RATES`
    rate: float

    @property
    def is_whole(self) -> bool:
        """Return whether each batch has all points, in their own order."""
        return self.batch == len(self.points)

    def split(self, devices: int) -> list[tuple[int, int]]:
        """Return the begin and end of each device's share of a batch; the sizes differ by at most one."""
        return list(pairwise(self.batch * number // devices for number in range(devices + 1)))

    def rows(self, step: Any, begin: int, end: int) -> Any:
        """Return the rows of the data at the positions `begin` … `end - 1` of a step's batch, as an int64 tensor.

        The batches go through all points in another random order in each epoch.
        """
        import tensorflow as tf

        rows = len(self.points)
        position = step * self.batch + begin + tf.range(end - begin, dtype=tf.int64)
        # A batch has fewer examples than the data has rows, so it ends in the epoch in which it begins or in the next.
        epoch = position[0] // rows
        seeds = [tf.stack([tf.constant(self.seed, tf.int64), each]) for each in (epoch, epoch + 1)]
        # RandomIndexShuffle needs three words, and uses only the lowest bits of each.
        keys = [tf.random.stateless_uniform([3], seed, None, None, tf.uint32) for seed in seeds]
        key = tf.gather(tf.stack(keys), position // rows - epoch)
        last = tf.constant(rows - 1, tf.int64)
        return tf.raw_ops.RandomIndexShuffle(index=position % rows, seed=key, max_index=last, rounds=4)


def check_sizes(config: Config, data: str, sync: bool) -> None:
    """Check that the squares of the points do not overflow a float64, and the size of a synchronous training's graph.

    Unless the batches are whole, this graph has all points once per device.
    """
    import numpy as np

    points, devices = config.points, len(config.replicas)
    with np.errstate(all="ignore"):
        sums = [float(points.x @ points.x), points.loss(0.0, 0.0), *(points.least_squares() or {}).values()]
    if not all(map(math.isfinite, sums)):
        raise usage_error(f"{data}: the numbers are so large that their squares are infinite", "Scale the data.")
    if sync and not config.is_whole and len(points) * devices > _POINTS_MAX:
        raise usage_error(
            f"{len(points):,} points for each of {devices} devices in step are more than {_POINTS_MAX:,} in all",
            "Leave out --sync, choose fewer --devices, or a --batch of all points, which are divided then.",
        )


def fit(config: Config, steps: int, sync: bool, log: LogFolder) -> dict[str, Any]:
    """Train from the latest checkpoint, if there is one; return the result.

    Of it, loss is that on all data, steps the global step, resumed_from the step of the checkpoint, least_squares w and
    b in closed form, and evaluations [step, loss] of the evaluator.
    """
    import numpy as np

    parameters = Parameters(config)
    parameters.snapshot = log.latest(list(parameters.values)) or {}
    resumed_from = int(parameters.snapshot["global_step"]) if parameters.snapshot else None
    if resumed_from is not None:
        tfcluster.note(f"resumed from the checkpoint of step {resumed_from:,} in {log.folder}")
    named = name_workers(config.replicas, sync)
    workers = {name: Worker(config, name, devices, parameters) for name, devices in named.items()}
    evaluators = [Evaluator(config, config.evaluator, parameters)] if config.evaluator else []
    training = Training(config, parameters, workers, evaluators, log)
    final = training.run(resumed_from or 0, steps)
    line = {"w": float(final["w"]), "b": float(final["b"])}
    with np.errstate(all="ignore"):
        line["loss"] = config.points.loss(**line)
    check_divergence(int(final["global_step"]), line)
    return {
        **line,
        "steps": int(final["global_step"]),
        "steps_per_s": round(training.steps_done / training.seconds, 1),
        "examples_per_s": round(training.steps_done * config.batch / training.seconds),
        "workers": len(config.replicas),
        "optimizer": config.optimizer,
        "lr": config.rate,
        "batch": config.batch,
        "sync": sync,
        "seed": config.seed,
        "resumed_from": resumed_from,
        "least_squares": config.points.least_squares(),
        "evaluations": evaluators[0].scores if evaluators else [],
    }


def check_divergence(step: int, values: Mapping[str, Any]) -> None:
    """Raise an error if w, b or another value after `step` steps is not finite."""
    if not are_finite(values):
        raise ClusterError(
            f"the training diverged: after step {step:,} w is {values['w']:g} and b is {values['b']:g}",
            hint="Lower the learning rate with --lr, choose --optimizer adagrad, or scale the data.",
        )


def are_finite(values: Mapping[str, Any]) -> bool:
    """Return whether no value is infinite or NaN."""
    return all(math.isfinite(value) for value in values.values())


@contextlib.contextmanager
def model_graph(config: Config, worker: str) -> Iterator[tuple[tf.Graph, Model]]:
    """Yield a graph with the model; it distributes variables over the servers and places all else on `worker`."""
    import tensorflow as tf

    from tfcluster.programs.sessions import run_graph

    job = Device(config.servers[0], "").job
    setter = tf.compat.v1.train.replica_device_setter(len(config.servers), f"/job:{job}/device:CPU:0", worker)
    with run_graph() as graph, tf.compat.v1.device(setter):
        yield graph, Model(config)


class Model:
    """The variables of the model and of its optimizer, created in the current graph.

    They are float64, which is more precise than measured coordinates are, so the result reflects the arithmetic and not
    its rounding.
    """

    def __init__(self, config: Config) -> None:
        import tensorflow as tf

        v1, zeros = tf.compat.v1, tf.zeros_initializer()
        self.w = v1.get_variable("w", [], tf.float64, zeros, use_resource=True)
        self.b = v1.get_variable("b", [], tf.float64, zeros, use_resource=True)
        self._reads_more = config.optimizer == "adam"
        with tf.device(self.w.device):
            self.step = v1.train.get_or_create_global_step()  # the number of steps done
            # Python numbers would become constants inside the loop, which would need a message for each iteration.
            rate = tf.constant(config.rate, tf.float64)
            self._one = tf.constant(1, tf.int64)
        self._optimizer = {
            "adagrad": v1.train.AdagradOptimizer,
            "sgd": v1.train.GradientDescentOptimizer,
            "momentum": partial(v1.train.MomentumOptimizer, momentum=0.9),
            "adam": v1.train.AdamOptimizer,
        }[config.optimizer](rate)
        # The optimizer creates its variables when it is first applied, and some are named after the current scope.
        # Applying it here, in the root scope, gives them the same names in every run and every graph, with or without
        # a loop. The operations that this call creates, which apply zero gradients, are never run.
        with self.w.graph.name_scope(None):
            self.apply([tf.zeros([2], tf.float64)])

    def apply(self, gradients: Sequence[Any]) -> Any:
        """Add a training step: apply the sum of the gradients, each a float64 [2] tensor for w and b.

        Return the operation that increments the global step once the gradients are applied.
        """
        import tensorflow as tf

        sums = []
        for index, variable in enumerate((self.w, self.b)):
            with tf.device(variable.device):
                sums.append((tf.unstack(tf.add_n(gradients), num=2)[index], variable))
        # Adam also reads its powers of beta, which it must not do before the previous step has written them.
        waits = [value for value, _ in sums] if self._reads_more else []
        with tf.control_dependencies(waits):
            applied = self._optimizer.apply_gradients(sums)
        with tf.control_dependencies([applied]), tf.device(self.step.device):
            return self.step.assign_add(self._one, read_value=False)

    def read(self) -> list[Any]:
        """Return w, the global step and b for `unpack`; values on one device are one tensor, and thus one message."""
        import tensorflow as tf

        with tf.device(self.w.device):
            values = [self.w.read_value(), tf.cast(self.step.read_value(), tf.float64)]
        with tf.device(self.b.device):
            b = self.b.read_value()
        is_packed = self.b.device == self.w.device
        with tf.device(self.w.device):
            return [tf.stack([*values, b])] if is_packed else [tf.stack(values), b]


def unpack(values: Sequence[Any]) -> list[Any]:
    """Return w, the global step and b from the values that `Model.read` returns."""
    import tensorflow as tf

    packed, *others = values
    return [*tf.unstack(packed, num=3 - len(others)), *others]


def batch_share(config: Config, device: str, begin: int, end: int) -> Callable[[Any, Any, Any], tuple[Any, Any]]:
    """Return a function of a step, w and b that computes on a device the positions `begin` … `end - 1` of the batch.

    It returns this share's part of the loss, and of its gradient: float64 [2], for w and b.
    """
    import tensorflow as tf

    constants = slice(begin, end) if config.is_whole else slice(None)
    with tf.device(device):
        all_x, all_y = tf.constant(config.points.x[constants]), tf.constant(config.points.y[constants])

    def differentiate(step: Any, w: Any, b: Any) -> tuple[Any, Any]:
        with tf.device(device):
            x, y = all_x, all_y
            if not config.is_whole:
                task = tf.DeviceSpec.from_string(device)
                with tf.device(cpu_of(task.job, task.task)):  # RandomIndexShuffle has no GPU kernel
                    rows = config.rows(step, begin, end)
                x, y = tf.gather(x, rows), tf.gather(y, rows)
            error = w * x + b - y
            slope, intercept = tf.reduce_sum(2 * error * x), tf.reduce_sum(2 * error)
            return tf.reduce_sum(error * error) / config.batch, tf.stack([slope, intercept]) / config.batch

    return differentiate


def training_loop(config: Config, devices: Sequence[str]) -> tuple[Any, Any, Values]:
    """Build a graph that does any number of steps per call: a while loop on the worker, with the servers' variables.

    With one device the graph is a replica of between-graph training and runs asynchronously to the other replicas. With
    several devices training is synchronous: each device computes its share of a batch, and the sum of the gradients,
    always added in the same order, is applied once. The loop runs on the first device.

    Return placeholders for the first step and the number of steps, and the results: step (the global step, counting the
    steps of all workers), loss (of the last step's batch), and w and b after the last step.
    """
    import tensorflow as tf

    v1 = tf.compat.v1
    # With control flow v2 loops are functions, which the servers lower to operations; every iteration then sends one
    # more message to each device and waits for it. This process is that of the run, so the setting affects no others.
    v1.disable_control_flow_v2()
    with model_graph(config, devices[0]) as (_, model):
        first, count = v1.placeholder(tf.int64, []), v1.placeholder(tf.int64, [])
        shares = [
            batch_share(config, device, begin, end)
            for device, (begin, end) in zip(devices, config.split(len(devices)), strict=True)
            if end > begin
        ]

        def train(step: Any, _: Any, *values: Any) -> list[Any]:
            w, _, b = unpack(values)
            losses, gradients = zip(*(differentiate(step, w, b) for differentiate in shares), strict=True)
            following, loss = step + 1, tf.add_n(losses)
            with tf.control_dependencies([model.apply(gradients)]):
                # Read on the servers, right after the update. A read that starts on the worker would cost one more
                # network hop.
                return [following, loss, *model.read()]

        start, end = [first, tf.constant(0.0, tf.float64), *model.read()], first + count
        _, loss, *values = v1.while_loop(lambda step, *_: step < end, train, start)
        w, global_step, b = unpack(values)
        return first, count, {"step": global_step, "loss": loss, "w": w, "b": b}


class Parameters:
    """The variables on the servers: reads all of them, and restores those of a lost server. Thread-safe.

    Its session uses the servers only, so the loss of a worker does not affect it.
    """

    def __init__(self, config: Config) -> None:
        import tensorflow as tf

        # Every variable's value as last read; before that, of the checkpoint to continue from, or nothing.
        self.snapshot: Values = {}
        self.initialized = threading.Event()  # set when the variables have values
        self._servers = config.servers
        self._lock = threading.Lock()
        self._read_at: float | None = None  # in monotonic seconds
        v1 = tf.compat.v1
        with model_graph(config, config.servers[0]) as (graph, _):
            variables = {variable.op.name: variable for variable in v1.global_variables()}
            self.devices = {name: each.device for name, each in variables.items()}
            self.values = {name: each.read_value() for name, each in variables.items()}
            has_value = {name: v1.is_variable_initialized(each) for name, each in variables.items()}
            self.uninitialized = {name: tf.logical_not(each) for name, each in has_value.items()}
            self.initialize = v1.global_variables_initializer()
            self.inputs = {name: v1.placeholder(each.dtype, []) for name, each in variables.items()}
            self.assign = tf.group(*(each.assign(self.inputs[name]) for name, each in variables.items()))
        self.session = session_on(config, graph)

    def read(self) -> Values:
        """Return every variable's value. If one has none, set all of them first, to the snapshot if there is one.

        Raises RolledBackError if a server was lost, and the variables have been restored from the snapshot;
        ClusterError if a server is still down after `_RECOVERY_SECONDS`.
        """
        deadline: float | None = None
        with self._lock:
            while True:
                try:
                    # Both are retried together: a server that is lost in between is restarted without variables, and
                    # must be restored before it is read.
                    self._set_lost_variables()
                    self.snapshot = call(self.session, self.values)
                    self._read_at = time.monotonic()
                    self.initialized.set()
                    return self.snapshot
                except lost_errors() as error:
                    deadline = deadline or time.monotonic() + _RECOVERY_SECONDS
                    if time.monotonic() >= deadline:
                        raise self._timeout_error() from error
                    time.sleep(_RETRY_SECONDS)

    def _set_lost_variables(self) -> None:
        lost = [name for name, is_lost in call(self.session, self.uninitialized).items() if is_lost]
        if not lost:
            return
        if self.snapshot:
            call(self.session, self.assign, {self.inputs[name]: value for name, value in self.snapshot.items()})
        else:
            call(self.session, self.initialize)
        if self._read_at is not None:  # they had values before
            step, age = int(self.snapshot["global_step"]), time.monotonic() - self._read_at
            servers = " and ".join(dict.fromkeys(short_name(self.devices[name]) for name in lost))
            tfcluster.note(
                f"{servers} lost the variables; the training resumed from step {step:,}, {age:.1f} s earlier"
            )
            raise RolledBackError(step)

    def _timeout_error(self) -> ClusterError:
        silent = [server for server in self._servers if not answers_soon(server)] or self._servers[:1]
        names = " and ".join(map(short_name, silent))
        return ClusterError(
            f"{names} with the variables did not recover within {_RECOVERY_SECONDS:.0f} s",
            hint="`tfcluster status` shows the tasks, `tfcluster events` what happened. With --logdir the next run "
            "resumes from the last checkpoint.",
        )


class RolledBackError(Exception):
    """Raised when the variables were restored from the snapshot of a step."""

    def __init__(self, step: int) -> None:
        super().__init__(f"rolled back to step {step}")
        self.step = step


def session_on(config: Config, graph: tf.Graph, *devices: str) -> ServerSession:
    """Return a session on the tasks of some devices and on the parameter servers."""
    from tfcluster.programs.sessions import ServerSession

    return ServerSession(graph, [*devices, *config.servers], timeout_ms=_CALL_TIMEOUT_MS)


def call(session: ServerSession, *arguments: Any) -> Any:
    """Call the `run` of a session; `lost_errors()` are raised if a server is lost. The next call connects again."""
    connected = session.open()
    try:
        return session.call(lambda: connected.run(*arguments))
    except lost_errors():
        session.forget(connected)
        raise


@cache
def lost_errors() -> tuple[type[Exception], ...]:
    """Return the errors which mean that a server is down or was restarted, not that the graph or the data are wrong.

    A restarted server has no variables any more. gRPC reports a connection that ends in the middle of a message as an
    internal or an unknown error.
    """
    import tensorflow as tf

    from tfcluster.programs.sessions import SERVER_LOST

    errors = tf.errors
    return (
        *SERVER_LOST,
        errors.FailedPreconditionError,
        errors.NotFoundError,
        errors.InternalError,
        errors.UnknownError,
    )


def answers_soon(device: str) -> bool:
    """Return whether a device's task completes an empty step in a fourth of a call's timeout."""
    from tfcluster.programs.sessions import is_serving

    return is_serving(device, _CALL_TIMEOUT_MS // 4)


class Worker:
    """Trains on one device, or on several in synchronous training. The first one's task is the session's master."""

    def __init__(self, config: Config, name: str, devices: Sequence[str], parameters: Parameters) -> None:
        self.name = name
        self.devices = list(devices)  # those that are left
        self.lost: tuple[float, Exception] | None = None  # since when, in monotonic seconds, and the error
        self._config = config
        self._parameters = parameters
        self._deadline: float | None = None  # of the recovery, in monotonic seconds
        self._lock = threading.Lock()  # after a rollback a block may still be in progress when the next one begins
        self._build()

    def _build(self) -> None:
        self._first, self._count, self._results = training_loop(self._config, self.devices)
        self.session = session_on(self._config, self._first.graph, *self.devices)

    def prepare(self) -> dict[str, int]:
        """Have the servers prepare the loop by running zero steps; return its operations by device, if none is lost."""
        from tfcluster.programs.placements import run_placed

        self._parameters.read()  # so that the variables have values
        try:
            run, feed = partial(call, self.session), {self._first: 0, self._count: 0}
            _, placed = run_placed(self._first.graph, run, self._results, feed)
        except lost_errors() as error:
            self.lost = time.monotonic(), error
            return {}
        return Counter(placed.values())

    def train(self, first: int, count: int) -> Block:
        """Do the steps `first` … `first + count - 1`.

        Raises DeviceLostError if a server is lost; the next call connects again. Raises RolledBackError if the
        variables are those of an earlier step.
        """
        with self._lock:
            if self.lost is not None:
                self._prepare_recovery(self.lost[1])
            started_at = time.monotonic()
            try:
                results = call(self.session, self._results, {self._first: first, self._count: count})
            except lost_errors() as error:
                self.lost = self.lost or (time.monotonic(), error)
                problem = summarize_error(f"{type(error).__name__}: {error}")
                raise DeviceLostError(f"{self.name}: {problem}", worked=False) from error
            if self.lost is not None:
                since, kind = started_at - self.lost[0], type(self.lost[1]).__name__
                tfcluster.note(f"{self.name}: lost for {since:.1f} s ({kind}), then continued")
                self.lost = self._deadline = None
            return Block(self.name, count, results, self.devices)

    def _prepare_recovery(self, error: Exception) -> None:
        """Restore the variables if they are lost too; after a while, continue without devices that do not respond."""
        self._parameters.read()
        # The timeout starts when the parameter servers are up, because a worker cannot recover without them.
        self._deadline = self._deadline or time.monotonic() + _RECOVERY_SECONDS
        if len(self.devices) == 1 or time.monotonic() < self._deadline:
            return
        lost = [device for device in self.devices if not answers_soon(device)]
        if not 0 < len(lost) < len(self.devices):
            return
        self.devices = [device for device in self.devices if device not in lost]
        self._build()
        for device in lost:
            tfcluster.note(
                f"{short_name(device)}: lost ({type(error).__name__}) and not back within {_RECOVERY_SECONDS:.0f} s; "
                "the training continued without it"
            )


class Evaluator(threading.Thread):
    """A thread that computes the loss on all data twice a second, and once more when the training has ended."""

    def __init__(self, config: Config, device: str, parameters: Parameters) -> None:
        import tensorflow as tf

        super().__init__(daemon=True)
        self.scores: list[list[float]] = []  # [step, loss] of each evaluation, downsampled evenly above 2,000
        self.training_ended = threading.Event()
        self._device = device
        self._initialized = parameters.initialized
        with model_graph(config, device) as (graph, model):
            w, b = model.w.read_value(), model.b.read_value()
            loss = tf.reduce_mean((w * tf.constant(config.points.x) + b - tf.constant(config.points.y)) ** 2)
            self.results = {"step": model.step.read_value(), "loss": loss, "w": w, "b": b}
        self.session = session_on(config, graph, device)

    def run(self) -> None:
        """Evaluate until the training has ended. A lost task is retried at each evaluation."""
        import tensorflow as tf

        self._initialized.wait()
        while True:
            is_last = self.training_ended.is_set()
            problem = ""
            try:
                self._add_score(call(self.session, self.results))
            except (tf.errors.OpError, ConnectionError) as error:
                problem = type(error).__name__
            if is_last:
                break
            self.training_ended.wait(_EVALUATION_SECONDS)
        if problem:
            tfcluster.note(f"{short_name(self._device)} does not answer ({problem}): the last parameters have no score")

    def _add_score(self, results: Values) -> None:
        if not are_finite(results):
            return  # the training reports its divergence itself
        step, loss = int(results["step"]), float(results["loss"])
        if len(self.scores) >= 2 * _SCORES_MIN:
            del self.scores[::2]
        self.scores.append([step, loss])
        report({name: float(results[name]) for name in ("loss", "w", "b")}, step, short_name(self._device))
        current_run().stats_of(self._device)["scores"] = len(self.scores)


def report(values: Mapping[str, float], step: int, series: str) -> None:
    """Report the loss, w and b that a worker or the evaluator has found."""
    for name, value in values.items():
        tfcluster.metric(name, value, step, series=series)


@dataclass
class Training:
    """A training from its beginning, or from a checkpoint, to its end."""

    config: Config
    parameters: Parameters
    workers: Mapping[str, Worker]  # by their names
    evaluators: Sequence[Evaluator]  # one or none
    log: LogFolder
    steps_done: int = 0  # including steps that were repeated
    seconds: float = 0.0  # from when the workers were ready until the last of these was done
    _ready_at: float | None = None  # in monotonic seconds, as the next
    _read_at: float = field(default_factory=time.monotonic)

    def run(self, first: int, steps: int) -> Values:
        """Do the steps from `first` on; return the variables' last values.

        Checkpoints are written during the training, at its end, and when the run is cancelled. The sessions are closed
        in every case, because a server keeps the graph of a session that is not closed for as long as it lives.
        """
        from tfcluster.programs.sessions import close_all

        join_seconds, close_seconds = _CANCELLED_JOIN_SECONDS, _CANCELLED_CLOSE_SECONDS
        for evaluator in self.evaluators:
            evaluator.start()
        try:
            final = self._train(first, steps)
            join_seconds, close_seconds = _EVALUATOR_JOIN_SECONDS, settings.SESSION_CLOSE_SECONDS
        except BaseException as error:
            if self.log.folder is not None and not isinstance(error, Exception):
                self._write_last_checkpoint()  # so that a run that is cancelled can be resumed
            raise
        finally:
            self.parameters.initialized.set()  # so that the evaluator does not wait for them any more
            for evaluator in self.evaluators:
                evaluator.training_ended.set()
                evaluator.join(join_seconds)
            for worker in self.workers.values():
                if worker.lost is not None:
                    kind = type(worker.lost[1]).__name__
                    tfcluster.note(f"{worker.name}: lost ({kind}) and not back when the training ended")
            others = [worker.session for worker in self.workers.values()] + [each.session for each in self.evaluators]
            close_all([self.parameters.session, *others], close_seconds)
        self.log.write(final)
        return final

    def _train(self, first: int, steps: int) -> Values:
        done = 0
        while True:
            try:
                if self._ready_at is None:
                    self._prepare()
                for block in self._blocks(first, steps, done):
                    done += block.steps
                    self._report(block, done, steps)
                    if time.monotonic() - self._read_at >= _SNAPSHOT_SECONDS:
                        self.log.write_if_due(self._read())
                if done == steps:
                    return self._read()
            except RolledBackError as error:  # even after the last step
                done = min(steps, max(0, error.step - first))

    def _prepare(self) -> None:
        """Have all workers prepare at once, and start the clock when those that respond have done it."""
        import numpy as np

        workers = list(self.workers.values())
        operations = Counter[str]()
        prepare = lambda _, first, count: [worker.prepare() for worker in workers[first : first + count]]  # noqa: E731
        for part in map_shards(list(self.workers), len(workers), prepare):
            for counts in part.value:
                operations.update(counts)
        for device, count in operations.items():
            current_run().stats_of(device)["ops"] = count
        self._ready_at = time.monotonic()
        # The beginning of the curves, before the first step.
        line = {name: float(self.parameters.snapshot[name]) for name in ("w", "b")}
        step = int(self.parameters.snapshot["global_step"])
        with np.errstate(all="ignore"):  # those of a checkpoint may be large
            report({"loss": self.config.points.loss(**line), **line}, step, workers[0].name)

    def _blocks(self, first: int, steps: int, done: int) -> Iterator[Block]:
        """Do the steps after those that are done, and yield the blocks; if none are done, only some steps.

        The very first steps are done one after another, because gradients are largest at first, and the gradients of
        all workers, computed from the same values, would together overshoot the solution.
        """
        count = steps - done if done else min(steps, _FIRST_STEPS)
        shard = max(1, min(_FIRST_STEPS, _SHARD_EXAMPLES // self.config.batch))  # steps in it
        one_at_a_time = contextlib.nullcontext() if done else threading.Lock()

        def train(name: str, begin: int, size: int) -> Block:
            start, stop = shard * begin, min(shard * (begin + size), count)
            with one_at_a_time:
                return self.workers[name].train(first + done + start, stop - start)

        for part in map_shards(list(self.workers), -(-count // shard), train, lost_seconds=_WORKERS_LOST_SECONDS):
            yield part.value

    def _report(self, block: Block, done: int, steps: int) -> None:
        """Report a block of steps that a worker has done."""
        assert self._ready_at is not None
        results, devices = block.results, block.devices
        step, values = int(results["step"]), {name: float(results[name]) for name in ("loss", "w", "b")}
        check_divergence(step, values)
        self.steps_done += block.steps
        self.seconds = time.monotonic() - self._ready_at
        for device, (begin, end) in zip(devices, self.config.split(len(devices)), strict=True):
            stats = current_run().stats_of(device)
            stats["steps"] = stats.get("steps", 0) + block.steps
            stats["examples"] = stats.get("examples", 0) + block.steps * (end - begin)
        self.log.add_summary(step, values)
        tfcluster.progress(done, steps)
        rate = round(self.steps_done * self.config.batch / max(self.seconds, 1e-6))
        tfcluster.metric("examples_per_s", rate, step)
        report(values, step, block.worker)

    def _read(self) -> Values:
        values = self.parameters.read()
        self._read_at = time.monotonic()
        check_divergence(int(values["global_step"]), values)
        return values

    def _write_last_checkpoint(self) -> None:
        """Write a checkpoint of the current variables, or of the snapshot if the servers do not respond in time."""

        def read() -> None:
            with contextlib.suppress(Exception):
                self.parameters.read()

        reading = threading.Thread(target=read, daemon=True)  # which a server that hangs blocks
        reading.start()
        reading.join(_CANCELLED_READ_SECONDS)
        if self.parameters.snapshot and are_finite(self.parameters.snapshot):
            self.log.write(self.parameters.snapshot)


class LogFolder:
    """The user's folder of checkpoints, in the format of tf.train.Saver, and TensorBoard summaries; None for no folder.

    It is created if it does not exist. Checkpoints are written in a local session, of values that were read from the
    parameter servers. On the variables' own devices, each parameter server would write its part on its own host.
    """

    def __init__(self, folder: str | None, checkpoint_seconds: float = math.inf) -> None:
        self.folder = None if folder is None else Path(folder)
        self.seed: int | None = None  # that of the checkpoint, if it is known; to be set to that of this training
        self._checkpoint_seconds = checkpoint_seconds
        self._written_at = time.monotonic()
        self._writer: Any = None  # of summaries
        self._last_step = -1  # with a summary
        if self.folder is None:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder):
                pass
        except OSError as error:
            raise _folder_error(f"--logdir {folder}: cannot be written: {error.strerror}") from error
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            seed = json.loads((self.folder / "training.json").read_text())["seed"]
            self.seed = seed if isinstance(seed, int) and self._has_checkpoint() else None

    def _has_checkpoint(self) -> bool:
        return self.folder is not None and (self.folder / "checkpoint").exists()

    def close(self) -> None:
        """Close the file of summaries."""
        if self._writer is not None:
            self._writer.close()

    def latest(self, names: list[str]) -> Values | None:
        """Return the variables' values in the latest checkpoint, if any; an unsuitable checkpoint is a usage error."""
        import tensorflow as tf

        if not self._has_checkpoint():
            return None
        path = tf.train.latest_checkpoint(str(self.folder))
        if path is None:
            raise _folder_error(f"{self.folder}/checkpoint: names a checkpoint that does not exist")
        problem = "cannot be read as a checkpoint"
        try:
            reader = tf.train.load_checkpoint(path)
            shapes = reader.get_variable_to_shape_map()
            if others := sorted({name for name in names if shapes.get(name) != []} | (shapes.keys() - set(names))):
                model = "with another optimizer" if {"w", "b", "global_step"} <= shapes.keys() else "of another model"
                raise _folder_error(f"{path}: is a checkpoint {model}: {', '.join(others[:4])}")
            problem = "is damaged"
            return {name: reader.get_tensor(name) for name in names}
        except (tf.errors.OpError, ValueError, RuntimeError) as error:
            raise _folder_error(f"{path}: {problem}: {_first_line(error)}") from error

    def write_if_due(self, values: Values) -> None:
        """Write a checkpoint if the last one is old enough."""
        if time.monotonic() - self._written_at >= self._checkpoint_seconds:
            self.write(values)
            self._written_at = time.monotonic()

    def write(self, values: Values) -> None:
        """Write a checkpoint. Earlier checkpoints stay until it is complete; the latest five are kept."""
        import tensorflow as tf

        if self.folder is None:
            return
        v1, step = tf.compat.v1, int(values["global_step"])
        try:
            write_atomically(self.folder / "training.json", json.dumps({"seed": self.seed}).encode())
            with tf.Graph().as_default(), v1.Session() as session:
                saver = v1.train.Saver({name: tf.Variable(value) for name, value in values.items()})
                if earlier := tf.train.get_checkpoint_state(str(self.folder)):
                    saver.recover_last_checkpoints(earlier.all_model_checkpoint_paths)
                session.run(v1.global_variables_initializer())
                saver.save(session, str(self.folder / "model.ckpt"), step, write_meta_graph=False)
        except (tf.errors.OpError, OSError, ValueError) as error:
            raise ClusterError(
                f"--logdir {self.folder}: the checkpoint of step {step:,} could not be written: {_first_line(error)}",
                hint=f"The training was at w = {float(values['w'])!r}, b = {float(values['b'])!r}.",
            ) from error

    def add_summary(self, step: int, values: Mapping[str, float]) -> None:
        """Add values at a step, unless values of the same or a later step were added before."""
        import tensorflow as tf

        if self.folder is None or step <= self._last_step:
            return
        self._last_step = step
        v1 = tf.compat.v1
        if self._writer is None:
            with tf.Graph().as_default():  # FileWriter cannot be created in eager mode
                # The writer names its file by the time in seconds, and truncates an existing file. Without the random
                # suffix it could truncate the file of a run that ended within the same second.
                suffix = f".{secrets.token_hex(4)}"
                self._writer = v1.summary.FileWriter(str(self.folder), filename_suffix=suffix)
        entries = [v1.Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._writer.add_summary(v1.Summary(value=entries), step)


def _first_line(error: Exception) -> str:
    return str(getattr(error, "message", error)).strip().partition("\n")[0]


def _folder_error(message: str) -> ClusterError:
    return usage_error(message, "Give another --logdir, or remove what is in this one.")


def command() -> click.Command:
    """Return the command with the options of the program, whose values are the parameters of `run`."""
    import click

    from tfcluster.cli.options import FiniteFloat, InputFile, WholeNumber, seconds, seed_option

    @click.command(
        short_help="A line fitted by all workers at once, its parameters on the ps.",
        epilog="Example: tfcluster run linear --steps 1e5 --logdir /tmp/linear --seed 4",
    )
    @click.option(
        "--data",
        type=InputFile(),
        callback=lambda context, option, data: data or "",
        metavar="FILE.csv",
        help="Columns x and y to fit. Default: 101 points around y = 2x + 0.2, made from the seed.",
    )
    @click.option(
        "--steps",
        type=WholeNumber(1, 10**15),
        callback=_default_steps,
        show_default=f"{_STEPS}",
        help="Steps of all workers together.",
    )
    @click.option(
        "--epochs",
        type=WholeNumber(1, 10**9),
        is_eager=True,
        help="How often to go through the data, instead of --steps.",
    )
    @click.option(
        "--batch",
        type=WholeNumber(1, 10**7),
        default="128",
        show_default=True,
        help="Examples per step; all of the data if it has fewer.",
    )
    @click.option(
        "--optimizer",
        type=click.Choice([*LEARNING_RATES]),
        default="adagrad",
        show_default=True,
        help="Applies the gradients on the ps.",
    )
    @click.option(
        "--lr",
        type=FiniteFloat(0, min_open=True, max=1e6),
        help="Learning rate. Default: 0.8 for adagrad, 0.05 for momentum, 0.1 for the others.",
    )
    @click.option("--sync", is_flag=True, help="Workers share each step's batch and their gradients are averaged.")
    @click.option(
        "--logdir",
        type=click.Path(),
        callback=_absolute,
        metavar="FOLDER",
        help="Folder on the head task's host for checkpoints, from which the next run resumes (with their seed), and "
        "for TensorBoard summaries.",
    )
    @click.option(
        "--checkpoint-every", type=seconds(0.1), default=30.0, show_default=True, help="Seconds between checkpoints."
    )
    @seed_option
    def main(
        data: str,
        steps: int,
        epochs: int | None,
        batch: int,
        optimizer: str,
        lr: float | None,
        sync: bool,
        logdir: str | None,
        checkpoint_every: float,
        seed: int | None,
    ) -> None:
        """Fit y = w x + b by gradient descent: w and b are on the parameter servers, every worker trains.

        Workers train asynchronously, each at its own speed, unless --sync is given. If a worker is lost, its steps in
        progress are lost; if a parameter server is lost, the steps since the last snapshot (one second) or checkpoint
        are lost.
        """
        run(data, steps, epochs, batch, optimizer, lr, sync, logdir, checkpoint_every, seed)

    return main


def _default_steps(context: click.Context, option: click.Parameter, steps: int | None) -> int:
    import click

    if steps is not None and context.params.get("epochs") is not None:
        raise click.UsageError("--steps and --epochs both set the length of the training: give only one")
    return steps or _STEPS


def _absolute(context: click.Context, option: click.Parameter, folder: str | None) -> str | None:
    """Make a path absolute, as the run has another working directory."""
    return None if folder is None else str(Path(os.path.expanduser(folder)).absolute())


def summary(result: dict[str, Any], seconds: float) -> list[Text]:
    """Format the result: the fitted line, its loss, and the parameters of the training."""
    from tfcluster.ui.console import Text
    from tfcluster.ui.format import format_duration, format_rate

    line = Text.assemble(
        ("y = ", "bold"), (_equation(result), "bold green"), f", mean squared error {result['loss']:.4g}"
    )
    lines = [line]
    if result["least_squares"] is not None:
        lines.append(Text(f"least squares in closed form: y = {_equation(result['least_squares'])}"))
    if result["evaluations"]:
        step, loss = result["evaluations"][-1]
        lines.append(Text(f"scored {len(result['evaluations']):,} times, last at step {step:,}: {loss:.4g}"))
    how = "in step" if result["sync"] else "asynchronously"
    details = (
        f"{result['steps']:,} steps, {format_rate(result['examples_per_s'], 'examples')}, {result['optimizer']} "
        f"{result['lr']:g}, {pluralize(result['workers'], 'worker')} {how}, seed {result['seed']}, "
        f"{format_duration(seconds)}"
    )
    return [*lines, Text(details)]


def _equation(values: dict[str, float]) -> str:
    """Format the right side of the line's equation: 2.006x + 0.175."""
    sign = "-" if values["b"] < 0 else "+"
    return f"{values['w']:.4g}x {sign} {abs(values['b']):.4g}"


if __name__ == "__main__":
    command()()
