"""`status --watch`: the tables of `status`, drawn again in place or, into a pipe, printed again at each change."""

from __future__ import annotations

import math
from collections.abc import Iterable

import rich.text

from tfcluster.client.live.view import LiveView
from tfcluster.client.live.watch import changed_views, describe_losses
from tfcluster.ui.console import Text, console, is_interactive
from tfcluster.ui.listings import show_status


def watch_status(views: Iterable[LiveView]) -> None:
    """Show the status of each view in place of the one before, on a terminal; else print those that have changed."""
    screen = console()
    if not is_interactive(screen):
        for number, view in enumerate(changed_views(views)):
            screen.file.write("\n" * bool(number) + _render(view))
            screen.file.flush()
        return
    drawn: list[int] = []  # the cells of each line
    for view in views:
        width, height = screen.width, screen.height - 1
        above = sum(_height(cells, width) for cells in drawn)
        lines = _render(view).splitlines()
        drawn = [rich.text.Text.from_ansi(line).cell_len for line in lines]
        while sum(_height(cells, width) for cells in drawn) > height:
            drawn.pop()
        start = f"\x1b[{above}F\x1b[J" if above else ""
        screen.file.write(start + "".join(f"{line}\n" for line in lines[: len(drawn)]))
        screen.file.flush()


def _height(cells: int, width: int) -> int:
    return max(1, math.ceil(cells / width))


def _render(view: LiveView) -> str:
    screen = console()
    with screen.capture() as captured:
        show_status(view.status, has_servers=view.has_servers)
        for line in describe_losses(view):
            screen.print(Text(f"\n{line}", style="red"), soft_wrap=True)
    return captured.get()
