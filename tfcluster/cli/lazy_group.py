"""A click group that imports its commands lazily, each from the module of its name."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click


class LazyGroup(click.Group):
    """A click group that imports a command only when it is called.

    Args:
        package: The package of the commands; each is the object `command` in the module of its name.
        commands: The short help of each command, by name.
        locations: Where else a command is, as `MODULE:OBJECT`, by name.
        aliases: Other names of commands, each with the command's name.
        **attributes: The arguments of click.Group.
    """

    def __init__(
        self,
        *,
        package: str,
        commands: Mapping[str, str],
        locations: Mapping[str, str] | None = None,
        aliases: Mapping[str, str] | None = None,
        **attributes: Any,
    ) -> None:
        super().__init__(**attributes)
        self._package = package
        self._listed = commands
        self._locations = locations or {}
        self._aliases = aliases or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands, in the order in which a new user needs them."""
        return list(self._listed)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Import a command.

        Returns:
            The command; None if there is none of that name.
        """
        name = self._aliases.get(name, name)
        if name not in self._listed:
            return None
        module, _, attribute = self._locations.get(name, f"{name}:command").partition(":")
        command = getattr(importlib.import_module(f"{self._package}.{module}"), attribute)
        assert isinstance(command, click.Command), "each name in the table is a command's"
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(self._listed.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve a command as click does, and suggest the closest name for an unknown one."""
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(args[0], [*self._listed, *self._aliases], 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise click.UsageError(f"No such command {args[0]!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)
