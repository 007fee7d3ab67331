"""The sources of the site have a page for each command and key, and no link leads nowhere; `make site` builds it."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import click
import pytest

from tests.conftest import ROOT
from tfcluster.cli.main import cli
from tfcluster.spec.schema import Job


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    runpy.run_path(str(ROOT / "docs" / "make_site.py"))["Site"](tmp_path).write_all()
    return tmp_path


def test_each_command_and_key_has_a_page_in_the_navigation_and_the_links_lead_to_pages(site: Path) -> None:
    names = cli.list_commands(click.Context(cli))
    assert {f"{name}.md" for name in names} <= {page.name for page in (site / "commands").iterdir()}
    assert {f"jobs-job-{name}.md" for name in Job.model_fields} <= {page.name for page in (site / "keys").iterdir()}
    assert (site / "commands" / "wait.md").read_text().startswith("# `tfcluster wait`\n")
    listed = set()
    for page in site.rglob("*.md"):
        for tree in re.findall(r"^```{toctree}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
            listed |= {f"{name}.md" for name in tree.split("\n\n")[1].split()}
    pages = {str(page.relative_to(site)) for page in site.rglob("*.md") if "orphan: true" not in page.read_text()}
    assert pages == listed | {"index.md"}
    links = [
        (page, target)
        for page in site.rglob("*.md")
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", re.sub(r"(?s)````?\w*\n.*?````?\n", "", page.read_text()))
        if "://" not in target
    ]
    assert len(links) > 100
    assert [(page.name, target) for page, target in links if not (page.parent / target).exists()] == []
