"""The command `tfcluster completion`."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from tfcluster.cli.output import echo


@click.command(
    "completion",
    short_help="Print the completion script for a shell.",
    epilog='Example: eval "$(tfcluster completion bash)"',
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the script that teaches a shell to complete tfcluster's commands and options."""
    shell_class = get_completion_class(shell)
    assert shell_class is not None, "click knows the shells that the argument allows"
    completion = shell_class(ctx.find_root().command, {}, "tfcluster", "_TFCLUSTER_COMPLETE")
    # Do not use source(), which runs the shell to query its version; the script is the same on every machine.
    echo((completion.source_template % completion.source_vars()).removesuffix("\n"))
