"""What programs read of text: each file of this module with each column of `mean` and as the points of `linear`.

tests/golden/text-files.txt has the numbers, notes and errors; `pytest --update` rewrites it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from tests.goldens import golden
from tfcluster.errors import ClusterError
from tfcluster.programs.context import Context
from tfcluster.programs.linear import read_csv
from tfcluster.programs.mean import open_numbers

LocalRun = Callable[[int], Context]

#: The content of files, by the columns that `mean` is asked for; None for all of a file with a number in each line.
FILES: dict[str | bytes, list[str | None]] = {
    # Numbers, whatever surrounds them.
    "1\n2\n4.5\n": [None, "0"],
    "\ufeff 1e3 \r\n\r\n-2\r\n": [None],
    "7": [None],
    "": [None, "b"],
    "1\n\nx\n": [None],
    "1\n1_000\n": [None],
    "1\n2,3\n": [None],
    "value\n1\n": [None],
    # With and without a heading; what may be a number in the first line must not be lost.
    "1,2\n3,4.5\n": ["0", "1", "2"],
    "a,b\n1,2\n\n3,4\n": ["b", "0", "c", "2"],
    "x,y\n\n": ["y"],
    'name,"the value"\n"x, y",2\nz,"4"\n': ["the value"],
    "2020,b\n1,2\n": ["2020"],
    "a,2020\n1,2\n": ["0"],
    "x,nan\n1,2\n": ["nan"],
    "x,inf\n1,2\n": ["1"],
    "x,1_000\n1,2\n": ["1"],
    "-inf,3\n1,2\n": ["0"],
    "inf\n1\n": ["0", "inf"],
    "nan,nan\n1,2\n": ["0"],
    "1_000,2_000\n1,2\n": ["0"],
    "x,1,3\ny,2,9\n": ["1"],
    "1,a\n2,b\n": ["0", "1"],
    # The points of `linear` are in the columns x and y, or in the first two.
    "id, Y ,X\n7,2,1\n8,4.5,3\n": ["X"],
    "\ufeffx,y\r\n1,2\r\n\r\n3,4.5": ["x"],
    '"x","y","note"\n1,2,"a, b"\n3,4.5,\n': ["y"],
    " 1 , 2 \n \n3e0,45e-1\n": ["0"],
    # What is not a number, and what is no CSV.
    "1,2\n3,many\n": ["1"],
    "1,2\nnan,1\n": ["0"],
    "y,x\n1,1e999\n": ["x"],
    "1,2\n3,1_000\n": ["1"],
    "1,2\nx,3\n": ["0"],
    "a,b\n1,2\n3\n": ["b"],
    "x,y\n1,2\n\n3,4,5\n": ["x"],
    "a,b\n1,2\n3,\n": ["b"],
    "x,y\n1,2\n,\n": ["x"],
    '1,"several\nlines"\n2,b\n': ["0"],
    'x,y,name\n1,2,"a\n2,3,b\n3,4,c\n': ["x"],
    'x,y,name\n1,2,a\n2,3,"b"c\n': ["x"],
    "x,y\n1," + "2" * 200_000: ["x"],
    b"\xff\xfe1\x00": [None, "0"],
}


def column_in(path: Path, column: str | None) -> list[float]:
    """Return the numbers of a column."""
    numbers: list[float] = open_numbers(str(path), column).values.tolist()
    return numbers


def points_in(path: Path) -> list[float]:
    """Return the coordinates of all points: x and y of the first one, and so on."""
    points = read_csv(path, "FILE")
    numbers: list[float] = np.column_stack([points.x, points.y]).ravel().tolist()
    return numbers


def lines_of(text: str | bytes, columns: list[str | None], path: Path, local_run: LocalRun) -> Iterator[str]:
    """Yield what the programs say of a file."""
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    yield f"{text!r:.60}"

    def describe(read: Callable[..., list[float]], *asked: str | None) -> str:
        try:
            return str(read(path, *asked))
        except ClusterError as error:
            shown = f"error {error.exit_code.value}: {error.message}{error.hint and f' ({error.hint})'}"
            return shown.replace(str(path), "FILE")

    for column in columns:
        context = local_run(1)
        found = describe(column_in, column)
        yield f"    mean{'' if column is None else f' of {column}'}: {found}"
        yield from (f"        note: {note.replace(str(path), 'FILE')}" for note in context.notes)
    yield f"    linear: {describe(points_in)}"


def test_what_programs_read_of_text(local_run: LocalRun, tmp_path: Path) -> None:
    path = tmp_path / "file"
    lines = [line for text, columns in FILES.items() for line in lines_of(text, columns, path, local_run)]
    assert [*tmp_path.iterdir()] == [path], "nothing remains in the run's folder"
    golden("text-files.txt", "\n".join(lines))
