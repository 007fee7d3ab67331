"""The data: what is made from a seed, what a CSV file may be, and the closed form against NumPy's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tfcluster.errors import ClusterError, ExitCode
from tfcluster.programs.linear import Points, make_points, read_csv


def read(folder: Path, text: str | bytes) -> Points:
    path = folder / "stored"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_csv(path, "mine.csv")


def test_synthetic_points_are_around_the_line_and_those_with_equal_x_have_no_closed_form() -> None:
    points = make_points(7)
    assert np.array_equal(points.x, np.linspace(-1, 1, 101))
    assert np.array_equal(points.y, make_points(7).y)
    assert not np.array_equal(points.y, make_points(8).y)
    noise = np.concatenate([make_points(seed).y for seed in range(200)]) - np.tile(2 * points.x + 0.2, 200)
    # 20,200 values: five standard errors of the mean and of the deviation.
    assert abs(noise.mean()) < 5 * 0.4 / 20_200**0.5
    assert abs(noise.std() - 0.4) < 5 * 0.4 / 40_400**0.5
    assert Points(np.array([1.0, 1.0]), np.array([1.0, 2.0])).least_squares() is None


@pytest.mark.parametrize("seed", range(5))
def test_the_closed_form_equals_that_of_numpy(seed: int) -> None:
    points = make_points(seed)
    w, b = np.polyfit(points.x, points.y, 1)
    assert points.least_squares() == pytest.approx({"w": w, "b": b})
    assert points.loss(w, b) == pytest.approx(float(np.var(points.y - w * points.x - b)))
    shifted = Points(points.x + 1e6, points.y)
    assert shifted.least_squares() == pytest.approx({"w": w, "b": b - w * 1e6}, rel=1e-6)


@pytest.mark.parametrize(
    "text",
    [
        "x,y\n1,2\n3,4.5\n",
        "1,2\n3,4.5\n",
        "a,b\n1,2\n3,4.5\n",
        "a,nan\n1,2\n3,4.5\n",
        "1_000,b\n1,2\n3,4.5\n",
        "id, Y ,X\n7,2,1\n8,4.5,3\n",
        "\ufeffx,y\r\n1,2\r\n\r\n3,4.5",
        '"x","y","note"\n1,2,"a, b"\n3,4.5,\n',
        " 1 , 2 \n \n3e0,45e-1\n",
    ],
)
def test_a_csv_file(tmp_path: Path, text: str) -> None:
    points = read(tmp_path, text)
    assert (points.x.tolist(), points.y.tolist()) == ([1.0, 3.0], [2.0, 4.5])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "mine.csv: no points in it"),
        ("x,y\n\n", "mine.csv: no points in it"),
        ("x\n1\n", "mine.csv:1: expected the two columns x and y, found one column"),
        ("x,y\n1,2\n3\n", "mine.csv:3: has 1 columns, the first line has 2"),
        ("x,y\n1,2\n\n3,4,5\n", "mine.csv:4: has 3 columns, the first line has 2"),
        ("1,2\n3,many\n", "mine.csv:2: 'many' in column 2 is not a finite number"),
        ("1,2\nnan,1\n", "mine.csv:2: 'nan' in column 1 is not a finite number"),
        ("y,x\n1,1e999\n", "mine.csv:2: '1e999' in column 2 is not a finite number"),
        (b"\xff\xfe1\x00", "mine.csv: is not UTF-8 text"),
        ("x,y\n1," + "2" * 200_000, "mine.csv:2: is not a valid CSV row: field larger than field limit"),
        ('x,y,note\n1,2,"a\n3,4,b\n5,6,c\n', "mine.csv:2: is not a valid CSV row: unexpected end of data"),
        ('x,y\n1,"2"3\n', "mine.csv:2: is not a valid CSV row: "),
        ("x,y\n1,2\n,\n", "mine.csv:3: '' in column 1 is not a finite number"),
        ("nan,3\n1,2\n", "mine.csv:1: 'nan' in column 1 is not a finite number"),
        ("nan,nan\n1,2\n", "mine.csv:1: 'nan' in column 1 is not a finite number"),
        ("1_000,2_000\n1,2\n", "mine.csv:1: '1_000' in column 1 is not a finite number"),
        ("1,2\n3,1_000\n", "mine.csv:2: '1_000' in column 2 is not a finite number"),
    ],
)
def test_invalid_csv_files(tmp_path: Path, text: str | bytes, message: str) -> None:
    with pytest.raises(ClusterError) as caught:
        read(tmp_path, text)
    assert caught.value.message.startswith(message)
    assert caught.value.exit_code is ExitCode.USAGE
    assert caught.value.hint
