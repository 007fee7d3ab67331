"""Builds the documentation as a website, in build/site: these pages, and one for each command and key of the spec.

The pages are plain Markdown that also reads well in the repository. Here their links are adapted to the site: the
README is its first page, and a file of the repository that a page links to becomes a page too. Warnings are errors.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import click
import make_reference

from tfcluster.cli.main import cli
from tfcluster.spec.schema import Spec
from tfcluster.version import __version__

ROOT = Path(__file__).parent.parent
BUILD = ROOT / "build"
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
#: The pages have wide tables, which the theme would make narrow and tall.
STYLE = ".content { width: 56em } table.docutils { font-size: 0.85em } table.docutils td { vertical-align: top }\n"
LANGUAGES = {".py": "python", ".yaml": "yaml", ".json": "json"}
#: The pages in the order of the navigation, by heading.
NAVIGATION = {
    "First hour": ["tour", "clusters", "programs"],
    "Your own programs": ["scripts", "launch", "sweep", "python", "automation"],
    "Hosts": ["hosts", "network", "slurm", "kubernetes"],
    "Watching": ["monitoring", "dashboard", "supervision"],
    "Reference": ["commands", "spec", "events", "limits", "upgrade"],
    "Inside": ["architecture", "benchmarks", "contributing", "compared"],
}
#: The pages that are not in docs/, by their names in the site.
ELSEWHERE = {
    ROOT / "README.md": "index.md",
    ROOT / "CONTRIBUTING.md": "contributing.md",
    ROOT / "examples" / "tour" / "README.md": "tour.md",
}


class Site:
    """The sources of the site, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write_all(self) -> None:
        """Write all pages."""
        toctrees = "".join(toctree(caption, names) for caption, names in NAVIGATION.items())
        for page, name in ELSEWHERE.items():
            self.write(name, page.read_text() + (toctrees if name == "index.md" else ""), page)
        for page in sorted((ROOT / "docs").glob("*.md")):
            if page.name not in ("commands.md", "spec.md"):
                self.write(page.name, page.read_text(), page)
        self.write_commands(ROOT / "docs" / "commands.md")
        self.write_spec(ROOT / "docs" / "spec.md")

    def write(self, name: str, text: str, source: Path) -> None:
        """Write a page, with links that are relative to `source` adapted to the site."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(outside_fences(text, lambda part: LINK.sub(lambda link: self._link(link, name, source), part)))

    def write_commands(self, source: Path) -> None:
        """Write a page for each command, and a list of them, with what the states mean."""
        top = click.Context(cli, info_name="tfcluster", max_content_width=100)
        introduction, *_ = source.read_text().partition("\n## ")
        states = "".join(source.read_text().partition("\n## States\n")[1:])
        rows = ["| command | what it does |", "|---|---|"]
        names = []
        for context, command in make_reference.commands_in(cli, top):
            name = context.command_path.removeprefix("tfcluster ").replace(" ", "-")
            names.append(f"commands/{name}")
            section = make_reference.section_of(context, command)
            self.write(f"commands/{name}.md", section.replace("## ", "# ", 1), source)
            rows.append(
                f"| [`{context.command_path}`](commands.md#tfcluster-{name}) | {command.get_short_help_str(120)} |"
            )
        self.write("commands.md", "\n".join([introduction, *rows, states]) + toctree("", names), source)

    def write_spec(self, source: Path) -> None:
        """Write a page for each key of the spec, and the tables with links to them."""
        parts = [make_reference.INTRODUCTION]
        for heading, model in make_reference.MODELS.items():
            place = re.sub(r"[^A-Za-z]+", "-", heading).strip("-").lower()
            rows = ["| key | type | default |", "|---|---|---|"]
            names = []
            for name, field in model.model_fields.items():
                key = make_reference.key_of(field)
                default = make_reference.default_of(field, key)
                page = f"keys/{place}-{name}.md"
                names.append(page.removesuffix(".md"))
                rows.append(make_reference.row_of((f"[`{name}`](site:{page})", key.type, default)))
                facts = make_reference.row_of((key.type, default, f"`{name}: {key.example}`"))
                table = f"| type | default | example |\n|---|---|---|\n{facts}\n"
                title = f"`{name}`" if model is Spec else f"{heading.split(' of ')[0]} `{name}`"
                self.write(page, f"# {title}\n\n{key.meaning}\n\n{table}\n[All keys](spec.md)\n", source)
            parts.append(f"## {heading}\n\n" + "\n".join(rows) + "\n" + toctree("", names))
        self.write("spec.md", "\n".join(parts), source)

    def _link(self, link: re.Match[str], page: str, source: Path) -> str:
        """Return a link of a page as the site has it; its text alone if the site does not have what it leads to."""
        mark, text, target = link.groups()
        if "://" in target or target.startswith("#"):
            return link[0]
        path, _, place = target.partition("#")
        address = path.removeprefix("site:") if path.startswith("site:") else self._address(source.parent / path, place)
        if address is None:
            return text
        if address.startswith("commands/"):
            place = ""
        relative = os.path.relpath(address, Path(page).parent)
        return f"{mark}[{text}]({relative}{'#' if place else ''}{place})"

    def _address(self, path: Path, place: str) -> str | None:
        """Return where the site has a file of the repository, and write or copy it; None for a folder."""
        path = path.resolve()
        if path in ELSEWHERE:
            return ELSEWHERE[path]
        if path.is_dir():
            return None
        if path.parent == ROOT / "docs":
            if path.name == "commands.md" and place.startswith("tfcluster-"):
                return f"commands/{place.removeprefix('tfcluster-')}.md"
            if path.suffix != ".md":
                shutil.copy(path, self.folder / path.name)
            return path.name
        name = str(path.relative_to(ROOT))
        address = f"files/{name}.md"
        if not (self.folder / address).exists():
            language = LANGUAGES.get(path.suffix, "text")
            code = f"````{language}\n{path.read_text()}````\n"
            self.write(address, f"---\norphan: true\n---\n\n# {name}\n\n{code}", path)
        return address


def toctree(caption: str, names: list[str]) -> str:
    """Return the part of a page that makes other pages its children in the navigation."""
    options = ":hidden:\n" + (f":caption: {caption}\n" if caption else "")
    return f"\n```{{toctree}}\n{options}\n" + "\n".join(names) + "\n```\n"


def outside_fences(text: str, change: Callable[[str], str]) -> str:
    """Return a text with a change to what is not in a block of code."""
    parts, end = [], 0
    for fence in FENCE.finditer(text):
        parts += [change(text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, change(text[end:])])


def main() -> None:
    """Build the site."""
    from sphinx.application import Sphinx

    sources = BUILD / "site-sources"
    shutil.rmtree(sources, ignore_errors=True)
    Site(sources).write_all()
    (sources / "style.css").write_text(STYLE)
    settings = {
        "project": "tfcluster",
        "html_title": f"tfcluster {__version__}",
        "extensions": ["myst_parser"],
        "html_theme": "furo",
        "html_static_path": [str(sources / "style.css")],
        "html_css_files": ["style.css"],
        "myst_heading_anchors": 4,
        "smartquotes": False,  # they would change --options
        "html_copy_source": False,
        "html_show_sourcelink": False,
        "html_show_copyright": False,
        "html_show_sphinx": False,
    }
    doctrees = BUILD / "site-doctrees"
    site = Sphinx(sources, None, BUILD / "site", doctrees, "html", settings, warningiserror=True)
    site.build()
    sys.exit(site.statuscode)


if __name__ == "__main__":
    main()
