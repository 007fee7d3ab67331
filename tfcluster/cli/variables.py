"""The environment variables of options: which one an option has its value from, and which ones no option reads."""

from __future__ import annotations

import os
from collections.abc import Iterator

import click


def names_of(context: click.Context, param: click.Parameter) -> list[str]:
    """Return the names of the variables that a parameter reads, in the order in which click tries them."""
    names = [param.envvar] if isinstance(param.envvar, str) else list(param.envvar or ())
    if isinstance(param, click.Option) and param.allow_from_autoenv and context.auto_envvar_prefix and param.name:
        names.append(f"{context.auto_envvar_prefix}_{param.name.upper()}")
    return names


def find_variable(context: click.Context, param: click.Parameter) -> str:
    """Return the name of the variable that a parameter has its value from."""
    return next(name for name in names_of(context, param) if os.environ.get(name))


def describe_unread(context: click.Context) -> str:
    """Return a note on the variables that are named as those of the invoked subcommand and that no option of it reads.

    Empty if there are none. The programs of `run` count as one command, because they share their variables.
    """
    name, group = context.invoked_subcommand, context.command
    prefix = f"{context.auto_envvar_prefix}_{str(name).upper()}_"
    found = {variable for variable, value in os.environ.items() if variable.startswith(prefix) and value}
    if not found or name is None or not isinstance(group, click.Group):
        return ""
    command = group.get_command(context, name)
    read = set() if command is None else set(_names_of_options(context, command, name))
    unread = [_with_nearest(variable, read, prefix) for variable in sorted(found - read)]
    return f"note: no option of `tfcluster {name}` reads {', '.join(unread)}" if unread else ""


def _names_of_options(parent: click.Context, command: click.Command, name: str) -> Iterator[str]:
    """Yield the names of the variables that the options of a command or of its subcommands read."""
    context = click.Context(command, parent, name, **command.context_settings)
    for param in command.get_params(context):
        yield from names_of(context, param)
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            subcommand = command.get_command(context, each)
            assert subcommand is not None, "it is listed"
            yield from _names_of_options(context, subcommand, each)


def _with_nearest(variable: str, names: set[str], prefix: str) -> str:
    """Return a variable with the one whose name is nearest, if any is near; the common prefix does not count."""
    from difflib import get_close_matches  # slow to import, and rarely needed

    options = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
    near = get_close_matches(variable.removeprefix(prefix), options, 1)
    return f"{variable} (did you mean {prefix}{near[0]}?)" if near else variable
