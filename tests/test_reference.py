"""The references in docs/ are what `make docs` generates, their examples are valid, and the site has pages for all."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import click
import pytest
from pydantic import BaseModel

import tfcluster
from tfcluster.cli.main import cli
from tfcluster.spec.base import Key
from tfcluster.spec.load import parse_spec
from tfcluster.spec.schema import Job
from tfcluster.version import PROTOCOL, __version__

DOCS = Path(tfcluster.__file__).parent.parent / "docs"
REFERENCE = runpy.run_path(str(DOCS / "make_reference.py"))
MODELS: dict[str, type[BaseModel]] = REFERENCE["MODELS"]
#: A spec with a place for the keys of each model.
PLACES = {
    "Top level": "{}\n",
    "`hosts: HOST:`": "hosts: {{alpha: {{{}}}}}\n",
    "`slurm:`": "slurm: {{{}}}\n",
    "`kubernetes:`": "kubernetes: {{image: a/b, {}}}\n",
    "`jobs: JOB:`": "jobs: {{worker: {{{}}}}}\n",
    "`env: VARIABLE:` of a job": "jobs: {{worker: {{tasks: 1, env: {{TOKEN: {{{}}}}}}}}}\n",
    "`restart:`": "restart: {{{}}}\n",
    "`restart: backoff:`": "restart: {{backoff: {{{}}}}}\n",
    "`logs:`": "logs: {{{}}}\n",
    "`notify:`": "notify: {{{}}}\n",
}


@pytest.mark.parametrize(
    ("file", "generate"),
    [("spec.md", "spec_reference"), ("commands.md", "command_reference"), ("events.md", "event_reference")],
)
def test_a_reference_is_up_to_date(file: str, generate: str) -> None:
    assert (DOCS / file).read_text() == REFERENCE[generate](), "run `make docs`"


def test_the_limits_are_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    limits = runpy.run_path(str(DOCS / "make_limits.py"))["limits_reference"]()
    assert (DOCS / "limits.md").read_text() == limits, "run `make docs`"


def test_the_versions_in_other_documents_are_those_of_the_package() -> None:
    [(first, after)] = re.findall(
        r'requires-python = ">=(3\.\d+),<3\.(\d+)"', (DOCS.parent / "pyproject.toml").read_text()
    )
    assert f"Python {first} to 3.{int(after) - 1}" in (DOCS.parent / "README.md").read_text()
    assert f"{__version__} (protocol {PROTOCOL})" in (DOCS / "upgrade.md").read_text()


def examples() -> list[Any]:
    return [
        pytest.param(heading, f"{name}: {key.example}", id=f"{heading} {name}")
        for heading, model in MODELS.items()
        for name, field in model.model_fields.items()
        for key in field.metadata
        if isinstance(key, Key)
    ]


@pytest.mark.parametrize(("heading", "example"), examples())
def test_an_example_is_valid(heading: str, example: str, tmp_path: Path) -> None:
    (tmp_path / "hosts.txt").write_text("alpha slots=2\n")
    text = PLACES[heading].format(example)
    if heading == "`jobs: JOB:`" and not example.startswith("tasks"):
        text = PLACES[heading].format(f"tasks: 2, {example}")
    if heading == "`kubernetes:`" and example.startswith("image:"):
        text = f"kubernetes: {{{example}}}\n"
    if example.startswith("host:"):
        text += "slurm: {}\n"
    if not text.startswith("jobs"):
        text += "jobs: {worker: {tasks: 2}}\n"
    parse_spec(text, str(tmp_path / "cluster.yaml"), "demo")


def test_every_key_is_explained_and_every_command_is_in_the_reference() -> None:
    fields = [(model, name, field) for model in MODELS.values() for name, field in model.model_fields.items()]
    assert [(model, name) for model, name, field in fields if not any(isinstance(e, Key) for e in field.metadata)] == []
    text = (DOCS / "commands.md").read_text()
    assert [name for name in cli.list_commands(click.Context(cli)) if f"## `tfcluster {name}`" not in text] == []


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(DOCS))
    runpy.run_path(str(DOCS / "make_site.py"))["Site"](tmp_path).write_all()
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
