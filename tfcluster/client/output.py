"""Words for the user beside a command's output."""

from __future__ import annotations

import sys

from tfcluster.control_characters import escape_control_characters


def tell(text: str) -> None:
    """Say something on standard error; only the main thread may, as others would keep the command from ending."""
    print(escape_control_characters(text), file=sys.stderr, flush=True)
