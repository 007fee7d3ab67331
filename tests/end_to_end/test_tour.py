"""The tour of examples/tour: its commands are run as its README and its scripts have them."""

from __future__ import annotations

import ast
import re

import pytest

from tests.conftest import ROOT, Sandbox
from tests.test_readme import check_links, commands, run_commands

TOUR = ROOT / "examples" / "tour"
README = TOUR / "README.md"


def test_the_readme_has_the_commands_at_the_top_of_each_script_in_order() -> None:
    scripts = re.findall(r"^\[(\w+\.py)\]", README.read_text(), re.MULTILINE)
    assert sorted(scripts) == sorted(path.name for path in TOUR.glob("*.py"))
    at_top: list[str] = []
    for script in scripts:
        text = (TOUR / script).read_text()
        assert len(text.splitlines()) <= 60, script
        at_top += (ast.get_docstring(ast.parse(text)) or "").split("\n\n")[1].splitlines()
    assert [command.words for command in commands(README)] == at_top
    check_links(README)


@pytest.mark.slow
def test_the_tour(sandbox: Sandbox) -> None:
    run_commands(README, sandbox)
    events = sandbox.json_lines("events", "-c", "demo")
    assert [each["event"] for each in events if each["task"] == "worker:1"].count("died") == 1
    assert "loss" in sandbox.json("runs", "page", "-c", "demo")["result"]["metrics"]
