"""The model y = w x + b: where its parts run, and its graphs, with many steps as one while loop on a worker.

The graphs use the building blocks of TensorFlow 1 training: replica_device_setter, the optimizers with their slots and
the global step. They do not use SyncReplicasOptimizer, for three reasons. A thread of its client queues tokens once per
step, which would end the loop on the worker after each step. It adds gradients in the order in which they arrive, so
rounding differs from run to run. It waits forever for a worker that has exited. They do not use
MonitoredTrainingSession either: its workers check only now and then whether the chief is done, and it does not notice
a server that stops responding.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfcluster.core.topology import PS_JOB
from tfcluster.programs.api import Context
from tfcluster.programs.linear.dataset import Batches
from tfcluster.programs.sessions import run_graph, short_task

v1 = tf.compat.v1

#: Jobs whose first task evaluates the parameters separately from the training.
EVALUATOR_JOBS = ("evaluator", "scorer")
#: Default learning rate of each optimizer, suited to points in [-1, 1].
LEARNING_RATES = {"adagrad": 0.8, "sgd": 0.1, "momentum": 0.05, "adam": 0.1}

# float64 is more precise than measured coordinates are, so the result reflects the arithmetic and not its rounding.
_TYPE = tf.float64
_MOMENTUM = 0.9
_control_flow_lock = threading.Lock()


@dataclass(frozen=True)
class Roles:
    """The full names of a training's devices, by role."""

    servers: tuple[str, ...]  # the CPU of each task that holds variables; these are the tasks 0, 1, … of one job
    replicas: tuple[str, ...]  # the devices that train
    evaluator: str | None  # the CPU of the task that evaluates

    def replica_names(self) -> dict[str, str]:
        """Return a name for each replica's device: its task, and the device if the task has several replicas."""
        tasks = [short_task(device) for device in self.replicas]
        return {
            device: task if tasks.count(task) == 1 else f"{task}/{device.rpartition('/device:')[2]}"
            for device, task in zip(self.replicas, tasks, strict=True)
        }


def assign_roles(addresses: Mapping[str, Sequence[str]], head_address: str, devices: Sequence[str]) -> Roles:
    """Assign the roles.

    The parameter servers hold the variables; without parameter servers the head task does, which is the first of its
    job. The devices to compute on train, except those of tasks with another role. If all of them belong to such tasks,
    all of them train and there is no evaluator.
    """
    servers = tuple(cpu_of(PS_JOB, index) for index in range(len(addresses.get(PS_JOB, ()))))
    if not servers:
        servers = (cpu_of(next(job for job, tasks in addresses.items() if head_address in tasks), 0),)
    replicas = tuple(device for device in devices if _parse_job(device) not in (PS_JOB, *EVALUATOR_JOBS))
    evaluator = next((cpu_of(job, 0) for job in EVALUATOR_JOBS if job in addresses), None)
    return Roles(servers, replicas or tuple(devices), evaluator if replicas else None)


def cpu_of(job: str, index: int) -> str:
    """Return the full name of a task's first CPU device."""
    return f"/job:{job}/replica:0/task:{index}/device:CPU:0"


def _parse_job(device: str) -> str:
    return short_task(device).partition(":")[0]


@dataclass(frozen=True)
class TrainingConfig:
    """The settings of a training."""

    context: Context
    roles: Roles
    batches: Batches
    optimizer: str  # a key of `LEARNING_RATES`
    rate: float


class Variables:
    """The variables of the model and of its optimizer, created in the current graph."""

    def __init__(self, config: TrainingConfig) -> None:
        zeros = tf.zeros_initializer()
        self.w = v1.get_variable("w", [], _TYPE, zeros, use_resource=True)
        self.b = v1.get_variable("b", [], _TYPE, zeros, use_resource=True)
        self._reads_more = config.optimizer == "adam"
        with v1.device(self.w.device):
            self.step = v1.train.get_or_create_global_step()  # the number of steps done
            # Python numbers would become constants inside the loop, which would need a message for each iteration.
            rate = tf.constant(config.rate, _TYPE)
            self._one = tf.constant(1, tf.int64)
        self._optimizer = {
            "adagrad": v1.train.AdagradOptimizer,
            "sgd": v1.train.GradientDescentOptimizer,
            "momentum": lambda rate: v1.train.MomentumOptimizer(rate, _MOMENTUM),
            "adam": v1.train.AdamOptimizer,
        }[config.optimizer](rate)
        # The optimizer creates its variables when it is first applied, and some are named after the current scope.
        # Applying it here, in the root scope, gives them the same names in every run and every graph, with or without
        # a loop. The operations that this call creates, which apply zero gradients, are never run.
        with self.w.graph.name_scope(None):
            self.apply([tf.zeros([2], _TYPE)])

    def apply(self, gradients: Sequence[Any]) -> Any:
        """Add a training step: apply the sum of the gradients, each a float64 [2] tensor for w and b.

        Return the operation that increments the global step once the gradients are applied.
        """
        sums = []
        for index, variable in enumerate((self.w, self.b)):
            with v1.device(variable.device):
                sums.append((tf.unstack(tf.add_n(gradients), num=2)[index], variable))
        # Adam also reads its powers of beta, which it must not do before the previous step has written them.
        waits = [value for value, _ in sums] if self._reads_more else []
        with tf.control_dependencies(waits):
            applied = self._optimizer.apply_gradients(sums)
        with tf.control_dependencies([applied]), v1.device(self.step.device):
            return self.step.assign_add(self._one, read_value=False)

    def read(self) -> list[Any]:
        """Return w, the global step and b for `unpack`; values on one device are one tensor, and thus one message."""
        with v1.device(self.w.device):
            values = [self.w.read_value(), tf.cast(self.step.read_value(), _TYPE)]
        with v1.device(self.b.device):
            b = self.b.read_value()
        is_packed = self.b.device == self.w.device
        with v1.device(self.w.device):
            return [tf.stack([*values, b])] if is_packed else [tf.stack(values), b]


def unpack(values: Sequence[Any]) -> list[Any]:
    """Return w, the global step and b from the values that `Variables.read` returns."""
    packed, *others = values
    return [*tf.unstack(packed, num=3 - len(others)), *others]


def batch_share(batches: Batches, device: str, begin: int, end: int) -> Callable[[Any, Any, Any], tuple[Any, Any]]:
    """Return a function of a step, w and b that computes on a device the positions `begin` … `end - 1` of the batch.

    It returns this share's part of the loss, and of its gradient: float64 [2], for w and b.
    """
    constants = slice(begin, end) if batches.is_whole else slice(None)
    with v1.device(device):
        all_x, all_y = tf.constant(batches.points.x[constants]), tf.constant(batches.points.y[constants])

    def differentiate(step: Any, w: Any, b: Any) -> tuple[Any, Any]:
        with v1.device(device):
            x, y = all_x, all_y
            if not batches.is_whole:
                task = tf.DeviceSpec.from_string(device)
                with v1.device(cpu_of(task.job, task.task)):  # RandomIndexShuffle has no GPU kernel
                    rows = batches.rows(step, begin, end)
                x, y = tf.gather(x, rows), tf.gather(y, rows)
            error = w * x + b - y
            slope, intercept = tf.reduce_sum(2 * error * x), tf.reduce_sum(2 * error)
            return tf.reduce_sum(error * error) / batches.size, tf.stack([slope, intercept]) / batches.size

    return differentiate


@contextlib.contextmanager
def model_graph(config: TrainingConfig, worker: str) -> Iterator[tf.Graph]:
    """Yield a graph that distributes variables round-robin over the servers and places all else on `worker`."""
    setter = v1.train.replica_device_setter(
        ps_tasks=len(config.roles.servers),
        ps_device=f"/job:{_parse_job(config.roles.servers[0])}/device:CPU:0",
        worker_device=worker,
    )
    with run_graph(config.context) as graph, v1.device(setter):
        yield graph


class StateGraph:
    """A graph that initializes, reads and sets all variables; all of its operations are on the servers."""

    def __init__(self, config: TrainingConfig) -> None:
        with model_graph(config, config.roles.servers[0]) as self.graph:
            Variables(config)
            variables = {variable.op.name: variable for variable in v1.global_variables()}
            self.initialize = v1.global_variables_initializer()
            # The value of each variable, whether it is uninitialized, its device and its new value, by name.
            self.values = {name: each.read_value() for name, each in variables.items()}
            self.uninitialized = {
                name: tf.logical_not(v1.is_variable_initialized(each)) for name, each in variables.items()
            }
            self.devices = {name: each.device for name, each in variables.items()}
            self.inputs = {name: v1.placeholder(each.dtype, []) for name, each in variables.items()}
            self.assign = tf.group(*(each.assign(self.inputs[name]) for name, each in variables.items()))


class TrainingGraph:
    """A graph that does any number of steps per call: a while loop on the worker that uses the servers' variables.

    With one device the graph is a replica of between-graph training and runs asynchronously to the other replicas. With
    several devices training is synchronous: each device computes its share of a batch, and the sum of the gradients,
    always added in the same order, is applied once. The loop runs on the first device.

    `first` and `count` are placeholders of the steps. `results` has step (the global step, counting the steps of all
    workers), loss (of the last step's batch), and w and b after the last step.
    """

    def __init__(self, config: TrainingConfig, devices: Sequence[str]) -> None:
        with model_graph(config, devices[0]) as self.graph:
            variables = Variables(config)
            self.first, self.count = v1.placeholder(tf.int64, []), v1.placeholder(tf.int64, [])
            shares = [
                batch_share(config.batches, device, begin, end)
                for device, (begin, end) in zip(devices, config.batches.split(len(devices)), strict=True)
                if end > begin
            ]

            def train(step: Any, _: Any, *values: Any) -> list[Any]:
                w, _, b = unpack(values)
                losses, gradients = zip(*(differentiate(step, w, b) for differentiate in shares), strict=True)
                following, loss = step + 1, tf.add_n(losses)
                with tf.control_dependencies([variables.apply(gradients)]):
                    # Read on the servers, right after the update. A read that starts on the worker would cost one
                    # more network hop.
                    return [following, loss, *variables.read()]

            end = self.first + self.count
            start = [self.first, tf.constant(0.0, _TYPE), *variables.read()]
            with _control_flow_v1():
                _, loss, *values = v1.while_loop(lambda step, *_: step < end, train, start)
            w, global_step, b = unpack(values)
            self.results = {"step": global_step, "loss": loss, "w": w, "b": b}


class EvaluationGraph:
    """A graph that computes the loss on all data on the evaluator, from the servers' variables."""

    def __init__(self, config: TrainingConfig, device: str) -> None:
        with model_graph(config, device) as self.graph:
            variables = Variables(config)
            w, b = variables.w.read_value(), variables.b.read_value()
            points = config.batches.points
            loss = tf.reduce_mean((w * tf.constant(points.x) + b - tf.constant(points.y)) ** 2)
            self.results = {"step": variables.step.read_value(), "loss": loss, "w": w, "b": b}


@contextlib.contextmanager
def _control_flow_v1() -> Iterator[None]:
    """Build while loops directly as operations (control flow v1) inside this context.

    With control flow v2 loops are functions, which the servers lower to operations; every iteration then sends one
    more message to each device and waits for it. The setting is global to the process, so a lock lets only one graph
    be built at a time.
    """
    with _control_flow_lock:
        is_v2_enabled = v1.control_flow_v2_enabled()
        v1.disable_control_flow_v2()
        try:
            yield
        finally:
            if is_v2_enabled:
                v1.enable_control_flow_v2()
