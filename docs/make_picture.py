"""Draws the README's picture: the README's commands run for real, what they print exported by rich as SVG."""

from __future__ import annotations

import io
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parent.parent
COMMANDS = (
    "tfcluster up examples/cluster.yaml",
    "tfcluster run pi --samples 1e9 --gpus 4",
    "tfcluster status",
    "tfcluster down",
)
WIDTH = 100


def main() -> None:
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
