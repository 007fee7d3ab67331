"""Mean and variance of numbers that are distributed over the devices in slices of any sizes."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tfcluster.errors import usage_error
from tfcluster.paths import LOCAL_HOST
from tfcluster.programs.api import Context
from tfcluster.programs.map_reduce import Progress, map_shards
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
from tfcluster.programs.sessions import joins, task_of

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
    pieces, devices, pinned = _assign(context, numbers, size, slices)
    rows, workers = _sums(context, devices, numbers, pieces, size, pinned)
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
            for worker, part in _slices(pieces, workers, by_device=pinned is None)
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


def _assign(
    context: Context, numbers: MappedFile | RandomNumbers, size: int, slices: list[int] | str
) -> tuple[WindowPieces, list[str], dict[str, list[range]] | None]:
    """Cut the numbers into pieces and assign the slices to devices.

    Return the pieces, the devices that are used, and the ranges of pieces pinned to each device, or None if any free
    device, even a late one, may take any piece.
    """
    devices = [*context.devices, *context.late_devices]
    if slices == DEVICES:
        pieces = cut([numbers.count], size)
        return pieces, devices[: len(pieces)], None
    sizes = even_sizes(numbers.count, len(devices)) if isinstance(slices, str) else slices
    check_sizes(sizes, numbers.count, numbers.name)
    pieces = cut(sizes, size)
    used = devices[: len(sizes)]
    own = {device: list(pieces.slices[index :: len(used)]) for index, device in enumerate(used)}
    return pieces, used, {device: ranges for device, ranges in own.items() if device in context.devices}


def _sums(
    context: Context,
    devices: list[str],
    numbers: MappedFile | RandomNumbers,
    pieces: WindowPieces,
    size: int,
    pinned: dict[str, list[range]] | None,
) -> tuple[Rows, npt.NDArray[np.int64]]:
    """Compute all pieces on the devices; return pilot, sum and sum of squares, [pieces, 3], and each one's device."""
    rows: Rows = np.empty((len(pieces), 3))
    workers = np.empty(len(pieces), np.int64)
    progress = Progress(context, numbers.count, "numbers")
    ready = [device for device in devices if device in context.devices]
    with PieceSums(context, devices, numbers, pieces, size) as sums:
        for part in map_shards(
            ready, len(pieces), sums.compute, pinned=pinned, late=devices[len(ready) :], joins=partial(joins, context)
        ):
            span = slice(part.first, part.first + part.count)
            rows[span], workers[span] = part.value, devices.index(part.device)
            progress.add(part.device, pieces.count_of(part.first, part.count))
    return rows, workers


def _slices(
    pieces: WindowPieces, workers: npt.NDArray[np.int64], *, by_device: bool
) -> list[tuple[int, Sequence[int]]]:
    """Return each slice's device (that of the last piece, if its first device was lost), by index, and its pieces."""
    if not by_device:
        return [(int(workers[part.stop - 1]), part) for part in pieces.slices]
    return [(int(worker), np.flatnonzero(workers == worker).tolist()) for worker in np.unique(workers)]


def _describe_slice(task: str, parts: Sequence[Moments]) -> dict[str, Any]:
    moments = combine(parts)
    return {"task": task, "count": moments.count, "mean": _finite(moments.mean)}


def _finite(value: float) -> float | None:
    """Return the value, or None if JSON does not have it (infinities and NaN)."""
    return value if np.isfinite(value) else None
