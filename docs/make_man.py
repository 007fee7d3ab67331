"""Writes the man pages of a release in build/man: that of tfcluster, and one for each command."""

from __future__ import annotations

import inspect
import re
import shutil
from pathlib import Path

import click
from click_man.man import ManPage
from make_reference import commands_in

from tfcluster.cli.main import cli
from tfcluster.version import __version__

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "build" / "man"


def man_pages() -> dict[str, str]:
    """Return the man page of each command, by the name of its file."""
    top = click.Context(cli, info_name="tfcluster", max_content_width=100)
    commands = [(top, cli), *commands_in(cli, top)]
    return {f"{context.command_path.replace(' ', '-')}.1": man_page(context, command) for context, command in commands}


def man_page(context: click.Context, command: click.Command) -> str:
    """Return the man page of a command, with the date of the release in the changelog."""
    page = ManPage(context.command_path)
    page.version = __version__
    released = re.search(rf"^## {re.escape(__version__)} - (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    page.date = released[1] if released is not None else "unreleased"
    page.short_help = escape(command.get_short_help_str(limit=100))
    page.synopsis = " ".join(command.collect_usage_pieces(context))
    page.description = escape("\n\n".join(inspect.cleandoc(each) for each in (command.help, command.epilog) if each))
    records = [each.get_help_record(context) for each in command.get_params(context) if isinstance(each, click.Option)]
    page.options = [(names, escape(text)) for names, text in filter(None, records)]
    if isinstance(command, click.Group):
        page.commands = [
            (each.name, escape(each.get_short_help_str(limit=100)))
            for its_context, each in commands_in(command, context)
            if its_context.parent is context
        ]
    return str(page)


def escape(text: str) -> str:
    r"""Return a help text for troff, without the marks (`\b`) of the paragraphs that click does not wrap."""
    text = text.replace("\b\n", "").replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^(?=[.'])", r"\\&", text, flags=re.MULTILINE)


if __name__ == "__main__":
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    for name, text in man_pages().items():
        (FOLDER / name).write_text(text)
