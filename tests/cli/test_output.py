"""What commands print besides tables: nothing that others wrote can command the terminal."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import tfcluster
from tfcluster.cli.output import echo, echo_error, echo_json, echo_usage_error
from tfcluster.errors import ClusterError

ROOT = Path(tfcluster.__file__).parent
EVIL = "\x1b[2J\x1b]0;title\x07\x7f\x9b\u202e"
SHOWN = r"\x1b[2J\x1b]0;title\x07\x7f\x9b\u202e"

#: Where text may be written without being escaped, and why that is right there.
WRITERS = {
    "cli/output.py",  # escapes it
    "client/rpc/parallel.py",  # escapes it
    "ui/log_view.py",  # escapes it
    "ui/run_view.py",  # escapes it, but for the one who started the run
    "transport/local.py",  # escapes it
    "transport/remote/bootstrap.py",  # on a host, to the command
    "transport/resume.py",  # to systemd's journal or cron's mail
}
#: What runs in processes of the agent or of a pod, whose standard output is a log.
AWAY = ("agent/", "processes/", "programs/", "providers/kubernetes/start.py")


def test_lines_json_and_usage_errors_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    echo(EVIL)
    echo(EVIL, err=True)
    assert capsys.readouterr() == (f"{SHOWN}\n", f"{SHOWN}\n")
    value = {EVIL: ["".join(map(chr, range(0x2100)))]}
    echo_json(value)
    line = capsys.readouterr().out
    assert line.removesuffix("\n").isascii()
    assert line.removesuffix("\n").isprintable()
    assert json.loads(line) == value
    echo_usage_error(click.UsageError(f"No such command '{EVIL}'."))
    echo_usage_error(click.FileError(f"{EVIL}.yaml", "is away"))
    printed = capsys.readouterr().err
    assert printed.startswith(f"Error: No such command '{SHOWN}'.\n")
    assert printed.replace("\n", "").isprintable()


def test_an_error_and_its_hint_are_escaped_and_its_label_has_colour(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    echo_error(ClusterError(f"{EVIL}\nsecond line", hint=EVIL))
    assert capsys.readouterr().err == f"\x1b[31m\x1b[1merror: \x1b[0m{SHOWN}\nsecond line\nhint: {SHOWN}\n"


def test_what_is_typed_and_is_no_text_is_no_bug() -> None:
    program = "from tfcluster.cli.output import prepare_streams; prepare_streams(); print(input())"
    environment = {**os.environ, "PYTHONPATH": str(ROOT.parent), "PYTHONIOENCODING": "utf-8:strict"}
    answer = subprocess.run([sys.executable, "-c", program], input=b"\xff\n", env=environment, stdout=subprocess.PIPE)
    assert answer.stdout == rb"\xff" + b"\n"


def writes_of(path: Path) -> Iterator[str]:
    """The calls in a file by which text is written to the terminal other than through a console of ours."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and (name := ast.unparse(node.func)) in {
            *("print", "click.echo", "click.secho", "click.confirm", "click.prompt"),
            *("sys.stdout.write", "sys.stderr.write", "out.write", "console().file.write"),
        }:
            yield name
        if isinstance(node, ast.ImportFrom) and node.module in {"rich.text", "rich.console"}:
            yield from (f"{node.module}.{each.name}" for each in node.names if each.name in {"Text", "Console"})


def test_only_output_modules_write_text() -> None:
    # A module without these words need not be parsed, which takes longer.
    words = re.compile(r"\b(print|s?echo|confirm|prompt|write)\(|\bfrom rich\.")
    paths = [path for path in ROOT.rglob("*.py") if words.search(path.read_text())]
    writers = {str(path.relative_to(ROOT)) for path in paths if any(writes_of(path))}
    consoles = {"ui/console.py"}
    assert {each for each in writers if not each.startswith(AWAY)} == WRITERS | consoles
