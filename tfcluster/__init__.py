"""tfcluster turns a YAML file into a running, supervised TensorFlow cluster."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, SupportsFloat, SupportsIndex

from tfcluster.version import __version__ as __version__

if TYPE_CHECKING:
    from tfcluster.connection import ClusterConnection
    from tfcluster.programs.session_pool import SessionPool

# The functions import what they need when they are called: agents import this package too, and need none of it.


def connect(cluster: str | None = None) -> ClusterConnection:
    """Connect to a cluster that is up, for a notebook or your own program.

    Args:
        cluster: The cluster's name; without it, the cluster is chosen as by the commands.

    Returns:
        The cluster's target for sessions, its resolver for strategies, its devices, and its runs.

    Raises:
        tfcluster.errors.ClusterError: There is no such cluster, or it is not running.
    """
    from tfcluster.connection import ClusterConnection

    return ClusterConnection(cluster)


def metric(name: str, value: SupportsFloat, step: SupportsIndex, *, series: str | None = None) -> None:
    """Report a value of this run, such as its loss, for `tfcluster dashboard` and for the events of `run -o json`.

    In a process that `tfcluster run` or `launch` has not started, it does nothing but check its arguments. It never
    waits, and of long series only some points are kept.

    Args:
        name: What the value is, such as `loss`.
        value: The value: a number, or an array or tensor of one number. NaN and infinities show as gaps of the curve.
        step: The step of the training that it belongs to, counted from 0.
        series: What reports the value, such as `worker:1`, if this process reports for several; each has its own line
            in the curve of the name.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: The name or the series is empty, too long or has control characters, the step is negative, or there
            are too many names.
    """
    from tfcluster.reporting import report

    report(name, value, step, series)


def progress(done: int, total: int, unit: str = "steps") -> None:
    """Report how much of this run's work is done, for the progress bar and for the events of `run -o json`.

    In a process that `tfcluster run` has not started, and in a member of `launch`, it does nothing. It may be called as
    often as you like: at most ten reports a second are passed on, and the last one.

    Args:
        done: How much is done.
        total: How much there is to do.
        unit: The unit of both, in the plural, such as `samples`.

    Raises:
        TypeError: An amount is no integer, or the unit no string.
        ValueError: An amount is negative, more is done than there is to do, or the unit is empty or too long.
    """
    from tfcluster.programs.context import report_progress

    report_progress(operator.index(done), operator.index(total), unit)


def note(text: str) -> None:
    """Add a note to this run's result, which `run` shows after it; in a process without a run, do nothing.

    A note has at most 1,000 characters, and a run 100 notes: the rest is left out.
    """
    from tfcluster.programs.context import add_note

    add_note(text)


def result(value: Any) -> None:
    """Set the value of this run, which its result in `run -o json`, `runs` and `connect().run()` has as `value`.

    Of several calls the last one counts. In a process that `tfcluster run` has not started, and in a member of
    `launch`, it does nothing but check its argument.

    Args:
        value: What JSON has: None, booleans, finite numbers, strings, and lists and dicts of these.

    Raises:
        TypeError: JSON does not have the value.
        ValueError: A number is infinite or NaN, or the value has more than eight million characters, or is nested more
            than a hundred times.
    """
    from tfcluster.programs.context import set_result

    set_result(value)


def map_reduce(
    function: Callable[[Any], Any],
    shards: int,
    reduce: Callable[[Any, Any], Any] = operator.add,
    *,
    devices: Sequence[str] | None = None,
    unit: str = "shards",
    work: Callable[[int], int] | None = None,
    optimized: bool = True,
) -> Any:
    """Compute `function` for every shard on this run's devices, and reduce the values in the order of the shards.

    The devices begin with one shard each; then each takes the next ones when it is free. The shards of a task that is
    lost are computed on others, and a task that is back, or that was not ready when the run began, takes part as soon
    as it answers. The result is bit-identical for any number of devices, even if tasks are lost, because the values are
    reduced in the order of the shards, in this process; `reduce` need not even be associative. Keep it short compared
    with the duration of a shard, and values small: let a device aggregate its whole shard.

    Args:
        function: Function of the shard number, called with an int64 scalar tensor, whose value is not known yet, once
            for each device that a task has. It builds the shard's value: one tensor, or a structure of tensors (tuple,
            list or dict), with the same shapes for all shards. The value must depend on this number alone; random
            numbers come from a stateless generator, such as `tf.random.stateless_uniform` with the seed
            `(tfcluster.seed(), shard)`. TensorFlow's servers cache functions compiled with `jit_compile` by name, so a
            function whose body has changed needs another name.
        shards: Number of shards, at least 1; they are numbered 0, 1, …, `shards - 1`. A shard should take at least
            some milliseconds and must not take more than 120 s.
        reduce: Combines two values, the earlier one first, into one. The values are NumPy arrays or scalars in the
            structure of the function's value. The default is addition.
        devices: Full names of the devices to compute on, such as `tfcluster.devices(at_most=8)`; None for all.
        unit: The unit of the work in progress and result, in the plural.
        work: Returns the amount of work in the first shards, given their number: `lambda n: min(1000 * n, total)`. None
            to count the shards.
        optimized: Whether the servers optimize the graph before the first shard. Without it, a function that does
            little but call compiled functions starts sooner.

    Returns:
        reduce(…reduce(reduce(f(0), f(1)), f(2))…, f(shards - 1)).

    Raises:
        ValueError: `shards` is less than 1.
        tfcluster.errors.ClusterError: This process is not part of a run, every device was lost for five seconds, five
            tasks were lost during the same shards, or a shard takes too long.
    """
    from tfcluster.programs.map_reduce import map_reduce

    return map_reduce(function, shards, reduce, devices=devices, unit=unit, work=work, optimized=optimized)


def sessions(
    build: Callable[[], tuple[Mapping[str, Any], Any]],
    devices: Sequence[str] | None = None,
    *,
    as_written: bool = False,
    optimized: bool = True,
) -> SessionPool:
    """Return sessions of TensorFlow that run one computation on any of this run's devices, one session for each task.

    Each is opened when it is first used, with device filters, so that it waits for no other task, and opened again
    after its task was lost. Variables that the computation has are this run's own.

        def build():
            number = tf.compat.v1.placeholder(tf.float64, [])
            return {"number": number}, tf.sqrt(number)

        with tfcluster.sessions(build) as pool:
            print(pool.run(pool.devices[0], {"number": 2.0}))

    Args:
        build: Builds the computation of a device; it is called with a default graph and a default device, once for
            each device that a task has. It returns
            the placeholders by the names under which `run` feeds them, and the outputs: tensors in any structure that a
            session can fetch.
        devices: Full names of the devices; None for all of `tfcluster.devices()`.
        as_written: Run every operation on the device where it is placed: nothing is folded, fused or moved, except that
            one without a kernel for its device runs on the CPU of its task.
        optimized: As for `map_reduce`.

    Returns:
        A context manager, which closes the sessions. Its `devices` are full names; `run(device, feed)` returns the
        outputs as NumPy arrays, and raises `DeviceLostError` if the task is lost, and `StepTimeoutError` if it takes
        longer than 120 s; `map(step, shards)` calls `step(device, first, count)` for all shards, as `map_reduce` does,
        and yields results with `device`, `first`, `count` and `value` as they are done, in any order. Iterate over it
        inside the `with` block.

    Raises:
        tfcluster.errors.ClusterError: This process is not part of a run.
    """
    from tfcluster.programs.session_pool import SessionPool

    return SessionPool(build, devices, as_written=as_written, optimized=optimized)


def devices(at_most: int | None = None) -> list[str]:
    """Return the full names of the devices that this run computes on, also of those that were not ready when it began.

    Args:
        at_most: How many to return at most, evenly spread over tasks and hosts, for work that is not worth starting on
            more of them; all of them nevertheless if --devices or --gpus chose them.

    Raises:
        tfcluster.errors.ClusterError: This process is not part of a run.
    """
    from tfcluster.programs.context import spread_devices

    return spread_devices(at_most)


def seed() -> int:
    """Return the seed of this run: that of --seed, or a random one below 2^32, the same at each call.

    Raises:
        tfcluster.errors.ClusterError: This process is not part of a run.
    """
    from tfcluster.programs.context import run_seed

    return run_seed()
