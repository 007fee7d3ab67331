"""Graphs of the model y = w x + b: variables on the parameter servers, and many steps as one while loop on a worker.

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
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfcluster.programs.linear.batches import BatchShare, split_batch
from tfcluster.programs.linear.config import TrainingConfig
from tfcluster.programs.linear.roles import job_of
from tfcluster.programs.sessions import run_graph

v1 = tf.compat.v1

# float64 is more precise than measured coordinates are, so the result reflects the arithmetic and not its rounding.
_TYPE = tf.float64
_MOMENTUM = 0.9
_loops = threading.Lock()


class Variables:
    """The variables of the model and of its optimizer, created in the current graph.

    Args:
        plan: The settings of the training.

    Attributes:
        w: The slope.
        b: The intercept.
        step: The global step, that is the number of steps done.
    """

    def __init__(self, plan: TrainingConfig) -> None:
        zeros = tf.zeros_initializer()
        self.w = v1.get_variable("w", [], _TYPE, zeros, use_resource=True)
        self.b = v1.get_variable("b", [], _TYPE, zeros, use_resource=True)
        self._reads_more = plan.optimizer == "adam"
        with v1.device(self.w.device):
            self.step = v1.train.get_or_create_global_step()
            # Python numbers would become constants inside the loop, which would need a message for each iteration.
            rate = tf.constant(plan.rate, _TYPE)
            self._one = tf.constant(1, tf.int64)
        self._optimizer = {
            "adagrad": v1.train.AdagradOptimizer,
            "sgd": v1.train.GradientDescentOptimizer,
            "momentum": lambda rate: v1.train.MomentumOptimizer(rate, _MOMENTUM),
            "adam": v1.train.AdamOptimizer,
        }[plan.optimizer](rate)
        # The optimizer creates its variables when it is first applied, and some are named after the current scope.
        # Applying it here, in the root scope, gives them the same names in every run and every graph, with or without
        # a loop. The operations that this call creates, which apply zero gradients, are never run.
        with self.w.graph.name_scope(None):
            self.apply([tf.zeros([2], _TYPE)])

    def apply(self, gradients: Sequence[Any]) -> Any:
        """Add a training step to the graph: apply the sum of the gradients and increment the global step.

        Args:
            gradients: Gradients, each a float64 [2] tensor for w and b.

        Returns:
            The operation that increments the global step once the gradients are applied.
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
        """Return w, the global step and b in the form that `unpacked` takes.

        Values on the same device are packed into one tensor, so that they are sent as one message.
        """
        with v1.device(self.w.device):
            here = [self.w.read_value(), tf.cast(self.step.read_value(), _TYPE)]
        with v1.device(self.b.device):
            there = [self.b.read_value()]
        if self.b.device == self.w.device:
            here, there = here + there, []
        with v1.device(self.w.device):
            return [tf.stack(here), *there]


def unpacked(values: Sequence[Any]) -> list[Any]:
    """Return w, the global step and b from the values that `Variables.read` returns."""
    packed, *there = values
    return [*tf.unstack(packed, num=3 - len(there)), *there]


@contextlib.contextmanager
def model_graph(plan: TrainingConfig, worker: str) -> Iterator[tf.Graph]:
    """Yield a graph that distributes variables round-robin over the servers and places all else on `worker`.

    Args:
        plan: The settings of the training.
        worker: Full name of the device for everything that is not a variable.
    """
    job = job_of(plan.servers[0])
    setter = v1.train.replica_device_setter(
        ps_tasks=len(plan.servers), ps_device=f"/job:{job}/device:CPU:0", worker_device=worker
    )
    with run_graph(plan.context) as graph, v1.device(setter):
        yield graph


class StateGraph:
    """A graph that initializes, reads and sets all variables.

    Args:
        plan: The settings of the training.

    Attributes:
        graph: The graph; all of its operations are on the servers.
        initialise: Operation that gives every variable its initial value.
        values: Tensor with each variable's value, by name.
        lost: Tensor that tells whether a variable is uninitialized, by name.
        homes: Device of each variable, by name.
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
        """Set every variable.

        Args:
            session: A session of this graph.
            values: The new values, by name.
        """
        session.run(self._assign, {self._inputs[name]: value for name, value in values.items()})


class TrainingGraph:
    """A graph that does any number of steps per call: a while loop on the worker that uses the servers' variables.

    With one device the graph is a replica of between-graph training and runs asynchronously to the other replicas.
    With several devices training is synchronous: each device computes its share of a batch, and the sum of the
    gradients, always added in the same order, is applied once.

    Args:
        plan: The settings of the training.
        devices: Full names of the devices that train; the loop runs on the first one.

    Attributes:
        graph: The graph.
        first: Placeholder of the number of the first step.
        count: Placeholder of the number of steps.
        results: step (the global step, counting the steps of all workers), loss (of the last step's batch), and w and
            b after the last step.
    """

    def __init__(self, plan: TrainingConfig, devices: Sequence[str]) -> None:
        with model_graph(plan, devices[0]) as self.graph:
            variables = Variables(plan)
            self.first, self.count = v1.placeholder(tf.int64, []), v1.placeholder(tf.int64, [])
            shares = [
                BatchShare(plan, device, begin, end)
                for device, (begin, end) in zip(devices, split_batch(plan.batch, len(devices)), strict=True)
                if end > begin
            ]

            def train(step: Any, _: Any, *values: Any) -> list[Any]:
                w, _, b = unpacked(values)
                losses, gradients = zip(*(share.differentiate(step, w, b) for share in shares), strict=True)
                following, loss = step + 1, tf.add_n(losses)
                with tf.control_dependencies([variables.apply(gradients)]):
                    # Read on the servers, right after the update. A read that starts on the worker would cost one
                    # more network hop.
                    return [following, loss, *variables.read()]

            end = self.first + self.count
            start = [self.first, tf.constant(0.0, _TYPE), *variables.read()]
            with _loops_of_operations():
                _, loss, *values = v1.while_loop(lambda step, *_: step < end, train, start)
            w, done, b = unpacked(values)
            self.results = {"step": done, "loss": loss, "w": w, "b": b}


class ScoringGraph:
    """A graph that computes the loss on all data on the evaluator, from the servers' variables.

    Args:
        plan: The settings of the training.
        device: Full name of the evaluator's device.

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


@contextlib.contextmanager
def _loops_of_operations() -> Iterator[None]:
    """Build while loops directly as operations (control flow v1) inside this context.

    With control flow v2 loops are functions, which the servers lower to operations; every iteration then sends one
    more message to each device and waits for it. The setting is global to the process, so a lock lets only one graph
    be built at a time.
    """
    with _loops:
        functions = v1.control_flow_v2_enabled()
        v1.disable_control_flow_v2()
        try:
            yield
        finally:
            if functions:
                v1.enable_control_flow_v2()
