"""Numbers from text, one a line or a column of a CSV file, written as float64 values that tasks can map."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO

from tfcluster.errors import ClusterError, ExitCode
from tfcluster.programs.csv_rows import is_number, read_rows

# Numbers converted at once: few enough that memory does not matter, enough that the calls do not.
_AT_ONCE = 1 << 16


def write_floats(source: Path, name: str, column: str | None, target: BinaryIO) -> list[str]:
    """Convert a text file.

    Blank lines are passed over, and so is a heading of a CSV file. Anything else that is not a number where one should
    be is an error: nothing is left out silently.

    Args:
        source: The text, in UTF-8.
        name: What the user calls it.
        column: The column's index from 0 on, or its name; None for a file with one number a line.
        target: The file to write to: float64 values in this machine's order.

    Returns:
        Notes: what the user should know of how the file was understood.

    Raises:
        ClusterError: A line has no number there, or another number of columns than the first; or the text cannot be
            read or is none.
        OSError: The target cannot be written.
    """
    values, notes = (_lines(source, name), []) if column is None else _column(source, name, column)
    while block := array("d", islice(values, _AT_ONCE)):
        block.tofile(target)
    target.flush()
    return notes


def _lines(source: Path, name: str) -> Iterator[float]:
    with source.open(encoding="utf-8-sig", newline="") as lines:
        try:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    hint = "Choose a column with --column INDEX or NAME." if "," in line else ""
                    yield _number(line, f"{name}:{number}", hint)
        except UnicodeDecodeError as error:
            raise _bad(f"{name}: is neither text in UTF-8 nor a .npy file") from error


def _column(source: Path, name: str, column: str) -> tuple[Iterator[float], list[str]]:
    """The numbers of a column, and notes."""
    rows = read_rows(source, name)
    where, first = next(rows, (name, []))
    if not first:
        return iter(()), []
    at, is_heading = _find_column(first, column, where)
    notes = []
    if not is_heading and not all(is_number(field) for field in first):
        notes.append(
            f"{where}: {first[at].strip()} was counted as a number, in a line that has words too; "
            "if the line is a heading, give --column the name"
        )
    numbers = rows if is_heading else chain([(where, first)], rows)
    return (_number(row[at], where) for where, row in numbers), notes


def _find_column(first: list[str], column: str, where: str) -> tuple[int, bool]:
    """The index of a column, and whether the first line is a heading, one of names.

    By index, the line is a heading unless there is a number in the column, and an index is never taken for the name of
    another column: else a number in a line that also has words were lost.
    """
    names = [each.strip() for each in first]
    if column.isdecimal() and int(column) < len(names):
        return int(column), not is_number(names[int(column)])
    is_heading = not all(is_number(name) for name in names)
    if is_heading and column in names:
        return names.index(column), True
    raise _bad(
        f"{where}: has no column {column!r}",
        f"The columns are {', '.join(names[:20])}; by number, 0 to {len(names) - 1}."
        if is_heading
        else f"The first line has no names; by number, the columns are 0 to {len(names) - 1}.",
    )


def _number(field: str, where: str, hint: str = "") -> float:
    try:
        return float(field)
    except ValueError:
        raise _bad(f"{where}: {field.strip()[:40]!r} is not a number", hint) from None


def _bad(message: str, hint: str = "") -> ClusterError:
    return ClusterError(message, hint=hint, exit_code=ExitCode.USAGE)
