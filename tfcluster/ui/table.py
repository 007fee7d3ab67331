"""Tables without borders: coloured on a terminal, the same text without colour in a pipe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from rich.table import Table

from tfcluster.ui.format import style_of
from tfcluster.ui.text import Text


def table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = (), wrapped: Sequence[str] = ()
) -> Table:
    """Create a table; a cell that contains a state has the state's colour.

    Args:
        columns: The headings.
        rows: The rows, each with a cell for each column.
        right: The columns that are aligned to the right, such as numbers.
        wrapped: The columns whose cells are wrapped if the terminal is too narrow.
    """
    result = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        justify: Literal["left", "right"] = "right" if column in right else "left"
        result.add_column(column, justify=justify, no_wrap=column not in wrapped, overflow="fold")
    for row in rows:
        result.add_row(*(Text(cell, style=style_of(cell)) for cell in row))
    return result
