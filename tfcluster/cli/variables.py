"""The environment variables of options, and which of them an option has its value from."""

from __future__ import annotations

import os

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
