"""The commands' own words: help with an example, the list of commands, completions."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tfcluster.cli.main import _HABITS, call, cli, main

ROOT = Path(__file__).parent.parent.parent
COMPLETIONS = {"bash": "tfcluster.bash", "zsh": "_tfcluster", "fish": "tfcluster.fish"}


def test_after_a_command_an_interrupt_ends_the_process_without_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(sys, "argv", ["tfcluster", "nothing"])
    try:
        with pytest.raises(click.UsageError):
            call()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL, "the error is shown without a traceback"
    finally:
        signal.signal(signal.SIGINT, before)


def all_commands() -> list[tuple[str, ...]]:
    names: list[tuple[str, ...]] = []
    context = click.Context(cli)
    for name in cli.list_commands(context):
        names.append((name,))
        command = cli.get_command(context, name)
        if isinstance(command, click.Group):
            names += [(name, program) for program in command.list_commands(context)]
    return names


@pytest.mark.parametrize("words", all_commands(), ids=" ".join)
def test_every_command_has_help_with_an_example(words: tuple[str, ...]) -> None:
    result = CliRunner().invoke(cli, [*words, "--help"])
    assert result.exit_code == 0
    assert "Example:" in result.output
    assert f"tfcluster {' '.join(words)}" in result.output.partition("Example:")[2]


def test_the_commands_are_listed_in_groups_with_their_short_help() -> None:
    listing = CliRunner().invoke(cli, ["--help"], terminal_width=80).output
    sections = [section.splitlines() for section in listing.split("\n\n")]
    groups = {heading: lines for heading, *lines in sections if heading.endswith(":") and heading != "Options:"}
    assert list(groups) == ["First steps:", "Cluster:", "Runs:", "Watch:", "Hosts and spec:", "Shell:"]
    assert [line.split()[0] for line in groups["First steps:"]] == ["init", "up", "run", "status", "down"]

    context = click.Context(cli)
    listed = dict(line.strip().split(maxsplit=1) for lines in groups.values() for line in lines)
    commands = {name: cli.get_command(context, name) for name in cli.list_commands(context)}
    assert listed == {name: command.short_help for name, command in commands.items() if command is not None}


@pytest.mark.parametrize("words", [(), *all_commands()], ids=" ".join)
def test_help_fits_into_80_columns_and_breaks_no_word_and_no_command(words: tuple[str, ...]) -> None:
    context = click.Context(cli)
    command: click.Command | None = cli
    for word in words:
        assert isinstance(command, click.Group)
        command = command.get_command(context, word)
    assert command is not None
    output = CliRunner().invoke(cli, [*words, "--help"], terminal_width=80).output
    assert max(map(len, output.splitlines())) <= 80
    helps = [param.help or "" for param in command.get_params(context) if isinstance(param, click.Option)]
    assert {word for text in helps for word in text.split()} <= {*output.split()}
    assert [line for line in output.splitlines() if line.count("`") % 2] == []


def test_ps_is_status_and_no_command_has_the_name_of_a_habit() -> None:
    context = click.Context(cli)
    assert cli.get_command(context, "ps") is cli.get_command(context, "status")
    assert not {name for name in _HABITS if cli.get_command(context, name) is not None}


@pytest.mark.parametrize("shell", COMPLETIONS)
def test_completion_files_are_up_to_date(shell: str) -> None:
    made = subprocess.run(
        [sys.executable, "-m", "tfcluster", "completion", shell], capture_output=True, text=True, check=True
    ).stdout
    assert (ROOT / "completions" / COMPLETIONS[shell]).read_text() == made, "stale: run `make completions`"


@pytest.mark.parametrize("words", all_commands(), ids=" ".join)
def test_every_option_is_set_by_its_command_and_its_name(words: tuple[str, ...]) -> None:
    """TFCLUSTER_COMMAND_OPTION, from the option as it is typed; a program's are those of `run`."""
    context = click.Context(cli, info_name="tfcluster", auto_envvar_prefix="TFCLUSTER")
    command: click.Command = cli
    for word in words:
        assert isinstance(command, click.Group)
        subcommand = command.get_command(context, word)
        assert subcommand is not None
        command = subcommand
        context = click.Context(command, parent=context, info_name=word, **command.context_settings)
    for option in command.get_params(context):
        is_own = {"--help", "--cluster"}.isdisjoint(option.opts)
        if isinstance(option, click.Option) and option.allow_from_autoenv and is_own:
            typed = max(option.opts, key=len).removeprefix("--").replace("-", "_").upper()
            variable = f"TFCLUSTER_{words[0].upper()}_{typed}"
            assert variable in (option.envvar, f"{context.auto_envvar_prefix}_{(option.name or '').upper()}")


def broken(**options: object) -> None:
    raise RuntimeError("a gremlin")


def interrupted(**options: object) -> None:
    class Descriptor:
        def __set_name__(self, owner: type, name: str) -> None:
            raise KeyboardInterrupt

    try:
        type("Owner", (), {"descriptor": Descriptor()})
    except KeyboardInterrupt as error:  # as it comes from Python 3.12 on
        raise RuntimeError("Error calling __set_name__") from error


@pytest.mark.parametrize(
    ("fail", "code", "message"),
    [
        (broken, 1, r"error: tfcluster failed: RuntimeError: a gremlin \(.*test_commands\.py"),
        (interrupted, 130, r"interrupted\n$"),
    ],
)
def test_an_unexpected_exception_is_a_bug_with_its_location_unless_an_interrupt_caused_it(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    fail: Callable[..., None],
    code: int,
    message: str,
) -> None:
    monkeypatch.setattr(cli, "main", fail)
    monkeypatch.setattr(signal, "signal", lambda *arguments: None)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == code
    error = capsys.readouterr().err
    assert re.match(message, error)
    assert "Traceback" not in error


_ENDS = """
import atexit, sys
class Last:
    def __del__(self):
        print("taken apart")
sys.modules["last"] = Last()
atexit.register(print, "atexit")
sys.argv = ["tfcluster", {argument!r}]
from tfcluster.__main__ import main
main()
"""


@pytest.mark.parametrize(("argument", "code"), [("--version", 0), ("nothing", 2)])
def test_a_command_ends_without_taking_the_interpreter_apart(argument: str, code: int) -> None:
    """Background threads would crash it; see `tfcluster.__main__`."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", _ENDS.format(argument=argument)], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert (done.stdout.splitlines()[-1], done.returncode) == ("atexit", code)
