"""A table of the full-screen view."""

from __future__ import annotations

from textual.binding import Binding
from textual.widgets import DataTable

from tfcluster.ui.console import Text
from tfcluster.ui.top.rows import Content


class Table(DataTable[Text]):
    """A table with named rows, whose cursor stays on its row."""

    BINDINGS = [  # noqa: RUF012 - as Textual has it
        Binding("enter", "select_cursor", "Log", key_display="↵"),
        Binding("home", "scroll_top", show=False),
        Binding("end", "scroll_bottom", show=False),
    ]

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id, cursor_type="row", cell_padding=0, zebra_stripes=False, show_row_labels=False)
        self._content: Content | None = None

    @property
    def selected(self) -> str | None:
        """Return the name of the row that the cursor is on; None if there are no rows."""
        if self._content is None or not 0 <= self.cursor_row < len(self._content.rows):
            return None
        return self._content.rows[self.cursor_row].key

    def show(self, content: Content) -> None:
        """Show a new content; if rows and columns stay, only cells that differ are drawn again."""
        before, self._content = self._content, content
        keys = [row.key for row in content.rows]
        if before is None or (before.columns, before.widths, [row.key for row in before.rows]) != (
            content.columns,
            content.widths,
            keys,
        ):
            self._rebuild(content, keys, before)
            return
        for at, (old, new) in enumerate(zip(before.rows, content.rows, strict=True)):
            for column, (was, now) in enumerate(zip(old.cells, new.cells, strict=True)):
                if was != now or was.style != now.style:
                    self.update_cell_at((at, column), now)  # type: ignore[arg-type]

    def _rebuild(self, content: Content, keys: list[str], before: Content | None) -> None:
        row, top = self.cursor_row, self.scroll_y
        chosen = before.rows[row].key if before is not None and 0 <= row < len(before.rows) else None
        self.clear(columns=True)
        for label, width in zip(content.columns, content.widths, strict=True):
            self.add_column(Text(label), width=width)
        for each in content.rows:
            self.add_row(*each.cells, key=each.key)
        if keys:
            row = keys.index(chosen) if chosen in keys else min(row, len(keys) - 1)
            self.move_cursor(row=row, animate=False, scroll=False)
            self.scroll_to(y=top, animate=False)
