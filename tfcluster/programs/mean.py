"""Mean and variance of numbers that are shared by the devices in slices of any sizes.

The numbers are divided into windows at fixed positions. Each window is summed in float64 on one device, and the
windows' moments are combined in sums that are rounded once. Mean and variance are therefore bit-identical for all ways
to slice the numbers, and for all sets of devices of the same type.
"""

from __future__ import annotations

import contextlib
import math
import os
import shlex
import stat
import warnings
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import tfcluster
from tfcluster.core.devices import task_of
from tfcluster.errors import usage_error
from tfcluster.programs.csv_rows import find_numbers, has_finite_number, parse_number, read_rows

if TYPE_CHECKING:
    import click
    import numpy as np
    import numpy.typing as npt
    from rich.text import Text

    from tfcluster.programs.session_pool import Computation, SessionPool

    Integers = npt.NDArray[np.int64]
    Floats = npt.NDArray[np.float64]

# Largest number for --random, for the driver's memory: 350 bytes for each window.
RANDOM_NUMBERS_MAX = 2**42
# Number of slices that the summary shows.
_SLICES_SHOWN = 16
# Numbers of a text that are converted at once: little memory, and few calls.
_TEXT_BLOCK = 1 << 16

# Values of `slices` that replace sizes. EVEN: one slice per device, of sizes as equal as possible. DEVICES: one slice
# per device, which consists of the pieces that the device happened to do.
EVEN, DEVICES = "even", "devices"

# Number of numbers in a window. Dispatching a window takes as long as computing some hundred thousand numbers, so large
# windows are best. Small inputs get small windows, which need less padding.
_LARGE, _SMALL = 1 << 22, 1 << 16
# Number of stretches of a window that are summed in parallel. In a single sum each addition would wait for the previous
# one.
_STRETCHES = 8
# Number of positions in the stretches that have separate sums (lanes), which fills the vector registers.
_LANES = 1024
# Deviations are computed from a pilot, the mean of the piece's first numbers, at most 1/64 of a window. The distance of
# the pilot from the mean costs digits of the variance only if it is many standard deviations. This fraction bounds the
# distance: n (mean - pilot)² is at most 64 times the sum of squared deviations.
_PILOT = 64

_MAGIC = b"\x93NUMPY"
_ZIP = b"PK\x03\x04"
# The kind of numbers that the devices generate; that of others is their type.
_MADE = "made"


def run(file: str | None, random: int | None, column: str | None, slices: list[int] | str, seed: int) -> None:
    """Compute the mean and the variance; the arguments are the values of the options, which their help describes.

    `file` is None with `random`, and the user's name for an upload, where `-` is standard input. `seed` is below 2^64.
    The result has mean, variance (of the population), count, and shards ({task, count, mean} of each slice). A value
    that is not finite is None, and a note explains why.
    """
    import numpy as np

    numbers = open_numbers(file or "-", column) if random is None else RandomNumbers(random, seed)
    pieces = cut(slice_sizes(slices, numbers, len(tfcluster.devices())), numbers.size)
    moments, workers, tasks = compute(numbers, pieces)
    count, mean, squares = combine(moments[pieces.windows])
    variance = squares / count
    if isinstance(numbers, MappedFile) and not math.isfinite(variance):
        explain_non_finite(numbers, mean)
    parts: Sequence[Any] = pieces.slices
    if slices == DEVICES:
        parts = [workers == worker for worker in np.unique(workers)]
    shards = []
    for part in parts:
        # A slice is shown with the device that has computed most of its numbers.
        worker = np.bincount(workers[part], pieces.counts[part]).argmax()
        numbers_of_slice, mean_of_slice, _ = combine(moments[part])
        shards.append({"task": tasks[worker], "count": numbers_of_slice, "mean": _finite(mean_of_slice)})
    tfcluster.result({"mean": _finite(mean), "variance": _finite(variance), "count": count, "shards": shards})


def _finite(value: float) -> float | None:
    """Return the value, or None if JSON does not have it (infinities and NaN)."""
    return value if math.isfinite(value) else None


class RandomNumbers:
    """Random numbers that are uniform in [0, 1), each generated from the seed and its own position."""

    def __init__(self, count: int, seed: int) -> None:
        self.name = f"--random {count}"
        self.count = count
        self.size = window_size(count)
        self._key = (seed & 0xFFFFFFFF, seed >> 32)

    def build(self) -> Computation:
        """Build the computation of the sums of any pieces of windows; see `_sum_each`."""
        import tensorflow as tf

        key = [tf.constant(word, tf.uint32) for word in self._key]

        def window(start: Any) -> list[Any]:
            return [*key, *(tf.cast(word, tf.uint32) for word in (start // 2**32, start % 2**32))]

        return _sum_each(window, sums_of(_MADE, self.size))

    def sums(self, pool: SessionPool, device: str, starts: Integers, low: Integers, high: Integers) -> Any:
        """Return the sums of pieces of the windows that begin at `starts`, as rows; see `sums_of`."""
        return pool.run(device, {"start": starts, "low": low, "high": high})


class MappedFile:
    """The numbers in a file, in the order in which the file stores them.

    Args:
        name: The user's name for the file.
        descriptor: The open file; it stays open until this process ends, because tasks open the file through it.
        skipped: The number of bytes before the numbers.
        values: The numbers, one-dimensional and memory-mapped.
    """

    def __init__(self, name: str, descriptor: int, skipped: int, values: npt.NDArray[Any]) -> None:
        from tfcluster.os import libc

        self.name = name
        self.count = len(values)
        self.size = window_size(self.count)
        self.values = values
        is_native = values.dtype.isnative and values.itemsize <= 8  # then it is a type of TensorFlow
        self._dtype = values.dtype.name if is_native else "float64"  # of the numbers as tasks receive them
        self.can_be_mapped = is_native and skipped % values.itemsize == 0 and self.count >= self.size
        self._skipped = skipped // values.itemsize
        # A task that reads these random bytes in an anonymous file of this process is on the same host.
        self.token, token_descriptor = os.urandom(16), libc.memfd_create("tfcluster")
        os.write(token_descriptor, self.token)
        self._path, self.token_path = (f"/proc/{os.getpid()}/fd/{each}" for each in (descriptor, token_descriptor))
        self._elsewhere: set[str] = set()  # devices whose tasks are on another host

    def build(self) -> Computation:
        """Build the computation of the sums of any pieces of windows; see `_sum_each`.

        A further input, `values`, is a window; if it is empty, the task maps the file. A further output is the bytes of
        the token, as a task that maps the file reads them.
        """
        import tensorflow as tf

        def map_file() -> list[Any]:
            # ImmutableConst maps the file when it is executed, but reads nothing.
            constant, shape = tf.raw_ops.ImmutableConst, [self._skipped + self.count]
            return [
                constant(dtype=values.dtype, shape=shape, memory_region_name=self._path),
                constant(dtype=tf.uint8, shape=no_token.shape, memory_region_name=self.token_path),
            ]

        def window(start: Any) -> list[Any]:
            with tf.device("/device:CPU:0"):
                return [tf.slice(numbers, [start], [self.size])]

        with tf.device("/device:CPU:0"):
            values = tf.compat.v1.placeholder(self._dtype, [None])
            no_token = tf.zeros([len(self.token)], tf.uint8)
            numbers, token = tf.cond(tf.size(values) > 0, lambda: [values, no_token], map_file)
        inputs, rows = _sum_each(window, sums_of(self._dtype, self.size))
        return {**inputs, "values": values}, (rows, token)

    def sums(self, pool: SessionPool, device: str, starts: Integers, low: Integers, high: Integers) -> Any:
        """Return the sums of pieces of the windows that begin at `starts`, as rows; see `sums_of`.

        The task maps the file if it can. Otherwise this process sends it the windows.
        """
        import numpy as np
        import tensorflow as tf

        # The last window is moved back, so that it ends where the numbers end.
        moved = starts.clip(max=max(0, self.count - self.size))
        low, high = low + starts - moved, high + starts - moved
        if self.can_be_mapped and device not in self._elsewhere:
            feed = {"start": self._skipped + moved, "low": low, "high": high, "values": []}
            # A task on another machine finds no process of this number, or another file, which is too short or does
            # not have the token.
            with contextlib.suppress(tf.errors.NotFoundError, tf.errors.InternalError, tf.errors.PermissionDeniedError):
                rows, token = pool.run(device, feed)
                if token.tobytes() == self.token:
                    return rows
            self._elsewhere.add(device)
        parts = []
        for piece, start in enumerate(moved):
            values = np.zeros(self.size, self._dtype)
            read = self.values[start : start + self.size]
            values[: len(read)] = read
            feed = {"start": [0], "low": low[[piece]], "high": high[[piece]], "values": values}
            parts.append(pool.run(device, feed)[0])
        return np.concatenate(parts)


def open_numbers(file: str, column: str | None) -> MappedFile:
    """Open a file of numbers, or the upload if there is one: a .npy file, or text, which is converted.

    `file` is the path that the user gave, or `-`. `column` is the index from 0 on, or the name, of the column of a CSV
    file; None for other files.
    """
    from tfcluster.paths import LOCAL_HOST
    from tfcluster.programs.context import current_run

    run, name = current_run(), "standard input" if file == "-" else file
    path = run.upload_path or Path(file)
    if run.host != LOCAL_HOST and not path.exists():
        raise usage_error(
            f"{name}: no such file on {run.host}, the host that leads the run",
            f"To send a file of your machine: `tfcluster run mean - < {shlex.quote(name)}`.",
        )
    try:
        descriptor = os.open(path, os.O_RDONLY)
        start = os.pread(descriptor, len(_MAGIC), 0)
    except OSError as error:
        raise usage_error(f"{name}: cannot be read: {error.strerror}") from error
    if start.startswith(_ZIP):
        raise usage_error(f"{name}: is a .npz archive", "Save one array with numpy.save.")
    if start == _MAGIC and column is not None:
        raise usage_error(f"{name}: is a .npy file; --column is for CSV files")
    numbers = map_array(descriptor, name) if start == _MAGIC else convert_text(path, name, column, run.folder)
    if not numbers.count:
        raise usage_error(f"{name}: has no numbers")
    return numbers


def map_array(descriptor: int, name: str) -> MappedFile:
    """Map the numbers of an open .npy file."""
    import numpy as np

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)  # a shape whose size overflows
            mapped = np.load(f"/proc/self/fd/{descriptor}", mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OSError, OverflowError, RuntimeWarning) as error:
        raise usage_error(f"{name}: is not a complete .npy file of numbers: {error}") from error
    dtype = mapped.dtype
    if dtype.kind == "c":
        hint = "Save the real part, the imaginary part or the modulus, and take the mean of that."
        raise usage_error(f"{name}: has complex numbers ({dtype})", hint)
    if dtype.kind not in "biuf":
        raise usage_error(f"{name}: has {'a structured type' if dtype.fields else f'the type {dtype}'}, not numbers")
    assert isinstance(mapped, np.memmap)
    return MappedFile(name, descriptor, mapped.offset, mapped.reshape(-1, order="A"))


def convert_text(path: Path, name: str, column: str | None, folder: Path) -> MappedFile:
    """Convert text (one number per line, or a column of a CSV file) to a file of float64 values, and map this.

    Blank lines are skipped, and so is the header of a CSV file. Anything else in the place of a number is an error, so
    that no data is dropped silently.
    """
    import tempfile

    import numpy as np

    values = _read_lines(path, name) if column is None else _read_column(path, name, column)
    with tempfile.TemporaryFile(dir=folder) as floats:  # unnamed: deleted with this process
        while block := array("d", islice(values, _TEXT_BLOCK)):
            block.tofile(floats)
        floats.flush()
        mapped = np.memmap(floats, np.float64, "r") if floats.tell() else np.zeros(0)
        return MappedFile(name, os.dup(floats.fileno()), 0, mapped)


def _read_lines(path: Path, name: str) -> Iterator[float]:
    with path.open(encoding="utf-8-sig", newline="") as lines:
        try:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    hint = "Choose a column with --column INDEX or NAME." if "," in line else ""
                    yield _read_number(line, f"{name}:{number}", hint)
        except UnicodeDecodeError as error:
            raise usage_error(f"{name}: is neither UTF-8 text nor a .npy file") from error


def _read_column(path: Path, name: str, column: str) -> Iterator[float]:
    rows = read_rows(path, name)
    position, first = next(rows, (name, []))
    if not first:
        return
    index, is_header = _find_column(first, column, position)
    if not is_header and not all(find_numbers(first)):
        tfcluster.note(
            f"{position}: {first[index].strip()} was counted as a number, in a line that has words too; "
            "if the line is a heading, give --column the name"
        )
    for where, row in rows if is_header else chain([(position, first)], rows):
        yield _read_number(row[index], where)


def _find_column(first: list[str], column: str, position: str) -> tuple[int, bool]:
    """Find a column in the first line; return its index, and whether the line is a header with names.

    For a column by index, from 0 on, the line is a header unless the column has a number in it, see `find_numbers`. An
    index is never taken for the name of another column: a number in a line that also contains words would be lost.
    """
    names, numbers = [each.strip() for each in first], find_numbers(first)
    if column.isdecimal() and int(column) < len(names):
        return int(column), not numbers[int(column)]
    is_header = not all(numbers) or not has_finite_number(first)
    if is_header and column in names:
        return names.index(column), True
    raise usage_error(
        f"{position}: has no column {column!r}",
        f"The columns are {', '.join(names[:20])}; by number, 0 to {len(names) - 1}."
        if is_header
        else f"The first line has no names; by number, the columns are 0 to {len(names) - 1}.",
    )


def _read_number(field: str, position: str, hint: str = "") -> float:
    number = parse_number(field)
    if number is None:
        raise usage_error(f"{position}: {field.strip()[:40]!r} is not a number", hint)
    return number


def window_size(count: int) -> int:
    """Return the number of numbers in a window; as it depends on the input alone, so do the windows' sums."""
    return _LARGE if count >= _LARGE else _SMALL


def slice_sizes(slices: list[int] | str, numbers: MappedFile | RandomNumbers, devices: int) -> list[int]:
    """Return the sizes of the slices; `slices` is the user's choice, whose sizes must add up to the numbers.

    Even sizes differ by at most one; if there are fewer numbers than devices, there is a slice for each number.
    """
    count = numbers.count
    if slices == DEVICES:
        return [count]  # which is divided when it is known what each device has done
    if isinstance(slices, str):
        devices = min(count, devices)
        return [count // devices + (index < count % devices) for index in range(devices)]
    if sum(slices) != count:
        raise usage_error(
            f"the slices have {sum(slices):,} numbers together, {numbers.name} has {count:,}",
            "Give --slices sizes that add up, or leave it out for equal ones.",
        )
    return slices


class Pieces(NamedTuple):
    """Pieces of the sequence of numbers, each within one window.

    The pieces of the slices come first, in the order of the numbers. After them come the windows that a slice's bound
    cuts, once more as a whole. The whole windows are therefore the same for any slices.
    """

    starts: Integers  # position of each piece's first number
    counts: Integers  # number of numbers in each piece
    slices: list[slice]  # the pieces of each slice
    windows: Integers  # indices of the pieces that are whole windows; each number of the sequence is in one of them


def cut(sizes: Sequence[int], size: int) -> Pieces:
    """Cut slices of at least one number each at the bounds of the windows, which have `size` numbers."""
    import numpy as np

    ends = np.cumsum(sizes, dtype=np.int64)
    count = ends[-1]
    bounds = np.union1d(np.arange(0, count, size), ends)
    inner = ends[:-1]
    again = np.unique(inner[inner % size != 0] // size) * size
    starts = np.concatenate([bounds[:-1], again])
    counts = np.concatenate([np.diff(bounds), np.minimum(size, count - again)])
    whole = np.flatnonzero((starts % size == 0) & (counts == np.minimum(size, count - starts)))
    firsts = np.searchsorted(bounds, [0, *ends]).tolist()
    slices = [slice(first, end) for first, end in pairwise(firsts)]
    return Pieces(starts, counts, slices, whole[np.argsort(starts[whole])])


def combine(parts: Floats) -> tuple[int, float, float]:
    """Return the moments of the numbers of all parts together, given those of each part as a row.

    The moments are the count, the mean, and the sum of the squared deviations from the mean. The mean is the mean of
    the parts weighted by their counts, (n1 m1 + n2 m2 + …) / n. The squared deviations are the sum of those within the
    parts and of n_i (m_i - m)² between the parts: the formula of Chan, Golub and LeVeque (1979) for any number of
    parts. The sums are rounded once (math.fsum), so the result does not depend on the order of the parts.
    """
    import numpy as np

    counts, means, squares = parts.T
    count = int(counts.sum())
    with np.errstate(invalid="ignore", over="ignore"):
        mean = _sum((counts * means).tolist()) / count
        between = counts * (means - mean) * (means - mean)
    return count, mean, _sum([*squares.tolist(), *between.tolist()])


def _sum(values: Sequence[float]) -> float:
    """Return the sum, rounded once. If a value or the sum is not finite, follow IEEE 754."""
    try:
        return math.fsum(values)
    except (OverflowError, ValueError):
        return sum(values)


def explain_non_finite(numbers: MappedFile, mean: float) -> None:
    """Add notes about why the mean or the variance of all numbers is not finite."""
    import numpy as np

    counts: Counter[str] = Counter()
    firsts: dict[str, int] = {}
    for start in range(0, numbers.count, _LARGE):
        values = numbers.values[start : start + _LARGE].astype(np.float64)
        for kind, is_kind in (("NaN", np.isnan), ("infinity", np.isposinf), ("-infinity", np.isneginf)):
            if len(positions := np.flatnonzero(is_kind(values))):
                counts[kind] += len(positions)
                firsts.setdefault(kind, start + int(positions[0]))
    for kind in sorted(counts, key=firsts.__getitem__):
        tfcluster.note(
            f"{counts[kind]:,} of the {numbers.count:,} numbers {'is' if counts[kind] == 1 else 'are'} {kind}, "
            f"the first of them number {firsts[kind]:,} counted from 0: there is no finite mean"
        )
    if not counts:
        value = "variance" if math.isfinite(mean) else "sum of the numbers"
        tfcluster.note(f"the {value} is larger than the largest float64 number")


def compute(numbers: MappedFile | RandomNumbers, pieces: Pieces) -> tuple[Floats, Integers, list[str]]:
    """Compute all pieces on the devices; return their moments, their devices by index, and the task of each device."""
    import numpy as np

    starts = pieces.starts // numbers.size * numbers.size
    low = pieces.starts - starts
    high = low + pieces.counts
    sliced = pieces.slices[-1].stop
    done = [0, *pieces.counts[:sliced].cumsum().tolist()]  # without the windows that are computed once more
    rows, workers = np.empty((len(starts), 3)), np.empty(len(starts), np.int64)

    def step(device: str, first: int, count: int) -> Any:
        some = slice(first, first + count)
        return numbers.sums(pool, device, starts[some], low[some], high[some])

    as_written = isinstance(numbers, MappedFile)  # no optimizer may take the file for a constant to compute with
    with tfcluster.sessions(numbers.build, as_written=as_written, optimized=False) as pool:
        for part in pool.map(step, len(starts), unit="numbers", work=lambda count: done[min(count, sliced)]):
            some = slice(part.first, part.first + part.count)
            rows[some], workers[some] = part.value, pool.devices.index(part.device)
    pilots, totals, squares = rows.T
    with np.errstate(invalid="ignore", over="ignore"):
        shifts = totals / pieces.counts
        moments = np.column_stack([pieces.counts, pilots + shifts, np.maximum(squares - totals * shifts, 0.0)])
    return moments, workers, [task_of(device) for device in pool.devices]


def _sum_each(window: Callable[[Any], list[Any]], sums: Any) -> Computation:
    """Build the computation of the sums of any pieces, as rows, by the function `sums`; see `sums_of`.

    The inputs are arrays with one element per piece: `start`, from which `window` makes the first arguments of `sums`,
    and `low` and `high`, the piece's bounds in the window.
    """
    import tensorflow as tf

    v1 = tf.compat.v1
    start = v1.placeholder(tf.int64, [None])
    low, high = v1.placeholder(tf.int32, [None]), v1.placeholder(tf.int32, [None])
    size = tf.size(start)

    def sum_piece(index: Any, rows: Any) -> tuple[Any, Any]:
        return index + 1, rows.write(index, sums(*window(start[index]), low[index], high[index]))

    # The loop is outside the compiled function, as in map_reduce: inside it the compiler does not vectorize the code.
    rows = tf.TensorArray(tf.float64, size=size, element_shape=[3])
    _, rows = v1.while_loop(lambda index, _: index < size, sum_piece, [0, rows], parallel_iterations=1)
    return {"start": start, "low": low, "high": high}, rows.stack()


@cache
def sums_of(kind: str, size: int) -> Any:
    """Return a compiled function of a window and the bounds of a piece in it (int32 scalars).

    The window is an array of the type `kind`. If `kind` is `made`, it is four uint32 scalars instead: the low and high
    word of the generator's key, and the high and low word of the position of the window's first number, which is a
    multiple of `size`.

    The function returns three float64 values: a pilot, which is near the piece's numbers, the sum of the deviations
    from the pilot, and the sum of the squares of these deviations.
    """
    import tensorflow as tf

    # A separate function is traced once, and not for each stretch. The compiler inlines it.
    generate = tf.function(random_numbers, autograph=False)

    def mean_sums(*arguments: Any) -> Any:
        *window, low, high = arguments

        def part(first: Any, count: int, pilot: Any) -> Any:
            """Return deviations of numbers of the window from the pilot, with zeros for those outside the piece."""
            position = tf.range(count, dtype=tf.int32) + first
            if kind == _MADE:
                values = generate(*window, position)
            else:
                values = tf.cast(tf.slice(*window, [first], [count]), tf.float64)
            return tf.where((position >= low) & (position < high), values - pilot, tf.zeros([], tf.float64))

        if kind == _MADE:
            pilot = tf.constant(0.5, tf.float64)
        else:
            count = size // _PILOT
            near = part(tf.minimum(low, size - count), count, 0.0)
            pilot = tf.reduce_sum(near) / tf.cast(tf.minimum(high - low, count), tf.float64)
        total = squares = tf.zeros([], tf.float64)
        length = size // _STRETCHES
        for first in range(0, size, length):
            deviation = part(first, length, pilot)
            total, squares = total + deviation, squares + deviation * deviation
        lanes = (tf.reduce_sum(tf.reshape(each, [-1, _LANES]), axis=0) for each in (total, squares))
        return tf.stack([pilot, *map(tf.reduce_sum, lanes)])

    # The name contains everything that the body depends on, because a server caches compiled functions by name.
    mean_sums.__name__ = f"mean_sums_{kind}_{size}"
    return tf.function(mean_sums, jit_compile=True, autograph=False)


def random_numbers(key_low: Any, key_high: Any, first_high: Any, first_low: Any, position: Any) -> Any:
    """Return the numbers at positions of a window, multiples of 2^-53 in [0, 1); see `sums_of` for the arguments."""
    import tensorflow as tf

    from tfcluster.programs.threefry import threefry_2x32

    counter = (tf.cast(position, tf.uint32) + first_low, tf.fill(position.shape, first_high))
    upper, lower = threefry_2x32((key_low, key_high), counter)
    upper = tf.bitwise.right_shift(upper, tf.constant(5, tf.uint32))
    lower = tf.bitwise.right_shift(lower, tf.constant(6, tf.uint32))
    # Convert through int32, for which the conversion is a single vector instruction. No operation rounds.
    upper, lower = (tf.cast(tf.cast(word, tf.int32), tf.float64) for word in (upper, lower))
    return (upper * 2.0**26 + lower) * 2.0**-53


def command() -> click.Command:
    """Return the command with the options of the program, whose values are the parameters of `run`."""
    import click

    from tfcluster.cli.options import WholeNumber, drawn_seed_option

    @click.command(
        short_help="Mean and variance of the numbers in a file, in slices of any sizes.",
        epilog="Example: tfcluster run mean numbers.npy --slices 10,30,961",
    )
    @click.argument(
        "file", required=False, type=click.Path(exists=True, dir_okay=False, allow_dash=True), callback=_find_file
    )
    @click.option(
        "--random",
        type=WholeNumber(1, RANDOM_NUMBERS_MAX),
        metavar="N",
        is_eager=True,  # FILE's callback reads it
        help="Generate N random numbers, uniform in [0, 1), instead of reading a file.",
    )
    @click.option(
        "--column", metavar="INDEX|NAME", help="The column of a CSV file, by its index from 0 on or by its name."
    )
    @click.option(
        "--slices",
        callback=_parse_sizes,
        default=EVEN,
        show_default=True,
        metavar="N,N,…|even|devices",
        help="Slice sizes, such as 10,30,961; even: one slice for each device, of about equal size; "
        "devices: one for each device, with as many numbers as it processed.",
    )
    @drawn_seed_option
    def main(file: str | None, random: int | None, column: str | None, slices: list[int] | str, seed: int) -> None:
        """Compute the mean and the population's variance of the numbers in FILE, which the tasks' devices share in
        slices.

        FILE is a .npy array of any shape and type of real numbers, text with one number a line, or a CSV file
        with --column; - is standard input. Tasks on this machine map a .npy file, which can be larger than the memory;
        sums are in float64. The result depends on the numbers alone, not on the slices or the devices that share the
        work.
        """
        run(file, random, column, slices, seed)

    return main


def _parse_sizes(context: click.Context, option: click.Parameter, value: str) -> list[int] | str:
    """Parse comma-separated sizes, or one of the words `even` and `devices`."""
    from tfcluster.cli.options import WholeNumber

    if value in (EVEN, DEVICES):
        return value
    return [WholeNumber(1, 2**62).convert(size.strip(), option, context) for size in value.split(",")]


def _find_file(context: click.Context, argument: click.Parameter, file: str | None) -> str | BinaryIO | None:
    """Return FILE's absolute path, or FILE opened to be uploaded if it is not a regular file; None with --random."""
    import click

    from tfcluster.cli.options import InputFile

    if (file is None) == (context.params["random"] is None):
        raise click.UsageError("Give either FILE (- for standard input) or --random N.")
    if file is None:
        return None
    if file == "-" or not stat.S_ISREG(os.stat(file).st_mode):  # tasks cannot map the data of a pipe into memory
        return InputFile().convert(file, None, context)
    return os.path.abspath(file)


def summary(result: dict[str, Any], seconds: float) -> list[Text]:
    """Format the result: the mean, the variance, and the mean of each slice."""
    from tfcluster.core.text import pluralize
    from tfcluster.core.topology import short_task_name
    from tfcluster.ui.console import Text
    from tfcluster.ui.format import format_duration, format_rate

    count, shards = result["count"], result["shards"]
    shown = [
        Text(f"  {short_task_name(shard['task'])}: {_number(shard['mean'])} of {pluralize(shard['count'], 'number')}")
        for shard in shards[:_SLICES_SHOWN]
    ]
    if len(shards) > _SLICES_SHOWN:
        shown.append(Text(f"  and {len(shards) - _SLICES_SHOWN:,} more, which -o json shows"))
    return [
        Text.assemble(
            ("mean = ", "bold"),
            (_number(result["mean"]), "bold green"),
            f", variance {_number(result['variance'])} (the population's), of {pluralize(count, 'number')}",
        ),
        Text(f"{format_duration(seconds)}, {format_rate(count / seconds if seconds else 0.0, 'numbers')}"),
        Text(f"{pluralize(len(shards), 'slice')}, mean{'' if len(shards) == 1 else 's'}:"),
        *shown,
    ]


def _number(value: float | None) -> str:
    """Format a number with all the digits that distinguish it; None, which a note explains, as not finite."""
    return "not finite" if value is None else repr(value)


if __name__ == "__main__":
    command()()
