"""Train a small network on y = e^x: on a single task, data-parallel or model-parallel, and report the loss curve."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tfcluster
from tfcluster.core.devices import task_of, without_replica
from tfcluster.core.text import pluralize
from tfcluster.core.topology import LEADING_JOBS, PS_JOB
from tfcluster.errors import ClusterError
from tfcluster.programs.context import current_run

if TYPE_CHECKING:
    import click
    from rich.console import RenderableType
    from rich.text import Text

_MODES = ("single", "data-parallel", "model-parallel")
_HIDDEN = 16  # neurons in the hidden layer
# Bounds of the x for which the network learns e^x.
_LOW, _HIGH = -1.0, 1.0
_FIRST_STEPS = 10  # in the first call: their duration is not known
_CALL_SECONDS = 0.3  # a round trip (a few ms) does not matter, and progress and cancelling are quick
_CALL_EXAMPLES_MAX = 1 << 20  # 8 MB
_CURVE_POINTS = 200


def run(modes: Sequence[str], steps: int, rate: float, batch: int, seed: int) -> None:
    """Learn e^x between -1 and 1 in one mode after another, all with the same batches and weights from the seed.

    Its result:
        With one mode: mode, loss (the mean squared error on the last batch), max_error (the largest error between
        -1 and 1), steps, seconds, steps_per_s, curve (at most 201 pairs of step and loss) and seed. With several modes:
        modes (a list of the same fields without seed) and seed.
    """
    results = []
    for number, mode in enumerate(modes):
        training = _Training(mode, rate, batch, seed)
        results.append(training.train(steps, before=number * steps, total=len(modes) * steps))
    tfcluster.result({**results[0], "seed": seed} if len(results) == 1 else {"modes": results, "seed": seed})


def parameter_device(addresses: Mapping[str, Sequence[str]]) -> str | None:
    """Return the device of the cluster's first parameter server, or else chief or master; None if it has neither."""
    job = next((job for job in (PS_JOB, *LEADING_JOBS) if addresses.get(job)), None)
    return None if job is None else f"/job:{job}/replica:0/task:0/device:CPU:0"


def stream_examples(seed: int, batch: int) -> Callable[[int], Any]:
    """Return a function of a number of steps that returns the x of the next batches, of shape [steps, batch].

    They depend on the seed alone, and neither on the numbers of steps nor on how the work is partitioned.
    """
    import numpy as np

    generator = np.random.default_rng([seed, 1])
    return lambda steps: generator.uniform(_LOW, _HIGH, (steps, batch))


def initial_layers(seed: int) -> list[Any]:
    """Return the initial weights of both layers, which depend on the seed alone and not on the partitioning.

    The shapes are [1 + 1, 16] and [16 + 1, 1]; the last row of each is the bias.
    """
    import numpy as np

    generator = np.random.default_rng([seed, 0])
    hidden = generator.normal(size=(2, _HIDDEN))
    output = generator.normal(size=(_HIDDEN + 1, 1)) / np.sqrt(_HIDDEN)
    return [hidden, output]


def largest_error(layers: list[Any]) -> float:
    """Return the largest absolute error of the network with respect to e^x, between -1 and 1."""
    import numpy as np

    x = np.linspace(_LOW, _HIGH, 1001)[:, np.newaxis]
    hidden, output = layers
    outputs = np.tanh(x @ hidden[:-1] + hidden[-1]) @ output[:-1] + output[-1]
    return float(np.abs(outputs - np.exp(x)).max())


class _Training:
    def __init__(self, mode: str, rate: float, batch: int, seed: int) -> None:
        self._run = run = current_run()
        self._mode = mode
        self._rate = rate
        self._batch = batch
        self._seed = seed
        self._partitioning = partition(mode, run.devices, parameter_device(run.addresses), batch)
        self._note_unused_devices()

    def train(self, steps: int, before: int, total: int) -> dict[str, Any]:
        """Train, after `before` of all `total` steps; return the result that `run` describes, without seed."""
        import numpy as np

        from tfcluster.programs.sessions import WholeSession

        network = build(self._partitioning, initial_layers(self._seed), self._rate)
        next_examples = stream_examples(self._seed, self._batch)
        stride = -(-steps // _CURVE_POINTS)
        curve: list[list[float]] = []
        done, size = 0, _FIRST_STEPS
        with WholeSession(network.graph, self._partitioning.devices) as session:
            session.run(network.initializer)
            began = time.monotonic()
            while done < steps:
                size = max(1, min(size, steps - done, _CALL_EXAMPLES_MAX // self._batch))
                started = time.monotonic()
                losses = self._call(session, network, next_examples(size), count=done == 0)
                seconds = max(time.monotonic() - started, 1e-6)
                self._check_finite(losses, done)
                numbered = enumerate(losses.tolist(), done + 1)
                curve += [[at, loss] for at, loss in numbered if (at - 1) % stride == 0 or at == steps]
                done, taken = done + size, size
                size = min(4 * size, int(size * _CALL_SECONDS / seconds) + 1)
                tfcluster.metric("loss", losses[-1], done, series=self._mode)
                tfcluster.metric("steps_per_s", round(taken / seconds, 1), done, series=self._mode)
                tfcluster.progress(before + done, total)
            seconds = time.monotonic() - began
            layers = session.run(network.layers)
        with np.errstate(all="ignore"):
            max_error = largest_error(layers)
        # The loss is computed before the step's update, so check the result of the last update too.
        self._check_finite(np.array([max_error]), steps - 1)
        return {
            "mode": self._mode,
            "loss": curve[-1][1],
            "max_error": max_error,
            "steps": steps,
            "seconds": round(seconds, 6),
            "steps_per_s": round(steps / seconds, 1),
            "curve": curve,
        }

    def _call(self, session: Any, network: Network, batches: Any, *, count: bool) -> Any:
        """Run the steps on batches, of shape [steps, batch], and return their losses; `count` counts the operations."""
        from tfcluster.programs.placements import run_placed

        feed = {network.steps: len(batches)}
        for share, placeholder in zip(self._partitioning.shares, network.examples, strict=True):
            feed[placeholder] = batches[:, share.start : share.stop]
            self._count(share.device, examples=len(batches) * (share.stop - share.start))
        if not count:
            return session.run(network.losses, feed)
        losses, placed = run_placed(network.graph, session.run, network.losses, feed)
        for device, operations in Counter(placed.values()).items():
            self._count(device, ops=operations)
        return losses

    def _count(self, device: str, **amounts: int) -> None:
        stats = self._run.device_stats.setdefault(without_replica(device), {"ops": 0, "examples": 0})
        for name, amount in amounts.items():
            stats[name] += amount

    def _check_finite(self, losses: Any, before: int) -> None:
        import numpy as np

        non_finite = np.flatnonzero(~np.isfinite(losses))
        if non_finite.size:
            raise ClusterError(
                f"the loss is not finite at step {before + int(non_finite[0]) + 1} ({self._mode}): "
                f"the learning rate {self._rate:g} is too high",
                hint=f"Try --lr {min(self._rate / 10, 0.05):g}.",
            )

    def _note_unused_devices(self) -> None:
        partitioning, devices = self._partitioning, self._run.devices
        if self._mode == "model-parallel" and len({task_of(device) for device in partitioning.devices}) == 1:
            tfcluster.note("model-parallel: there is only one task, so both layers are on it")
        unused = len(devices) - len({share.device for share in partitioning.shares})
        if self._mode == "data-parallel" and unused:
            tfcluster.note(
                f"data-parallel: a batch of {self._batch} leaves nothing to {unused} of {len(devices)} devices"
            )


@dataclass(frozen=True)
class BatchShard:
    """The examples `start` … `stop - 1` of each batch, which are sent to a device."""

    device: str
    start: int
    stop: int


@dataclass(frozen=True)
class Partitioning:
    """The partitioning of a training among devices."""

    mode: str  # `single`, `data-parallel` or `model-parallel`
    layers: tuple[str, str]  # the device of each layer's weights
    shares: tuple[BatchShard, ...]  # in `model-parallel` each device gets all examples

    @property
    def devices(self) -> tuple[str, ...]:
        """Return all devices that take part, beginning with one that computes."""
        return tuple(dict.fromkeys((*(share.device for share in self.shares), *self.layers)))


@dataclass(frozen=True)
class Network:
    """The graph of a training."""

    graph: Any  # TensorFlow's
    initializer: Any  # operation that initializes the weights
    steps: Any  # placeholder of the number of steps
    examples: list[Any]  # for each share a placeholder of its x, of shape [steps, examples of the share]
    losses: Any  # tensor that does the steps and contains the loss of each, on its batch before the weights change
    layers: list[Any]  # the weights of both layers


def partition(mode: str, devices: Sequence[str], parameters: str | None, batch: int) -> Partitioning:
    """Partition a training among devices.

    In `single` mode everything is on the first device. In `data-parallel`, each device computes its share of the batch,
    and `parameters` (by default the first device) stores the weights. In `model-parallel`, each layer is on a separate
    task, or on a separate device if there is only one task.
    """
    first = devices[0]
    if mode == "single":
        return Partitioning(mode, (first, first), (BatchShard(first, 0, batch),))
    if mode == "model-parallel":
        others = [device for device in devices if task_of(device) != task_of(first)] or list(devices[1:]) or [first]
        layers = (first, others[0])
        return Partitioning(mode, layers, tuple(BatchShard(device, 0, batch) for device in dict.fromkeys(layers)))
    workers = devices[:batch]
    bounds = [batch * number // len(workers) for number in range(len(workers) + 1)]
    shares = tuple(BatchShard(*share) for share in zip(workers, bounds, bounds[1:], strict=False))
    return Partitioning(mode, (parameters or first,) * 2, shares)


def build(partitioning: Partitioning, initial: Sequence[Any], rate: float) -> Network:
    """Build the graph that trains by gradient descent.

    All steps of a call are one while loop in the graph, which the servers run without the driver: a step costs a few
    messages between servers and none to the driver.
    """
    import tensorflow as tf

    from tfcluster.programs.sessions import run_graph

    v1 = tf.compat.v1
    with run_graph() as graph, v1.variable_scope(partitioning.mode):
        layers = []
        for name, device, weights in zip(("hidden", "output"), partitioning.layers, initial, strict=True):
            with tf.device(device):
                layers.append(v1.get_variable(name, initializer=tf.constant(weights), use_resource=True))
        examples = []
        for share in partitioning.shares:
            with tf.device(share.device):
                examples.append(v1.placeholder(tf.float64, [None, share.stop - share.start]))
        optimizer = v1.train.GradientDescentOptimizer(tf.constant(rate, tf.float64))
        gradients = _model_parallel_gradients if partitioning.mode == "model-parallel" else _data_parallel_gradients

        def step(number: Any) -> Any:
            columns = []
            for share, each in zip(partitioning.shares, examples, strict=True):
                with tf.device(share.device):
                    columns.append(tf.gather(each, number)[:, tf.newaxis])
            loss, values = gradients(partitioning, layers, columns)
            with tf.control_dependencies([optimizer.apply_gradients(zip(values, layers, strict=True))]):
                return tf.identity(loss)

        with tf.device(f"{task_of(partitioning.layers[0])}/device:CPU:0"):
            steps = v1.placeholder(tf.int32, [])
            losses = _loop(steps, step)
        return Network(graph, v1.variables_initializer(layers), steps, examples, losses, layers)


def _loop(steps: Any, step: Callable[[Any], Any]) -> Any:
    """Build a while loop that runs `step(number)`, which builds a step's loss, for 0, 1, …; return all losses."""
    import tensorflow as tf

    def body(number: Any, losses: Any) -> tuple[Any, Any]:
        loss = step(number)
        with tf.control_dependencies([loss]):  # so that the next step reads the updated weights
            return number + 1, losses.write(number, loss)

    _, losses = tf.compat.v1.while_loop(
        lambda number, _: number < steps,
        body,
        [tf.constant(0), tf.TensorArray(tf.float64, size=steps)],
        parallel_iterations=1,
    )
    return losses.stack()


def _data_parallel_gradients(
    partitioning: Partitioning, layers: Sequence[Any], columns: Sequence[Any]
) -> tuple[Any, list[Any]]:
    """Build the loss and the gradients: the means over the devices' shares, weighted by size."""
    import tensorflow as tf

    parameter_device, batch = partitioning.layers[0], partitioning.shares[-1].stop
    shapes = [[], *(layer.shape for layer in layers)]
    with tf.device(parameter_device):
        weights = _pack([layer.read_value() for layer in layers])
    parts = []
    for share, x in zip(partitioning.shares, columns, strict=True):
        with tf.device(share.device):
            local = _unpack(tf.identity(weights), shapes[1:])
            loss = _loss(_output(local[1], _hidden(local[0], x)), x)
            packed = _pack([loss, *tf.compat.v1.gradients(loss, local)])
            parts.append((share.stop - share.start) / batch * packed)
    with tf.device(parameter_device):
        loss, *gradients = _unpack(tf.add_n(parts), shapes)
    return loss, gradients


def _model_parallel_gradients(
    partitioning: Partitioning, layers: Sequence[Any], columns: Sequence[Any]
) -> tuple[Any, list[Any]]:
    """Build the loss and the gradients: the devices of the layers exchange the activations and their gradient."""
    import tensorflow as tf

    with tf.device(partitioning.layers[0]):
        activations = _hidden(layers[0].read_value(), columns[0])
    with tf.device(partitioning.layers[1]):
        loss = _loss(_output(layers[1].read_value(), activations), columns[-1])
    return loss, tf.compat.v1.gradients(loss, layers, colocate_gradients_with_ops=True)


def _pack(tensors: Sequence[Any]) -> Any:
    """Concatenate tensors into one vector, so that a step costs a device one message in each direction."""
    import tensorflow as tf

    return tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0)


def _unpack(vector: Any, shapes: Sequence[Any]) -> list[Any]:
    import tensorflow as tf

    sizes = [tf.TensorShape(shape).num_elements() for shape in shapes]
    pieces = tf.split(vector, sizes)
    return [tf.reshape(piece, shape) for piece, shape in zip(pieces, shapes, strict=True)]


def _hidden(layer: Any, x: Any) -> Any:
    import tensorflow as tf

    return tf.tanh(x @ layer[:-1] + layer[-1])


def _output(layer: Any, activations: Any) -> Any:
    return activations @ layer[:-1] + layer[-1]


def _loss(outputs: Any, x: Any) -> Any:
    import tensorflow as tf

    return tf.reduce_mean(tf.square(outputs - tf.exp(x)))


def command() -> click.Command:
    """Return the command with the options of the program, whose values are the parameters of `run`."""
    import click

    from tfcluster.cli.options import FiniteFloat, OutputFilePath, WholeNumber, drawn_seed_option

    @click.command(
        short_help="Learns e^x: on one task, or its data or its layers divided.",
        epilog="Example: tfcluster run expfit --compare --plot convergence.png",
    )
    @click.option(
        "--mode",
        "modes",
        envvar="TFCLUSTER_RUN_MODE",
        type=click.Choice(_MODES),
        callback=_choose_modes,
        help="How the work is divided.  [default: single]",
    )
    @click.option("--compare", is_flag=True, is_eager=True, help="Train in each mode in turn.")
    @click.option(
        "--plot",
        type=OutputFilePath((".png", ".svg", ".pdf")),
        expose_value=False,
        callback=_plot_after_success,
        help="Draw the losses in this file.",
    )
    @click.option(
        "--steps", type=WholeNumber(1, 10**8), default="1000", show_default=True, help="Batches to learn from."
    )
    @click.option(
        "--lr",
        "rate",
        envvar="TFCLUSTER_RUN_LR",
        type=FiniteFloat(0, min_open=True),
        default=0.05,
        show_default=True,
        metavar="RATE",
        help="Learning rate.",
    )
    @click.option("--batch", type=WholeNumber(1, 10**5), default="64", show_default=True, help="Examples in a batch.")
    @drawn_seed_option
    def main(modes: Sequence[str], steps: int, rate: float, batch: int, seed: int) -> None:
        """Teach a network of 16 neurons y = e^x for x from -1 to 1, by gradient descent.

        single trains on one device. data-parallel gives each device its part of every batch; the weights are on the
        ps, otherwise the chief or master, otherwise the first device, which averages the gradients too. model-parallel
        has a layer on one task and a layer on another. The same seed gives the same curve in every mode; dividing so
        small a network only costs time.

        --plot writes PNG, SVG or PDF; it requires matplotlib: pip install matplotlib.
        """
        run(modes, steps, rate, batch, seed)

    return main


def _choose_modes(context: click.Context, option: click.Parameter, mode: str | None) -> Sequence[str]:
    import click

    is_comparison = context.params.pop("compare", False)
    if is_comparison and mode:
        raise click.UsageError("--compare trains in every mode; leave out --mode.")
    return _MODES if is_comparison else (mode or _MODES[0],)


def _plot_after_success(context: click.Context, option: click.Parameter, file: Path | None) -> None:
    if file is not None and not context.resilient_parsing:
        from tfcluster.cli.run_options import after_success
        from tfcluster.ui.plot import draw_convergence, refuse_without_matplotlib

        refuse_without_matplotlib()
        draw = partial(draw_convergence, file)
        after_success("--plot", "draws the run's losses", lambda event: draw(event["result"]))


def summary(result: dict[str, Any], seconds: float) -> list[RenderableType]:
    """Format the result: the loss and the time of each mode, and a table of the losses."""
    from tfcluster.ui.console import Text
    from tfcluster.ui.format import format_duration

    modes = result.get("modes", [result])
    return [
        _line(result) if len(modes) == 1 else _comparison(modes),
        Text(f"{format_duration(seconds)}, seed {result['seed']}"),
        Text(),
        _losses(modes),
    ]


def _losses(modes: list[dict[str, Any]]) -> RenderableType:
    """Return a table of the losses of each mode at steps 1, 2, 5, 10, 20, … and the last one.

    The curve of a long training has only some of the steps; the next one that it has is shown.
    """
    from tfcluster.ui.console import make_table

    steps = [int(step) for step, _ in modes[0]["curve"]]
    wanted = [factor * 10**power for power in range(len(str(steps[-1]))) for factor in (1, 2, 5)]
    shown = sorted({steps[bisect_left(steps, each)] for each in wanted if each < steps[-1]} | {steps[-1]})
    losses = [dict(each["curve"]) for each in modes]
    columns = ("STEP", *(["LOSS"] if len(modes) == 1 else [each["mode"].upper() for each in modes]))
    return make_table(
        columns, [(f"{step:,}", *(f"{each[step]:.3g}" for each in losses)) for step in shown], right=columns
    )


def _line(result: dict[str, Any]) -> Text:
    from tfcluster.ui.console import Text

    return Text.assemble(
        ("loss ", "bold"),
        (f"{result['loss']:.3g}", "bold green"),
        f" after {pluralize(result['steps'], 'step')} ({result['mode']}), ",
        f"no further than {result['max_error']:.2g} from e^x between -1 and 1",
    )


def _comparison(modes: list[dict[str, Any]]) -> RenderableType:
    from tfcluster.ui.console import make_table
    from tfcluster.ui.format import format_duration

    rows = [
        (
            each["mode"],
            f"{each['loss']:.6g}",
            f"{each['max_error']:.2g}",
            f"{each['steps']:,}",
            format_duration(each["seconds"]),
            f"{each['steps_per_s']:,.0f}",
        )
        for each in modes
    ]
    columns = ("MODE", "LOSS", "MAX ERROR", "STEPS", "TIME", "STEPS/S")
    return make_table(columns, rows, right=columns[1:])


if __name__ == "__main__":
    command()()
