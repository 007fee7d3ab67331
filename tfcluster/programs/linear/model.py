"""The graphs of the model y = w x + b: its variables on the parameter servers, and many steps as one loop on workers.

Of classic TensorFlow's training it uses what a graph is made of: replica_device_setter, the optimizers with their
slots, the global step. SyncReplicasOptimizer is not used: a thread of the client queues its tokens once a step, which
would end the loop on the worker after each; it adds gradients in the order in which they arrive, so that rounding
differs from run to run; and it waits for ever for a worker that is gone. MonitoredTrainingSession is not used either:
its workers look only now and then whether the chief is done, and a server that is silent it does not notice.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import tensorflow as tf

from tfcluster.programs.linear.config import TrainingConfig
from tfcluster.programs.linear.roles import cpu_of, job_of
from tfcluster.programs.session import run_graph

v1 = tf.compat.v1

# Beyond what coordinates of measurements have; then the result is that of the arithmetic, not of its rounding.
_TYPE = tf.float64
_MOMENTUM = 0.9
_SHUFFLE_ROUNDS = 4
_loops = threading.Lock()


class Variables:
    """The model's variables and its optimizer's, made in the current graph.

    Attributes:
        w: The slope.
        b: The intercept.
        step: The global step: how many have been done.
    """

    def __init__(self, plan: TrainingConfig) -> None:
        zeros = tf.zeros_initializer()
        self.w = v1.get_variable("w", [], _TYPE, zeros, use_resource=True)
        self.b = v1.get_variable("b", [], _TYPE, zeros, use_resource=True)
        self._reads_more = plan.optimizer == "adam"
        with v1.device(self.w.device):
            self.step = v1.train.get_or_create_global_step()
            # Numbers would become constants within the loop, told of each iteration.
            rate = tf.constant(plan.rate, _TYPE)
            self._one = tf.constant(1, tf.int64)
        self._optimizer = {
            "adagrad": v1.train.AdagradOptimizer,
            "sgd": v1.train.GradientDescentOptimizer,
            "momentum": lambda rate: v1.train.MomentumOptimizer(rate, _MOMENTUM),
            "adam": v1.train.AdamOptimizer,
        }[plan.optimizer](rate)
        # It makes its variables when it is first applied, some with the name of the scope: the same ones in every run
        # and graph, within a loop or not, if that is here. What applies nothing is never run.
        with self.w.graph.name_scope(None):
            self.apply([tf.zeros([2], _TYPE)])

    def apply(self, gradients: Sequence[Any]) -> Any:
        """A step: the optimizer applies the sum of gradients, float64 [2] for w and b, and it is counted."""
        sums = []
        for index, variable in enumerate((self.w, self.b)):
            with v1.device(variable.device):
                sums.append((tf.unstack(tf.add_n(gradients), num=2)[index], variable))
        # What else Adam reads, its powers of beta, it must not read before the last step has written it.
        waits = [value for value, _ in sums] if self._reads_more else []
        with tf.control_dependencies(waits):
            applied = self._optimizer.apply_gradients(sums)
        with tf.control_dependencies([applied]), v1.device(self.step.device):
            return self.step.assign_add(self._one, read_value=False)

    def read(self) -> list[Any]:
        """w, the global step and b as `unpacked` takes them: what is in one place is packed, so as to travel as one."""
        with v1.device(self.w.device):
            here = [self.w.read_value(), tf.cast(self.step.read_value(), _TYPE)]
        with v1.device(self.b.device):
            there = [self.b.read_value()]
        if self.b.device == self.w.device:
            here, there = here + there, []
        with v1.device(self.w.device):
            return [tf.stack(here), *there]


def unpacked(values: Sequence[Any]) -> list[Any]:
    """w, the global step and b from what `Variables.read` gives."""
    packed, *there = values
    return [*tf.unstack(packed, num=3 - len(there)), *there]


@contextlib.contextmanager
def model_graph(plan: TrainingConfig, worker: str) -> Iterator[tf.Graph]:
    """A graph of the run whose variables are spread over the servers in turn; everything else is on `worker`."""
    job = job_of(plan.servers[0])
    setter = v1.train.replica_device_setter(
        ps_tasks=len(plan.servers), ps_device=f"/job:{job}/device:CPU:0", worker_device=worker
    )
    with run_graph(plan.context) as graph, v1.device(setter):
        yield graph


class StateGraph:
    """All variables: made, read, and set.

    Attributes:
        graph: The graph; everything in it is on the servers.
        initialise: Gives every variable its first value.
        values: Every variable's value, by name.
        lost: For every variable, by name, whether it has no value.
        homes: Where each variable is, by name.
    """

    def __init__(self, plan: TrainingConfig) -> None:
        with model_graph(plan, plan.servers[0]) as self.graph:
            Variables(plan)
            every = v1.global_variables()
            self.initialise = v1.global_variables_initializer()
            self.values = {variable.op.name: variable.read_value() for variable in every}
            self.lost = {each.op.name: tf.logical_not(v1.is_variable_initialized(each)) for each in every}
            self.homes = {variable.op.name: variable.device for variable in every}
            self._inputs = {variable.op.name: v1.placeholder(variable.dtype, []) for variable in every}
            self._assign = tf.group(*(variable.assign(self._inputs[variable.op.name]) for variable in every))

    def set(self, session: Any, values: dict[str, Any]) -> None:
        """Give every variable a value."""
        session.run(self._assign, {self._inputs[name]: value for name, value in values.items()})


class TrainingGraph:
    """Any number of steps in one call: a loop on the worker that reads from and applies to the servers' variables.

    With one device this is a replica of between-graph training, asynchronous with the others. With several it
    trains in step: each takes its share of a batch, and the sum of their gradients, added in the same order each
    time, is applied once.

    Attributes:
        graph: The graph.
        first: Takes the number of the first step.
        count: Takes how many steps to do.
        results: step (all that have been done by anybody), loss (of the last step's batch), w and b after it.
    """

    def __init__(self, plan: TrainingConfig, devices: Sequence[str]) -> None:
        with model_graph(plan, devices[0]) as self.graph:
            variables = Variables(plan)
            self.first, self.count = v1.placeholder(tf.int64, []), v1.placeholder(tf.int64, [])
            shares = [
                _Share(plan, device, begin, end)
                for device, (begin, end) in zip(devices, shares_of(plan.batch, len(devices)), strict=True)
                if end > begin
            ]

            def train(step: Any, _: Any, *values: Any) -> list[Any]:
                w, _, b = unpacked(values)
                losses, gradients = zip(*(share.differentiate(step, w, b) for share in shares), strict=True)
                following, loss = step + 1, tf.add_n(losses)
                with tf.control_dependencies([variables.apply(gradients)]):
                    # Read where they have just been applied: a read that begins on the worker is one more way.
                    return [following, loss, *variables.read()]

            end = self.first + self.count
            start = [self.first, tf.constant(0.0, _TYPE), *variables.read()]
            with _loops_of_operations():
                _, loss, *values = v1.while_loop(lambda step, *_: step < end, train, start)
            w, done, b = unpacked(values)
            self.results = {"step": done, "loss": loss, "w": w, "b": b}


class ScoringGraph:
    """The loss on all data, computed on the evaluator from the servers' variables.

    Attributes:
        graph: The graph.
        results: step, loss, w and b.
    """

    def __init__(self, plan: TrainingConfig, device: str) -> None:
        with model_graph(plan, device) as self.graph:
            variables = Variables(plan)
            w, b = variables.w.read_value(), variables.b.read_value()
            loss = tf.reduce_mean((w * tf.constant(plan.points.x) + b - tf.constant(plan.points.y)) ** 2)
            self.results = {"step": variables.step.read_value(), "loss": loss, "w": w, "b": b}


class _Share:
    """One device's part of each batch: its positions from `begin` up to `end`."""

    def __init__(self, plan: TrainingConfig, device: str, begin: int, end: int) -> None:
        self._plan = plan
        self._device = device
        self._begin, self._size = begin, end - begin
        self._whole = plan.batch == len(plan.points)
        part = slice(begin, end) if self._whole else slice(None)
        with v1.device(device):
            self._x, self._y = tf.constant(plan.points.x[part]), tf.constant(plan.points.y[part])

    def differentiate(self, step: Any, w: Any, b: Any) -> tuple[Any, Any]:
        """The part's share of the batch's loss, and of its derivatives to w and b: float64 [2]."""
        with v1.device(self._device):
            x, y = self._x, self._y
            if not self._whole:
                task = tf.DeviceSpec.from_string(self._device)
                with v1.device(cpu_of(task.job, task.task)):  # there is no such operation for GPUs
                    rows = rows_of(self._plan, step, self._begin, self._size)
                x, y = tf.gather(x, rows), tf.gather(y, rows)
            error = w * x + b - y
            slope, intercept = tf.reduce_sum(2 * error * x), tf.reduce_sum(2 * error)
            batch = self._plan.batch
            return tf.reduce_sum(error * error) / batch, tf.stack([slope, intercept]) / batch


def rows_of(plan: TrainingConfig, step: Any, begin: int, size: int) -> Any:
    """The rows of the data at the positions `begin` … `begin + size - 1` of a step's batch: int64 [size].

    Batches go through all rows, then again in another order.
    """
    rows = len(plan.points)
    place = step * plan.batch + begin + tf.range(size, dtype=tf.int64)
    # A batch has fewer examples than there are rows: it ends in the epoch in which it begins, or in the next.
    epoch = place[0] // rows
    key = tf.stack([_random_words(plan.seed, epoch), _random_words(plan.seed, epoch + 1)])
    return tf.raw_ops.RandomIndexShuffle(
        index=place % rows,
        seed=tf.gather(key, place // rows - epoch),
        max_index=tf.constant(rows - 1, tf.int64),
        rounds=_SHUFFLE_ROUNDS,
    )


def _random_words(seed: int, number: Any) -> Any:
    """Three random uint32, of which a shuffle uses but the lowest bits."""
    return tf.random.stateless_uniform([3], tf.stack([tf.constant(seed, tf.int64), number]), None, None, tf.uint32)


@contextlib.contextmanager
def _loops_of_operations() -> Iterator[None]:
    """Loops are made as operations at once, as TensorFlow 1 did.

    Made as functions, and into operations by the servers, every iteration sends one message more to each device
    and waits for it. The setting is the process's, so one graph is made at a time.
    """
    with _loops:
        functions = v1.control_flow_v2_enabled()
        v1.disable_control_flow_v2()
        try:
            yield
        finally:
            if functions:
                v1.enable_control_flow_v2()


def shares_of(batch: int, devices: int) -> list[tuple[int, int]]:
    """Where each device's share of a batch begins and ends; their sizes differ by one at most."""
    bounds = [batch * number // devices for number in range(devices + 1)]
    return list(pairwise(bounds))
