"""The events of runs that docs/events.md describes have the fields that it names."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.conftest import ROOT, Sandbox

#: The fields of each kind of event, and those that are left out if they have no value.
FIELDS: dict[str, set[str]] = {}
OPTIONAL: dict[str, set[str]] = {}
for _section in re.split(r"^## `", (ROOT / "docs" / "events.md").read_text(), flags=re.MULTILINE)[1:]:
    _rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", _section, re.MULTILINE)
    FIELDS[_section.partition("`")[0]] = {name for name, _ in _rows}
    OPTIONAL[_section.partition("`")[0]] = {name for name, kind in _rows if kind.endswith("optional")}

SCRIPT = """
import sys, tfcluster
tfcluster.metric("loss", 0.5, 1)
print("hello")
sys.exit(int(sys.argv[1]))
"""


def check(output: str) -> set[str]:
    """Compare the fields of events with the page, and return their kinds."""
    events: list[dict[str, Any]] = [json.loads(line) for line in output.splitlines()]
    for event in events:
        required = FIELDS[event["event"]] - OPTIONAL[event["event"]]
        assert required <= event.keys() - {"event"} <= FIELDS[event["event"]], event
    return {event["event"] for event in events}


def test_events_have_the_fields_of_the_page(demo: Sandbox) -> None:
    script = demo.folder / "reports.py"
    script.write_text(SCRIPT)
    kinds = check(demo("run", "-o", "json", script, "0").stdout)
    kinds |= check(demo("run", "-o", "json", script, "3", code=3).stdout)
    kinds |= check(demo("run", "graph", "--log-placement", "-o", "json").stdout)
    kinds |= check(demo("run", "pi", "--samples", "1e6", "-o", "json").stdout)
    kinds |= check(demo("launch", "-o", "json", "--max-restarts", "1", script, "3", code=3).stdout)
    assert kinds == {
        "run",
        "output",
        "metric",
        "error",
        "graph",
        "placement",
        "progress",
        "member",
        "restart",
        "result",
    }
