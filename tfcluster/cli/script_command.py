"""Commands that run a script in several processes, with the options that scripts have."""

from __future__ import annotations

import click


class ScriptCommand(click.Command):
    """A command whose options are followed by those of scripts, without those that `omitted` names."""

    omitted: tuple[str, ...] = ()

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the parameters; those of scripts are not imported before they are needed."""
        from tfcluster.cli import script

        added = super().get_params(ctx)[len(self.params) :]  # --help, which stands last
        of_scripts = [param for param in script.command.params if param.name not in self.omitted]
        return [*self.params, *of_scripts, *added]
