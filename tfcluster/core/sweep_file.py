"""The trials that a file names: CSV with a header, or a JSON object on each line."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence

from tfcluster.core.text import pluralize
from tfcluster.errors import usage_error

_HINT = "The first line of a CSV file names the columns; in a JSON lines file each line is an object."


def parse_trials(data: bytes, name: str) -> tuple[dict[str, str], ...]:
    """Return the values of each trial by the columns of a file, or raise a ClusterError that names the line.

    A file that begins with `{` or `[` has JSON lines. `name` is that of the file.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise usage_error(f"{name}:{line}: this is not UTF-8 text", _HINT) from None
    rows = tuple(_parse_json(text, name) if text.lstrip().startswith(("{", "[")) else _parse_csv(text, name))
    if not rows:
        raise usage_error(f"{name}: names no trials", _HINT)
    return rows


def _parse_csv(text: str, name: str) -> Iterator[dict[str, str]]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    rows = (cells for row in reader if any(cells := [cell.strip() for cell in row]))  # an empty line has none
    try:
        columns = next(rows, [])
        _check_columns(columns, f"{name}:{reader.line_num}")
        for row in rows:
            if len(row) != len(columns):
                counts = f"{pluralize(len(row), 'value')} for {pluralize(len(columns), 'column')}"
                raise usage_error(f"{name}:{reader.line_num}: {counts}", _HINT)
            yield dict(zip(columns, row, strict=True))
    except csv.Error as error:
        raise usage_error(f"{name}:{reader.line_num}: {error}", _HINT) from None


def _check_columns(columns: Sequence[str], where: str) -> None:
    if not all(columns):
        raise usage_error(f"{where}: a column has no name", _HINT)
    if twice := next((column for column in columns if columns.count(column) > 1), None):
        raise usage_error(f"{where}: two columns are named {twice!r}")


def _parse_json(text: str, name: str) -> Iterator[dict[str, str]]:
    columns: set[str] = set()
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise usage_error(f"{name}:{number}: this is not JSON: {error}", _HINT) from None
        if not isinstance(values, dict):
            raise usage_error(f"{name}:{number}: this is not an object", _HINT)
        columns = columns or set(values)
        if difference := sorted(columns ^ set(values)):
            raise usage_error(f"{name}:{number}: not all lines have the key {difference[0]!r}")
        yield {key: value if isinstance(value, str) else json.dumps(value) for key, value in values.items()}
