"""Tables, texts and movement: what others wrote is escaped before it is laid out, whichever way it comes."""

from __future__ import annotations

import io
import re
from collections.abc import Callable

import pytest
from rich.progress import Progress, TextColumn

from tfcluster.ui.console import SafeConsole, Text, make_table
from tfcluster.ui.log_view import LogView
from tfcluster.ui.run_view import RunView

EVIL = "\x1b[2Jevil\x07\x08\x9b\u202e"
SHOWN = r"\x1b[2Jevil\x07\x08\x9b\u202e"


def drawn(draw: Callable[[SafeConsole], None]) -> str:
    """What is drawn on a terminal."""
    file = io.StringIO()
    draw(SafeConsole(file=file, force_terminal=True, width=100, highlight=False, markup=False, color_system="standard"))
    return file.getvalue()


def test_a_plain_string_and_a_text_with_styles() -> None:
    assert drawn(lambda screen: screen.print(EVIL)) == f"{SHOWN}\n"
    text = Text.assemble((EVIL, "red"), " ", EVIL)
    assert drawn(lambda screen: screen.print(text)) == f"\x1b[31m{SHOWN}\x1b[0m {SHOWN}\n"


def test_cells_are_as_wide_as_what_is_shown() -> None:
    shown = drawn(lambda screen: screen.print(make_table(("A", "B"), [(EVIL, "x"), ("plain", "y")])))
    lines = re.sub(r"\x1b\[[0-9;]*m", "", shown).splitlines()
    assert [line.rstrip() for line in lines] == [
        f"A{'B':>{len(SHOWN) + 2}}",
        f"{SHOWN}  x",
        f"{'plain':<{len(SHOWN)}}  y",
    ]


def test_what_rich_makes_a_text_of_by_itself() -> None:
    def draw(screen: SafeConsole) -> None:
        with Progress(TextColumn("{task.description}"), console=screen, transient=True) as progress:
            progress.add_task(EVIL)
        with screen.status(EVIL):
            pass

    shown = drawn(draw)
    own = re.sub(r"\x1b\[(?:[0-9;]*m|\?25[lh]|2K|1A)|\r", "", shown)
    assert SHOWN.replace(r"\x07\x08", "") in own, "rich itself drops some of them from such a text"
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", own)


def test_lines_of_logs_and_of_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    LogView(prefix=False).show("worker:0", 0.0, f"{EVIL} over\rwritten\r")
    output = {"event": "output", "stream": "stdout", "data": f"{EVIL}\r\n"}
    RunView(silent=False).update(output)
    RunView(silent=False, raw=True).update(output)
    assert capsys.readouterr().out.split("\n") == [SHOWN + r" over\rwritten", SHOWN, f"{EVIL}\r", ""]
