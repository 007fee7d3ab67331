"""The entry point `tfcluster`: the root command group, signal handling, and the exit codes of errors."""

from __future__ import annotations

import contextlib
import errno
import gc
import importlib
import os
import signal
import sys
import threading
from typing import Any, NoReturn

import click

from tfcluster import settings
from tfcluster.cli.hints import complete_error
from tfcluster.cli.output import echo, echo_error, echo_usage_error, prepare_streams
from tfcluster.cli.variables import describe_unread
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.version import PROTOCOL, __version__

# The short help of each command, by group and name. It is kept here so that `--help` imports no command.
_GROUPS = {
    "First steps": {
        "init": "Write a commented cluster.yaml to start from.",
        "up": "Start a cluster from a spec and wait until it is ready.",
        "run": "Run a program or your own script on the cluster.",
        "status": "Show what runs where.",
        "down": "Stop a cluster.",
    },
    "Cluster": {
        "ls": "List your clusters.",
        "restart": "Restart tasks.",
        "scale": "Change the number of tasks of a cluster's jobs.",
    },
    "Runs": {
        "launch": "Start your script once for each task.",
        "sweep": "Train with many parameters, over all hosts.",
        "runs": "List the cluster's runs.",
        "attach": "Follow a run from its beginning to its result.",
        "wait": "Wait for the end of runs, or for ready tasks.",
        "cancel": "Stop runs.",
        "rerun": "Run a run again.",
        "fetch": "Copy the files of a run here.",
    },
    "Watch": {
        "top": "Watch a cluster, full screen.",
        "dashboard": "Show the cluster as a page in the browser.",
        "logs": "Show what the tasks print.",
        "events": "Show what happened to the tasks, and why.",
        "devices": "Show every device of every task.",
        "stack": "Show what a run or a task is doing.",
        "profile": "Capture a trace of tasks for TensorBoard.",
        "tensorboard": "Show the data of a run in TensorBoard.",
        "metrics": "Print the metrics of a cluster for Prometheus.",
    },
    "Hosts and spec": {
        "validate": "Check a spec without starting anything.",
        "doctor": "Check the hosts of a spec.",
        "schema": "Print the JSON schema of a spec, for editors.",
        "manifests": "Print what a cluster of pods is for Kubernetes.",
    },
    "Shell": {
        "exec": "Run any command with the cluster's environment.",
        "env": "Print the cluster's environment, for your own scripts.",
        "completion": "Print the completion script for a shell.",
    },
}
_COMMANDS = {name: text for group in _GROUPS.values() for name, text in group.items()}
_ALIASES = {"ps": "status"}
_OF_PROVIDERS = {"manifests"}
# The commands that share a module; each other command is in the module of its name.
_LOCATIONS = {
    "attach": "runs:attach_command",
    "cancel": "runs:cancel_command",
    "devices": "status:devices_command",
    "doctor": "spec:doctor_command",
    "env": "exec:env_command",
    "events": "logs:events_command",
    "fetch": "runs:fetch_command",
    "ls": "status:ls_command",
    "init": "spec:init_command",
    "metrics": "status:metrics_command",
    "profile": "tensorboard:profile_command",
    "rerun": "runs:rerun_command",
    "scale": "up:scale_command",
    "schema": "spec:schema_command",
    "stack": "status:stack_command",
    "validate": "spec:validate_command",
    "wait": "runs:wait_command",
}

# What users of Docker, Kubernetes and similar tools type by habit, and the command that does it here.
_UP = "`tfcluster up` starts a cluster, and applies changes of its spec."
_DOWN = "`tfcluster down` stops a cluster, `tfcluster cancel RUN` a run."
_RUN = "`tfcluster run SCRIPT.py` runs a script on the cluster."
_EXEC = "`tfcluster exec -- COMMAND` runs a command with the cluster's environment, on another host with --on HOST."
_FETCH = "`tfcluster fetch RUN` copies here what a run has written to $TFCLUSTER_OUTPUT."
_RERUN = "`tfcluster rerun RUN` runs a run again."
_STATUS = (
    "`tfcluster ls` lists your clusters, `tfcluster status` shows the tasks of one, `tfcluster top` watches it, "
    "`tfcluster runs` lists its runs."
)
_HABITS = {
    **dict.fromkeys(["start", "create", "apply", "deploy"], _UP),
    **dict.fromkeys(["stop", "kill", "rm", "remove", "delete", "destroy"], _DOWN),
    **dict.fromkeys(["python", "submit"], _RUN),
    **dict.fromkeys(["sh", "shell", "ssh"], _EXEC),
    **dict.fromkeys(["cp", "copy", "download", "pull", "scp"], _FETCH),
    **dict.fromkeys(["retry", "repeat", "resubmit"], _RERUN),
    **dict.fromkeys(["stats", "list", "get", "show", "inspect", "describe", "info", "jobs"], _STATUS),
    "history": "`tfcluster runs` lists the runs of a cluster, `tfcluster events` what happened to its tasks.",
    "config": "`tfcluster validate` checks a spec, `tfcluster up --dry-run` shows what it would start.",
    "help": "`tfcluster --help` lists the commands, `tfcluster COMMAND --help` the options of one.",
    "version": "`tfcluster --version` prints it.",
}


def _locate(name: str) -> str:
    """Return the module and the attribute of a command."""
    if name in _OF_PROVIDERS:
        from tfcluster.providers import COMMANDS

        return COMMANDS[name]
    return f"tfcluster.cli.{_LOCATIONS.get(name, f'{name}:command')}"


class _Commands(click.Group):
    """The group of all commands: the objects `command` of modules, or in `_LOCATIONS`, imported when called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands, group by group."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        name = _ALIASES.get(name, name)
        if name not in _COMMANDS:
            return None
        module, _, attribute = _locate(name).partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command), "each name in the table is a command's"
        command.short_help = _COMMANDS[name]
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the groups of commands, in one column of names, without importing them."""
        width = max(map(len, _COMMANDS))
        for heading, commands in _GROUPS.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), text) for name, text in commands.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; the hint of its error gets what the command line says, which is not known later."""
        try:
            return super().invoke(ctx)
        except ClusterError as error:
            complete_error(error)
            raise

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            from tfcluster.cli.options import unknown_command
            from tfcluster.core.programs import BUNDLED, SCRIPT

            is_program = args[0] in (*BUNDLED, SCRIPT) or args[0].endswith(".py")
            hint = _HABITS.get(args[0], f"`tfcluster run {args[0]}` runs it." if is_program else "")
            raise unknown_command(ctx, args[0], [*_COMMANDS, *_ALIASES], hint)
        return super().resolve_command(ctx, args)


# What to do about errors of the operating system that any call may raise.
_HINTS = {
    errno.EMFILE: "The limit on open files is too low: raise it with `ulimit -n 1024`.",
    errno.ENFILE: "The machine has too many open files.",
    errno.ENOMEM: "The memory, or its limit (`ulimit -v`), is exhausted.",
    errno.EAGAIN: "The limit on processes (`ulimit -u`) may be reached.",
}


@click.group(
    cls=_Commands,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "auto_envvar_prefix": "TFCLUSTER",
        "max_content_width": 100,
    },
    epilog="Example: tfcluster init && tfcluster up && tfcluster run pi --samples 1e7\n\n"
    "`tfcluster COMMAND --help` shows the options of a command.",
)
@click.version_option(__version__, message=f"tfcluster, version %(version)s (protocol {PROTOCOL})")
@click.pass_context
def cli(context: click.Context) -> None:
    """One YAML file in, a running, supervised TensorFlow cluster out."""
    if note := describe_unread(context):
        echo(note, err=True)


def main() -> NoReturn:
    """Run the command line and exit with a documented exit code; no traceback reaches the user."""
    # What a command imports lives as long as it does. To look for garbage among these objects while they are made takes
    # a tenth of the time of a short command.
    gc.set_threshold(settings.COMMAND_NEW_OBJECTS_MAX)
    sys.unraisablehook = _repeat_signal
    signal.signal(signal.SIGTERM, _terminated)
    prepare_streams()
    if "_TFCLUSTER_COMPLETE" in os.environ:
        from tfcluster.cli.completion import complete_and_exit

        complete_and_exit(cli)
    try:
        result = call()
        if result == ExitCode.INTERRUPTED:
            _exit_interrupted()
        sys.exit(int(result) if isinstance(result, int) else ExitCode.DONE)
    except ClusterError as error:
        echo_error(error)
        _note_deleted_folder(error)
        sys.exit(int(error.exit_code))
    except click.ClickException as error:
        echo_usage_error(error)
        _note_deleted_folder(error)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        echo("interrupted", err=True)
        _exit_interrupted()
    except BrokenPipeError:
        # The reader of the output has exited (`tfcluster logs | head`).
        _discard_output()
        sys.exit(int(ExitCode.DONE))
    except OSError as error:
        echo_error(_system_error(error))
        try:
            sys.stdout.flush()
        except OSError:
            _discard_output()
        sys.exit(int(ExitCode.FAILED))
    except Exception as error:
        if _is_caused_by_interrupt(error):
            echo("interrupted", err=True)
            _exit_interrupted()
        echo_error(_bug_report(error))
        sys.exit(int(ExitCode.FAILED))


def call() -> Any:
    """Call the command that the arguments name, and return what it returns; from its end on, Ctrl-C has no message."""
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        result = cli.main(prog_name="tfcluster", standalone_mode=False)
        sys.stdout.flush()  # flush here, so that a broken pipe raises its error here
        return result
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _discard_output() -> None:
    """Replace standard output, so that the interpreter does not fail again when it flushes it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _exit_interrupted() -> NoReturn:
    """Exit after Ctrl-C; at a terminal by SIGINT itself, as only this ends a shell's loop or script around the command.

    A shell shows 130 for both.
    """
    if any(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGINT)
    sys.exit(int(ExitCode.INTERRUPTED))


def _system_error(error: OSError) -> ClusterError:
    """Return the error for a refusal of the operating system, with a hint for limits that users can change."""
    if error.errno == errno.ENOENT and not error.filename and (problem := _deleted_folder()) is not None:
        return problem
    from tfcluster.paths import system_error

    problem = system_error(error)
    problem.hint = problem.hint or _HINTS.get(error.errno or 0, "")
    return problem


def _note_deleted_folder(error: ClusterError | click.ClickException) -> None:
    """Print that the current folder was deleted, if it was: another error, such as a missing file, may be due to it."""
    problem = _deleted_folder()
    if problem is not None and problem.message != error.message:
        echo(f"note: {problem.message}. {problem.hint}", err=True)


def _deleted_folder() -> ClusterError | None:
    from tfcluster.paths import current_folder

    try:
        current_folder()
    except ClusterError as problem:
        return problem
    return None


def _terminated(signal_number: int, frame: object) -> NoReturn:
    sys.exit(int(ExitCode.TERMINATED))


def _repeat_signal(dropped: sys.UnraisableHookArgs) -> None:
    """Send a signal again if Python has dropped the exception that its handler raised.

    Python drops every exception that is raised in a finalizer or in a callback of a weak reference, such as the one
    that each import leaves behind. The command would continue as if the signal had never been sent.
    """
    number = {KeyboardInterrupt: signal.SIGINT, SystemExit: signal.SIGTERM}.get(dropped.exc_type)
    if number is None:
        sys.__unraisablehook__(dropped)
        return
    # Not from here, where the next exception would be dropped too.
    main_thread = threading.main_thread().ident
    is_started = False
    while not is_started:
        timer = threading.Timer(settings.SIGNAL_REPEAT_SECONDS, signal.pthread_kill, [main_thread, number])
        timer.daemon = True
        # On a busy machine the signal arrives before `start` has returned, and the exception would be dropped again.
        with contextlib.suppress(KeyboardInterrupt, SystemExit):
            timer.start()
            is_started = True


def _is_caused_by_interrupt(error: BaseException | None) -> bool:
    """Return whether an interrupt caused an error: Python makes a KeyboardInterrupt in a class body a RuntimeError."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__cause__ or error.__context__
    return False


def _bug_report(error: Exception) -> ClusterError:
    """Convert an unexpected exception (a bug in tfcluster) into an error with the location for a bug report."""
    import traceback

    frame = traceback.extract_tb(error.__traceback__)[-1]
    return ClusterError(
        f"tfcluster failed: {type(error).__name__}: {error} ({frame.filename}:{frame.lineno} in {frame.name})",
        hint="This is a bug in tfcluster. Please report it with this message.",
    )
