"""Words for the user beside a command's output."""

from __future__ import annotations

import sys


def tell(text: str) -> None:
    """Say something on standard error; only the main thread may, as others would keep the command from ending."""
    print(text, file=sys.stderr, flush=True)
