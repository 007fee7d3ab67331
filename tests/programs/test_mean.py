"""Mean and variance against NumPy: files of every type, text, what is not finite, what is no input at all; options."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfcluster
from tests.conftest import mostly_slow
from tfcluster.errors import ClusterError
from tfcluster.programs import mean
from tfcluster.programs.context import Context
from tfcluster.programs.mean import MappedFile, RandomNumbers, open_numbers, random_numbers, summary, sums_of
from tfcluster.programs.threefry import threefry_2x32

WINDOW = 1 << 13
#: NumPy's names of the types of numbers.
KINDS = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", ">f4", ">i8"]

LocalRun = Callable[[int], Context]


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The least that a compiled function takes, so that little input has many windows."""
    monkeypatch.setattr(mean, "window_size", lambda count: WINDOW)


def run(context: Context, path: Path | None, **parameters: Any) -> dict[str, Any]:
    given: dict[str, Any] = {"random": None, "seed": 1, "column": None, "slices": "even", **parameters}
    mean.run(file=None if path is None else str(path), **given)
    result: dict[str, Any] = context.result
    return result


def save(path: Path, array: Any) -> Path:
    np.save(path / "a.npy", array)
    return path / "a.npy"


def refused(context: Context, path: Path, **parameters: Any) -> str:
    with pytest.raises(ClusterError) as caught:
        run(context, path, **parameters)
    assert caught.value.exit_code == 2
    return caught.value.message


@pytest.mark.parametrize("kind", mostly_slow(KINDS, fast=["?", ">f4"]))
def test_every_type_of_number(local_run: LocalRun, tmp_path: Path, kind: str) -> None:
    values = np.random.default_rng(3).normal(50, 30, 2 * WINDOW + 101).clip(0, 100).astype(kind)
    result = run(local_run(1), save(tmp_path, values))
    assert result["mean"] == pytest.approx(np.mean(values, dtype=np.float64), rel=1e-14)
    assert result["variance"] == pytest.approx(np.var(values, dtype=np.float64), rel=1e-13)
    assert result["count"] == len(values)


@pytest.mark.parametrize("count", mostly_slow([1, 2, 1009, 5 * WINDOW + 7], fast=[1009]))
def test_the_bits_depend_on_the_numbers_alone(local_run: LocalRun, tmp_path: Path, count: int) -> None:
    values = np.random.default_rng(4).normal(1e6, 1, count)
    path = save(tmp_path, values)
    third = count // 3
    ways: list[tuple[int, list[int] | str]] = [(1, "even"), (2, "devices")]
    ways += [(2, [third, 1, count - third - 1])] if third else []
    moments = []
    for devices, slices in ways:
        context = local_run(devices)
        result = run(context, path, slices=slices)
        moments.append((result["mean"], result["variance"]))
        assert sum(shard["count"] for shard in result["shards"]) == count
        assert sum(stats["numbers"] for stats in context.device_stats.values()) == count
        weighted = math.fsum(shard["count"] * shard["mean"] for shard in result["shards"]) / count
        assert weighted == pytest.approx(result["mean"], rel=1e-15)
    assert len(set(moments)) == 1
    assert moments[0][0] == pytest.approx(math.fsum(values) / count, rel=1e-15)
    assert moments[0][1] == pytest.approx(np.var(values), rel=1e-9)


@pytest.mark.slow
def test_a_file_that_no_task_can_map_gives_the_same_bits(
    local_run: LocalRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(tmp_path, np.random.default_rng(5).normal(size=3 * WINDOW + 17).astype(np.float32))
    mapped = run(local_run(2), path, slices=[1000, 2 * WINDOW, WINDOW - 983])

    def on_other_machine(file: str, column: str | None) -> MappedFile:
        numbers = open_numbers(file, column)
        numbers.token = bytes(16)
        return numbers

    def without_such_a_process(file: str, column: str | None) -> MappedFile:
        numbers = open_numbers(file, column)
        numbers.token_path = "/proc/0/fd/0"
        return numbers

    for opened in (on_other_machine, without_such_a_process):
        monkeypatch.setattr(mean, "open_numbers", opened)
        assert run(local_run(2), path, slices=[1000, 2 * WINDOW, WINDOW - 983]) == mapped


def test_slices_have_the_means_of_their_numbers_and_an_outlier_loses_no_precision(
    local_run: LocalRun, tmp_path: Path
) -> None:
    values = np.arange(1001.0)
    shards = run(local_run(1), save(tmp_path, values), slices=[10, 30, 961])["shards"]
    assert shards == [
        {"task": "/job:local/task:0", "count": 10, "mean": 4.5},
        {"task": "/job:local/task:0", "count": 30, "mean": 24.5},
        {"task": "/job:local/task:0", "count": 961, "mean": 520.0},
    ]
    values = np.random.default_rng(7).normal(size=WINDOW)
    values[0] = 1e9
    result = run(local_run(1), save(tmp_path, values))
    centre = math.fsum(values) / WINDOW
    assert result["variance"] == pytest.approx(math.fsum((values - centre) ** 2) / WINDOW, rel=1e-12)


@pytest.mark.slow
def test_arrays_of_any_shape(local_run: LocalRun, tmp_path: Path) -> None:
    values = np.random.default_rng(6).normal(size=(101, 211))
    for array in (values, np.asfortranarray(values), values[:, :1], values[0, 0]):
        result = run(local_run(2), save(tmp_path, array))
        assert result["mean"] == pytest.approx(array.mean(), rel=1e-12)
        assert result["count"] == array.size


@pytest.mark.slow
def test_constant_numbers_have_no_variance(local_run: LocalRun, tmp_path: Path) -> None:
    result = run(local_run(2), save(tmp_path, np.full(3 * WINDOW + 1, 0.1)))
    assert (result["mean"], result["variance"]) == (0.1, pytest.approx(0.0, abs=1e-30))


@pytest.mark.slow
def test_non_finite_numbers_are_noted(local_run: LocalRun, tmp_path: Path) -> None:
    values = np.ones(2 * WINDOW + 5)
    values[[WINDOW + 3, 2 * WINDOW + 1]] = np.nan
    values[7] = np.inf
    context = local_run(2)
    result = run(context, save(tmp_path, values), slices=[7, 1, WINDOW, WINDOW - 3])
    assert (result["mean"], result["variance"]) == (None, None)
    assert [shard["mean"] for shard in result["shards"]] == [1.0, None, None, None]
    where = "counted from 0: there is no finite mean"
    assert context.notes == [
        f"1 of the 16,389 numbers is infinity, the first of them number 7 {where}",
        f"2 of the 16,389 numbers are NaN, the first of them number {WINDOW + 3:,} {where}",
    ]


@pytest.mark.parametrize(
    ("values", "mean", "what"),
    [([1.5e308, 1.7e308], None, "sum of the numbers"), ([1e200, -1e200], 0.0, "variance")],
)
def test_what_is_too_large_for_a_float64_is_noted(
    local_run: LocalRun, tmp_path: Path, values: list[float], mean: float | None, what: str
) -> None:
    context = local_run(1)
    result = run(context, save(tmp_path, np.array(values)), slices=[1, 1])
    assert (result["mean"], result["variance"]) == (mean, None)
    assert context.notes == [f"the {what} is larger than the largest float64 number"]


@pytest.mark.slow
def test_random_numbers_equal_those_of_numpy(local_run: LocalRun) -> None:
    count, seed = 2 * WINDOW + 5, 2**40 + 7
    places = np.arange(count, dtype=np.uint32)
    key = (tf.constant(seed & 0xFFFFFFFF, tf.uint32), tf.constant(seed >> 32, tf.uint32))
    zero = tf.constant(0, tf.uint32)
    high, low = (word.numpy() for word in threefry_2x32(key, (tf.constant(places), tf.zeros([count], tf.uint32))))
    values = ((high >> 5).astype(np.float64) * 2**26 + (low >> 6)) / 2**53
    assert random_numbers(*key, zero, zero, tf.constant(places)).numpy().tolist() == values.tolist()
    for devices in (1, 3):
        result = run(local_run(devices), None, random=count, seed=seed)
        assert result["mean"] == pytest.approx(values.mean(), rel=1e-14)
        assert result["variance"] == pytest.approx(values.var(), rel=1e-12)


def test_random_numbers_at_positions_beyond_32_bits(local_run: LocalRun) -> None:
    seed = 2**40 + 7
    windows = np.array([2**32 // WINDOW - 1, 2**32 // WINDOW, 5 * 2**32 // WINDOW + 3])
    low, high = np.array([0, 5, 0]), np.array([WINDOW, 4099, WINDOW])
    (device,) = local_run(1).devices
    numbers = RandomNumbers(2**36, seed)
    with tfcluster.sessions(numbers.build, optimized=False) as pool:
        rows = numbers.sums(pool, device, windows * WINDOW, low, high)
    key = (tf.constant(seed & 0xFFFFFFFF, tf.uint32), tf.constant(seed >> 32, tf.uint32))
    for (pilot, total, squares), window, first, last in zip(rows, windows, low, high, strict=True):
        places = np.arange(window * WINDOW + first, window * WINDOW + last)
        words = (tf.constant(word.astype(np.uint32)) for word in (places & 0xFFFFFFFF, places >> 32))
        upper, lower = (word.numpy() for word in threefry_2x32(key, tuple(words)))
        values = ((upper >> 5).astype(np.float64) * 2**26 + (lower >> 6)) / 2**53
        assert pilot + total / len(values) == pytest.approx(values.mean(), rel=1e-13)
        assert squares == pytest.approx(((values - pilot) ** 2).sum(), rel=1e-12)


@pytest.mark.parametrize("is_mapped", mostly_slow([True, False], fast=[True]))
@pytest.mark.parametrize(
    ("kind", "count"), [("u1", 2**32 + 5), pytest.param("f8", 2**31 + 2**20 + 5, marks=pytest.mark.slow)]
)
def test_file_positions_beyond_31_and_32_bits(
    local_run: LocalRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_mapped: bool, kind: str, count: int
) -> None:
    path = tmp_path / "a.npy"
    # A file of holes: only these few numbers take place on the disk.
    array = np.lib.format.open_memmap(path, "w+", kind, (count,))
    bounds = [2**28, 2**29, 2**31, count]  # 2 GiB and 4 GiB into the file, and as many elements
    places = [place for bound in bounds for place in (bound - 3, bound - 1, bound) if place < count]
    array[places] = np.arange(1, len(places) + 1)
    array.flush()
    (device,) = local_run(1).devices
    numbers = open_numbers(str(path), None)
    # Only the one way is open.
    monkeypatch.setattr(numbers, *(("values", None) if is_mapped else ("can_be_mapped", False)))
    with tfcluster.sessions(numbers.build, as_written=True) as pool:
        for start in sorted({place // WINDOW * WINDOW for place in places}):
            size = min(WINDOW, count - start)
            ((pilot, total, _),) = numbers.sums(pool, device, *(np.array([each]) for each in (start, 0, size)))
            values = [number for number, place in enumerate(places, 1) if start <= place < start + size]
            assert pilot * size + total == pytest.approx(sum(values))


@pytest.mark.slow
def test_pieces_of_a_window() -> None:
    values = np.random.default_rng(8).normal(size=WINDOW)
    for low, high in ((0, 1), (0, WINDOW), (WINDOW - 1, WINDOW), (5, 6), (17, 4099)):
        pilot, total, squares = sums_of("float64", WINDOW)(values, low, high).numpy()
        inside = values[low:high]
        assert pilot == pytest.approx(values[low : min(high, low + WINDOW // 64)].mean())
        assert total == pytest.approx((inside - pilot).sum(), abs=1e-10)
        assert squares == pytest.approx(((inside - pilot) ** 2).sum(), abs=1e-10)


def test_a_long_text_is_mapped_by_the_tasks(local_run: LocalRun, tmp_path: Path) -> None:
    values = np.random.default_rng(9).normal(size=2 * WINDOW + 5)
    path = tmp_path / "a.txt"
    path.write_text("".join(f"{value!r}\n" for value in values.tolist()))
    assert run(local_run(2), path) == run(local_run(2), save(tmp_path, values))


def test_files_without_numbers_are_rejected(local_run: LocalRun, tmp_path: Path) -> None:
    context = local_run(1)
    for array, message in (
        (np.zeros(3, complex), "has complex numbers (complex128)"),
        (np.array(["a"]), "has the type <U1, not numbers"),
        (np.zeros(2, [("x", "f4")]), "has a structured type, not numbers"),
        (np.zeros(2, "M8[s]"), "has the type datetime64[s], not numbers"),
        (np.zeros((3, 0)), "has no numbers"),
    ):
        path = save(tmp_path, array)
        assert refused(context, path) == f"{path}: {message}"
    np.save(tmp_path / "a.npy", np.array([None]), allow_pickle=True)
    assert "is not a complete .npy file of numbers" in refused(context, path)
    content = save(tmp_path, np.zeros(1000)).read_bytes()
    header = repr({"descr": "<f8", "fortran_order": False, "shape": (2**62, 2**62)}).encode().ljust(117) + b"\n"
    too_many = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    for part in (content[:7], content[:20], content[:500], too_many):
        path.write_bytes(part)
        assert "is not a complete .npy file of numbers" in refused(context, path)
    np.savez(tmp_path / "b.npz", np.zeros(3))
    assert refused(context, tmp_path / "b.npz").endswith("is a .npz archive")
    path.write_bytes(bytes(range(256)))
    assert refused(context, path).endswith("is neither UTF-8 text nor a .npy file")
    assert "cannot be read" in refused(context, tmp_path / "missing")
    assert "cannot be read" in refused(context, tmp_path)
    save(tmp_path, np.zeros(3))
    assert "--column is for CSV files" in refused(context, path, column="a")
    assert "the slices have 2 numbers together" in refused(context, path, slices=[1, 1])


def test_a_file_that_another_host_lacks_names_the_host(local_run: LocalRun, tmp_path: Path) -> None:
    context = local_run(1)
    context.host = "alpha"
    with pytest.raises(ClusterError) as caught:
        run(context, tmp_path / "missing")
    assert caught.value.message == f"{tmp_path}/missing: no such file on alpha, the host that leads the run"
    assert f"`tfcluster run mean - < {tmp_path}/missing`" in caught.value.hint


def test_an_upload_is_called_as_the_user_does(local_run: LocalRun, tmp_path: Path) -> None:
    context = local_run(1)
    context.upload_path = tmp_path / "upload"
    context.upload_path.write_text("1\n2\n")
    assert run(context, Path("-"))["mean"] == 1.5
    context.upload_path.write_text("1\nzwei\n")
    for name, shown in (("-", "standard input"), ("/dev/fd/63", "/dev/fd/63")):
        assert refused(context, Path(name)) == f"{shown}:2: 'zwei' is not a number"


def test_what_cannot_be_mapped_is_uploaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("1\n2\n")
    with (tmp_path / "a.txt").open() as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert mean.command().make_context("mean", ["-"]).params["file"] is stdin.buffer
    reader, writer = os.pipe()
    os.write(writer, b"1\n")
    with mean.command().make_context("mean", [f"/dev/fd/{reader}"]) as context:
        os.close(writer)
        file = context.params["file"]
        assert (file.name, file.read()) == (f"/dev/fd/{reader}", b"1\n")
    assert file.closed
    os.close(reader)


def test_the_summary_has_all_digits_and_at_most_16_slices() -> None:
    shards = [{"task": f"/job:worker/task:{index}", "count": index + 1, "mean": 0.5} for index in range(20)]
    result = {"mean": 1 / 3, "variance": None, "count": 210, "shards": shards}
    lines = [line.plain for line in summary(result, 2.0)]
    assert lines[:4] == [
        "mean = 0.3333333333333333, variance not finite (the population's), of 210 numbers",
        "2.0s, 105 numbers/s",
        "20 slices, means:",
        "  worker:0: 0.5 of 1 number",
    ]
    assert lines[-2:] == ["  worker:15: 0.5 of 16 numbers", "  and 4 more, which -o json shows"]
