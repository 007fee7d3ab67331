"""What `doctor` shows: a row for each check."""

from __future__ import annotations

from collections.abc import Sequence

from tfcluster.client.doctor import Check
from tfcluster.ui.console import console
from tfcluster.ui.table import table


def show_checks(checks: Sequence[Check]) -> None:
    """Print what was checked on which host, what came of it, and what to type where it is not as it should be."""
    rows = [(check.host, check.check, _state(check), check.result, check.hint or "-") for check in checks]
    console().print(
        table(("HOST", "CHECK", "STATE", "RESULT", "WHAT TO TYPE"), rows, wrapped=("RESULT", "WHAT TO TYPE"))
    )


def _state(check: Check) -> str:
    if not check.examined:
        return "not examined"
    if not check.ok:
        return "problem"
    return "note" if check.hint else "ok"
