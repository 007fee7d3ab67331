"""Rows of CSV files, read so that nothing is left out silently."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from tfcluster.errors import ClusterError, ExitCode


def read_rows(source: Path, name: str, hint: str = "") -> Iterator[tuple[str, list[str]]]:
    """The rows of a CSV file, all of the same length; blank lines are passed over.

    Args:
        source: The file, text in UTF-8.
        name: What the user calls it.
        hint: What the user can do where it is none.

    Yields:
        Where the row begins, as `NAME:LINE`, and its fields.

    Raises:
        ClusterError: It is no text, a row has another number of columns than the first, or quotes are where none may
            be: one that is never closed would make a single field of all the rest.
    """
    width = None
    with source.open(encoding="utf-8-sig", newline="") as lines:
        rows = csv.reader(lines, strict=True)
        while True:
            where = f"{name}:{rows.line_num + 1}"
            try:
                row = next(rows, None)
            except UnicodeDecodeError as error:
                raise ClusterError(f"{name}: is no text in UTF-8", hint=hint, exit_code=ExitCode.USAGE) from error
            except csv.Error as error:
                message = f"{where}: is no row of a CSV file: {error}"
                raise ClusterError(message, hint=hint, exit_code=ExitCode.USAGE) from error
            if row is None:
                return
            if not row or (len(row) == 1 and row[0].isspace()):
                continue
            if width is None:
                width = len(row)
            if len(row) != width:
                message = f"{where}: has {len(row)} columns, the first line has {width}"
                raise ClusterError(message, hint=hint, exit_code=ExitCode.USAGE)
            yield where, row


def is_number(field: str) -> bool:
    """Whether a field is a number, finite or not."""
    try:
        float(field)
    except ValueError:
        return False
    return True
