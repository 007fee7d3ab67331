"""Mean and variance of numbers that are distributed over the devices in slices of any sizes."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tfcluster.errors import usage_error
from tfcluster.paths import LOCAL_HOST
from tfcluster.programs.api import Context
from tfcluster.programs.mean.source import MappedFile, RandomNumbers, open_numbers
from tfcluster.programs.mean.window_sums import PieceSums, Rows
from tfcluster.programs.mean.windows import (
    Moments,
    WindowPieces,
    check_sizes,
    combine,
    cut,
    describe_non_finite,
    even_sizes,
    moments_of_pieces,
    window_size,
)
from tfcluster.programs.sessions import task_of

#: Values of `slices` that replace sizes. EVEN: one slice per device, of sizes as equal as possible. DEVICES: one slice
#: per device, which consists of the pieces that the device happened to do.
EVEN, DEVICES = "even", "devices"


def run(
    context: Context,
    *,
    file: str | None,
    random: int | None,
    seed: int,
    column: str | None,
    slices: list[int] | str,
) -> dict[str, Any]:
    """Compute the mean and the variance; the arguments are the options of `tfcluster run mean`.

    The input is divided into windows at fixed positions. Each window is summed in float64 on one device, and the
    windows' moments are combined in sums that are rounded once. The mean and the variance are therefore bit-identical
    for all ways to slice the input, and for all sets of devices of the same type.

    `file` is None with `random`, and the user's name for an upload, where `-` is standard input. `seed` is below 2^64.

    Returns:
        mean, variance (of the population), count, and shards ({task, count, mean} of each slice). A value that is not
        finite is None, and a note explains why.
    """
    numbers = RandomNumbers(random, seed) if random is not None else _open(context, file or "-", column)
    size = window_size(numbers.count)
    pieces = _cut(context, numbers, size, slices)
    rows, workers, devices = _sums(context, numbers, pieces, size)
    moments = moments_of_pieces(pieces, rows)
    whole = pieces.whole_windows(numbers.count, size)
    total = combine([moments[piece] for piece in whole])
    if isinstance(numbers, MappedFile):
        context.notes.extend(describe_non_finite(numbers, total))
    return {
        "mean": _finite(total.mean),
        "variance": _finite(total.variance),
        "count": total.count,
        "shards": [
            _describe_slice(task_of(devices[worker]), [moments[piece] for piece in part])
            for worker, part in _slices(pieces, workers, by_device=slices == DEVICES)
        ],
    }


def _open(context: Context, file: str, column: str | None) -> MappedFile:
    """Open a file of numbers, or the upload if there is one, and note how text was parsed."""
    path, name = context.upload_path or Path(file), "standard input" if file == "-" else file
    if context.host != LOCAL_HOST and not path.exists():
        raise usage_error(
            f"{name}: no such file on {context.host}, the host that leads the run",
            f"To send a file of your machine: `tfcluster run mean - < {shlex.quote(name)}`.",
        )
    numbers, notes = open_numbers(path, name, column, context.folder)
    context.notes.extend(notes)
    return numbers


def _cut(context: Context, numbers: MappedFile | RandomNumbers, size: int, slices: list[int] | str) -> WindowPieces:
    """Cut the numbers into slices, and these into pieces."""
    if slices == DEVICES:
        return cut([numbers.count], size)
    devices = len(context.devices) + len(context.late_devices)
    sizes = even_sizes(numbers.count, devices) if isinstance(slices, str) else slices
    check_sizes(sizes, numbers.count, numbers.name)
    return cut(sizes, size)


def _sums(
    context: Context, numbers: MappedFile | RandomNumbers, pieces: WindowPieces, size: int
) -> tuple[Rows, npt.NDArray[np.int64], list[str]]:
    """Compute all pieces on the devices.

    Return pilot, sum and sum of squares, [pieces, 3], and each one's device, [pieces], as an index of the devices,
    which are returned too.
    """
    rows: Rows = np.empty((len(pieces), 3))
    workers = np.empty(len(pieces), np.int64)
    with PieceSums(context, numbers, pieces, size) as sums:
        devices = sums.pool.devices
        for part in sums.pool.map(sums.compute, len(pieces), unit="numbers", work=pieces.count_before):
            span = slice(part.first, part.first + part.count)
            rows[span], workers[span] = part.value, devices.index(part.device)
    return rows, workers, devices


def _slices(
    pieces: WindowPieces, workers: npt.NDArray[np.int64], *, by_device: bool
) -> list[tuple[int, Sequence[int]]]:
    """Return each slice's device, which has computed most of its numbers, by index, and its pieces."""
    if by_device:
        return [(int(worker), np.flatnonzero(workers == worker).tolist()) for worker in np.unique(workers)]
    counts = pieces.counts
    shares = ((part, np.bincount(workers[part], counts[part])) for part in pieces.slices)
    return [(int(share.argmax()), part) for part, share in shares]


def _describe_slice(task: str, parts: Sequence[Moments]) -> dict[str, Any]:
    moments = combine(parts)
    return {"task": task, "count": moments.count, "mean": _finite(moments.mean)}


def _finite(value: float) -> float | None:
    """Return the value, or None if JSON does not have it (infinities and NaN)."""
    return value if np.isfinite(value) else None
