"""Draws the README's pictures: the README's commands run for real, what they print exported by rich as SVG.

The screen of `top` is kept by a terminal emulator, and drawn with its colours."""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.style import Style
from rich.text import Text

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.screens import Terminal

ROOT = Path(__file__).parent.parent
COMMANDS = (
    "tfcluster up examples/cluster.yaml",
    "tfcluster run pi --samples 1e9 --gpus 4",
    "tfcluster status",
    "tfcluster down",
)
WIDTH = 100


def main() -> None:
    """Draw both pictures."""
    draw_commands()
    draw_top()


def draw_top() -> None:
    """Run `top` on a cluster that trains, and write docs/top.svg."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "XDG_STATE_HOME": folder, "XDG_RUNTIME_DIR": folder, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "tfcluster"]

        def call(words: str) -> None:
            subprocess.run([*command, *shlex.split(words)], cwd=ROOT, env=environment, check=True, capture_output=True)

        call("up examples/cluster.yaml")
        try:
            call("run pi --samples 1e8")
            call("run linear --steps 400000 --detach")
            with Terminal([*command, "top"], environment, ROOT, WIDTH, 24) as top:
                top.wait_for(r"^linear-.* [1-9][0-9]%", r"^ps:0 .*MiB", "q Quit")
                rows = top.cells()
        finally:
            call("down")
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    for row in rows:
        line = Text()
        for cell in row:
            style = Style(color=_colour(cell.fg), bgcolor=_colour(cell.bg), bold=cell.bold, reverse=cell.reverse)
            line.append(cell.data, style)
        console.print(line, no_wrap=True, crop=True)
    console.save_svg(str(ROOT / "docs" / "top.svg"), title="tfcluster top")


def _colour(name: str) -> str | None:
    """Return rich's name of a colour of the terminal emulator."""
    if name == "default":
        return None
    if re.fullmatch("[0-9a-f]{6}", name):
        return f"#{name}"
    return name.replace("bright", "bright_").replace("brown", "yellow")


def draw_commands() -> None:
    """Run the commands in a folder of their own and write docs/terminal.svg."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "XDG_STATE_HOME": folder, "XDG_RUNTIME_DIR": folder, "FORCE_COLOR": "1"}
        for command in COMMANDS:
            console.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
            words = [sys.executable, "-m", *shlex.split(command)]
            printed = subprocess.run(
                words, cwd=ROOT, env=environment, check=True, stdout=subprocess.PIPE, text=True
            ).stdout
            for line in printed.splitlines():
                console.print(Text.from_ansi(line.rstrip()))
            console.print()
    console.save_svg(str(ROOT / "docs" / "terminal.svg"), title="tfcluster")


if __name__ == "__main__":
    main()
