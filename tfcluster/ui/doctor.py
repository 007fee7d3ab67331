"""The output of `tfcluster doctor`: a table of checks."""

from __future__ import annotations

from collections.abc import Sequence

from tfcluster.client.doctor import Check
from tfcluster.ui.console import console
from tfcluster.ui.table import table


def show_checks(checks: Sequence[Check]) -> None:
    """Print a table of checks: the host, the check, its result, and what to type to fix a problem."""
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
