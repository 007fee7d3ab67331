"""The command `tfcluster init`."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from tfcluster.cli.output import echo
from tfcluster.errors import ClusterError, ExitCode


@click.command(
    "init",
    short_help="Write a commented cluster.yaml to start from.",
    epilog="Example: tfcluster init && tfcluster up",
)
@click.argument("spec", required=False, default="cluster.yaml", type=click.Path(path_type=Path))
def command(spec: Path) -> None:
    """Write a commented spec to SPEC, ./cluster.yaml by default; SPEC `-` is standard output.

    A file that exists is never overwritten.
    """
    from tfcluster.spec.template import TEMPLATE

    if spec == Path("-"):
        echo(TEMPLATE.removesuffix("\n"))
        return
    try:
        with spec.open("x") as file:
            file.write(TEMPLATE)
    except FileExistsError as error:
        raise ClusterError(
            f"{spec} exists already",
            hint="Name another file: `tfcluster init other.yaml`.",
            exit_code=ExitCode.USAGE,
        ) from error
    except OSError as error:
        raise ClusterError(f"{spec}: cannot be written: {error.strerror}") from error
    argument = "" if spec == Path("cluster.yaml") else f" {shlex.quote(str(spec))}"
    echo(f"wrote {spec}; start the cluster with `tfcluster up{argument}`")
