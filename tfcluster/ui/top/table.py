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
        names = [] if self._content is None else list(self._content.rows)
        return names[self.cursor_row] if 0 <= self.cursor_row < len(names) else None

    def show(self, content: Content) -> None:
        """Show a new content; if rows and columns stay, only cells that differ are drawn again."""
        before, chosen = self._content, self.selected
        self._content = content
        if before is None or before.layout != content.layout:
            self._rebuild(content, chosen)
            return
        for at, (old, new) in enumerate(zip(before.rows.values(), content.rows.values(), strict=True)):
            for column, (was, now) in enumerate(zip(old, new, strict=True)):
                if was != now or was.style != now.style:
                    self.update_cell_at((at, column), now)  # type: ignore[arg-type]

    def _rebuild(self, content: Content, chosen: str | None) -> None:
        row, top, keys = self.cursor_row, self.scroll_y, list(content.rows)
        self.clear(columns=True)
        for label, width in zip(content.columns, content.widths, strict=True):
            self.add_column(Text(label), width=width)
        for key, cells in content.rows.items():
            self.add_row(*cells, key=key)
        if keys:
            row = keys.index(chosen) if chosen in keys else min(row, len(keys) - 1)
            self.move_cursor(row=row, animate=False, scroll=False)
            self.scroll_to(y=top, animate=False)
