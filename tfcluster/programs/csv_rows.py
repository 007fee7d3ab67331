"""Strict reader of CSV files, which reports malformed rows instead of dropping data silently."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
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


def parse_number(field: str) -> float | None:
    """Return the number in a field, finite or not; None if there is none, as in `1_000`, which only Python reads."""
    try:
        return None if "_" in field else float(field)
    except ValueError:
        return None


def find_numbers(fields: Sequence[str]) -> list[bool]:
    """Return which fields of a first line are meant as numbers.

    What only Python reads as a number, and `nan` and `inf`, are headings in a line with a word and no finite number.
    """
    numbers = [_reads_as_number(field) for field in fields]
    return numbers if all(numbers) or has_finite_number(fields) else [False] * len(numbers)


def has_finite_number(fields: Sequence[str]) -> bool:
    """Return whether one of the fields is a finite number."""
    return any(number is not None and math.isfinite(number) for number in map(parse_number, fields))


def _reads_as_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True
