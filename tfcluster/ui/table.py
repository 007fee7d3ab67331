"""Tables without lines: columns side by side, coloured on a terminal, the same text in a pipe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from rich.table import Table

from tfcluster.ui.format import style_of
from tfcluster.ui.text import Text


def table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = (), wrapped: Sequence[str] = ()
) -> Table:
    """A table whose cells that are states have the state's colour.

    Args:
        columns: The headings.
        rows: A cell for each column.
        right: The columns of numbers, which are aligned to the right.
        wrapped: The columns whose cells take several lines where the terminal is too narrow for one.
    """
    result = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        justify: Literal["left", "right"] = "right" if column in right else "left"
        result.add_column(column, justify=justify, no_wrap=column not in wrapped, overflow="fold")
    for row in rows:
        result.add_row(*(Text(cell, style=style_of(cell)) for cell in row))
    return result
