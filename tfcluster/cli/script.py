"""The options of `tfcluster run SCRIPT.py`."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import click
from click.shell_completion import CompletionItem

from tfcluster.cli.completion import complete_files, complete_modules
from tfcluster.cli.options import InputFile, seconds
from tfcluster.cli.output import approve_code
from tfcluster.cli.run_options import Submission
from tfcluster.input_file import is_descriptor
from tfcluster.paths import current_folder


class _ScriptFile(InputFile):
    """A parameter type for a script, a folder with `__main__.py` or, after `-m`, the name of a module."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        if ctx.params.get("is_module"):
            return complete_modules(incomplete)
        return super().shell_complete(ctx, param, incomplete)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if ctx is not None and ctx.params["is_module"]:
            return value
        if os.path.isdir(value):
            if not os.path.isfile(os.path.join(value, "__main__.py")):
                self.fail(f"{value!r}: is a folder without __main__.py", param, ctx)
            return value
        return super().convert(value, param, ctx)


class _PythonFile(click.Path):
    """A parameter type for the file of a Python."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the absolute path, or fail if no file that can be executed is there."""
        import shutil  # slow to import, and needed by few commands

        path = os.path.join(current_folder(), value)
        if os.path.isdir(path):
            self.fail(f"{value!r} is a folder. Its Python is {os.path.join(value, 'bin', 'python')}", param, ctx)
        if not os.path.exists(path):
            command = None if "/" in value else shutil.which(value)
            self.fail(f"{value!r}: no such file. {f'Its path is {command}' if command else ''}".strip(), param, ctx)
        if not os.access(path, os.X_OK):
            self.fail(f"{value!r} cannot be executed. Name the file of a Python", param, ctx)
        return path


@click.command(
    short_help="Your own script or module: `tfcluster run train.py ARGS`.",
    # All arguments after the script's path belong to the script.
    context_settings={"allow_interspersed_args": False},
    epilog="Example: tfcluster run script --timeout 600 train.py --epochs 3",
)
@click.option(
    "-m",
    "is_module",
    is_flag=True,
    is_eager=True,
    allow_from_autoenv=False,
    help="Run a module by its name, as `python -m` does: -m package.module ARGS.",
)
@click.option("--cold", is_flag=True, help="Run it in a fresh interpreter, which imports TensorFlow by itself.")
@click.option(
    "--python",
    type=_PythonFile(),
    metavar="PATH",
    help="The Python that runs it on this machine. Default: that of the active virtual environment if it has the "
    "cluster's version of TensorFlow, else the cluster's.",
)
@click.option("--yes", is_flag=True, help="Do not ask before a large amount of code is sent to another host.")
@click.option(
    "--start-timeout",
    type=seconds(0.1),
    metavar="S",
    help="Stop the run if a call has waited S seconds to connect to tasks.",
)
@click.argument("script", type=_ScriptFile(), metavar="SCRIPT.py")
@click.argument("args", nargs=-1, type=click.UNPROCESSED, shell_complete=complete_files)
def command(**values: Any) -> None:
    """Run your own Python script beside the cluster, as `python SCRIPT.py` would run it, and exit as it does.

    It finds the cluster in TF_CONFIG, where it is the chief, and as a session's target in TFCLUSTER_MASTER;
    TFCLUSTER_RUN is the run's id, TFCLUSTER_DEVICES its devices, TFCLUSTER_SEED the seed if one was given, and
    TFCLUSTER_OUTPUT a folder for files that `tfcluster fetch` is to copy.
    The word `script` can be left out: tfcluster run train.py --epochs 3
    """


def script_submission(
    seed: int | None,
    *,
    is_module: bool,
    cold: bool,
    python: str | None,
    yes: bool,
    start_timeout: float | None,
    script: BinaryIO | str,
    args: tuple[str, ...],
) -> Submission:
    """Return the submission of a script, given the seed and the values of the command's parameters."""
    folder = current_folder()
    parameters: dict[str, Any] = {"args": list(args), "cwd": folder, "seed": seed, "cold": cold}
    if python is not None:
        parameters["python"] = python
    submit = partial(Submission, approve_code=partial(approve_code, yes=yes), start_timeout=start_timeout)
    if is_module:
        return submit({**parameters, "path": None, "argument": script, "module": script})
    argument = script if isinstance(script, str) else script.name
    path = os.path.join(folder, argument)  # not made shorter: python puts it into __file__ in this way too
    parameters |= {"path": path, "argument": argument, "module": None}
    # Then it is executed where it is, or its folder is sent.
    is_file = os.path.isfile(path) and not is_descriptor(path)
    return submit(parameters, None if isinstance(script, str) or is_file else script, Path(path).name)
