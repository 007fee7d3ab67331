"""The output of `tfcluster events`: a line for each event, with its time."""

from __future__ import annotations

import time
from typing import Any

from tfcluster.ui.console import console
from tfcluster.ui.format import style_of
from tfcluster.ui.text import Text

_STYLES = {"died": "red", "killed": "red"}


def show_event(event: dict[str, Any]) -> None:
    """Print one event: its time, its host (if there are several), its task or the cluster, its name, its details."""
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event["time"]))
    word = event["event"]
    line = Text.assemble(
        (f"{when}  ", "dim"),
        f"{event['host']:<10}  " if "host" in event else "",
        f"{event['task'] or 'cluster':<10}  ",
        (f"{word:<13}", _STYLES.get(word) or style_of(word)),
        f"  {event['detail']}",
    )
    line.rstrip()
    console().print(line, soft_wrap=True)
