"""Prints what each command says of variables that it does not read, if it is called in this script."""

import click

from tfcluster.cli.main import cli
from tfcluster.cli.variables import describe_unread

context = click.Context(cli, info_name="tfcluster", auto_envvar_prefix="TFCLUSTER")
for name in cli.list_commands(context):
    context.invoked_subcommand = name
    print(end=describe_unread(context))
print("asked")
