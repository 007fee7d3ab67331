"""Strict reader of CSV files, which reports malformed rows instead of dropping data silently."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from tfcluster.errors import usage_error


def read_rows(source: Path, name: str, hint: str = "") -> Iterator[tuple[str, list[str]]]:
    """Yield the rows of a CSV file without blank lines, each as its position `NAME:LINE` and its fields.

    Raises ClusterError if the file is not UTF-8 text, a row does not have as many columns as the first, or a quote is
    misplaced: an unclosed one would turn the rest of the file into a single field.
    """
    width = None
    with source.open(encoding="utf-8-sig", newline="") as lines:
        rows = csv.reader(lines, strict=True)
        while True:
            where = f"{name}:{rows.line_num + 1}"
            try:
                row = next(rows, None)
            except UnicodeDecodeError as error:
                raise usage_error(f"{name}: is not UTF-8 text", hint) from error
            except csv.Error as error:
                message = f"{where}: is not a valid CSV row: {error}"
                raise usage_error(message, hint) from error
            if row is None:
                return
            if not row or (len(row) == 1 and row[0].isspace()):
                continue
            if width is None:
                width = len(row)
            if len(row) != width:
                message = f"{where}: has {len(row)} columns, the first line has {width}"
                raise usage_error(message, hint)
            yield where, row


def is_number(field: str) -> bool:
    """Return whether a field is a number, finite or not."""
    try:
        float(field)
    except ValueError:
        return False
    return True
