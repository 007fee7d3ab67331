"""The options of `tfcluster run graph`."""

from __future__ import annotations

import click

from tfcluster.cli.options import FiniteFloat
from tfcluster.programs.api import SharedOptions, Submission
from tfcluster.programs.graph.parser import parse

_EXPRESSION = "x = 2; y1 = x + 300; y2 = x - 66; y = y1 + y2"


def _split_devices(context: click.Context, option: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    devices = {}
    for value in values:
        name, sign, device = value.partition("=")
        if not (name and sign and device):
            raise click.BadParameter(f"{value!r} is not NAME=DEVICE, as in y2=/job:worker/task:1", context, option)
        devices[name] = device
    return devices


@click.command(
    epilog="Example: tfcluster run graph 'x = 5; (x - 8) * (x + 1)' --x 7 --device x=/job:ps/task:0",
)
@click.argument("expression", default=_EXPRESSION)
@click.option("--x", type=FiniteFloat(), metavar="NUMBER", help="The value of x, instead of the one in the expression.")
@click.option(
    "--device",
    multiple=True,
    metavar="NAME=DEVICE",
    callback=_split_devices,
    help="Where the operation NAME runs, such as y2=/job:worker/task:1; can be given several times.",
)
def command(shared: SharedOptions, expression: str, x: float | None, device: dict[str, str]) -> Submission:
    """Evaluate EXPRESSION, each of its names on its own device, and show where it ran.

    EXPRESSION is statements name = value, separated by semicolons; the last one needs no name. Values are
    made of numbers, names, + - * / ** and parentheses. Default:
    'x = 2; y1 = x + 300; y2 = x - 66; y = y1 + y2'.

    The names are assigned to the devices in turn; --device moves one of them.
    """
    overrides = {} if x is None else {"x": x}
    parse(expression, overrides)  # report a syntax error at once, without a cluster
    return Submission({"expression": expression, "overrides": overrides, "placed": device, "strict": shared.strict})
