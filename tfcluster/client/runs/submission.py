"""Submit a run, record what it is started from, follow it up to its result, and tell the user that it has ended."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from tfcluster import settings
from tfcluster.client.cluster import Cluster
from tfcluster.client.rpc.parallel import warn
from tfcluster.client.runs.interrupts import GracefulInterrupt, ScriptTerminal, terminal_size
from tfcluster.client.runs.lost_state import naming_empty_head
from tfcluster.control_characters import escape_to_one_line
from tfcluster.core.caller import Caller, OutputStreams
from tfcluster.core.code import CodeLocation, digest_of
from tfcluster.core.notices import Notice, environment_of, run_notice
from tfcluster.core.runs import RunOptions, script_exit_code
from tfcluster.errors import ClusterError, usage_error
from tfcluster.input_file import is_descriptor
from tfcluster.os.process_handle import peer_credentials
from tfcluster.protocol.api import runs as api
from tfcluster.version import __version__

if TYPE_CHECKING:
    from tfcluster.client.runs.code import CodeTree, ShowSending
    from tfcluster.client.runs.requests import Event, RunResponse


_STDIN, _STDOUT, _STDERR = 0, 1, 2


class StdinServer:
    """Hands the standard input over to the driver of a run, which gives it to the script.

    The socket is in the abstract namespace, so that nothing is left of it, and gives only to processes of this user.
    """

    def __init__(self) -> None:
        self.name = f"tfcluster-stdin-{os.urandom(16).hex()}"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(f"\0{self.name}")
        self._listener.listen()

    def __enter__(self) -> StdinServer:
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # ends the thread's wait
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                if peer_credentials(connection)[1] == os.getuid():
                    _send_stdin(connection)


def _send_stdin(connection: socket.socket) -> None:
    """Send the standard input; of a command in the background, whose terminal another process reads, /dev/null."""
    is_in_background = False
    with contextlib.suppress(OSError):  # a terminal that does not control this session can be read like a pipe
        is_in_background = os.isatty(_STDIN) and os.tcgetpgrp(_STDIN) != os.getpgrp()
    with open(os.devnull, "rb") as nothing:
        socket.send_fds(connection, [b"\0"], [nothing.fileno() if is_in_background else _STDIN])


def describe_caller(stdin: str | None) -> Caller:
    """Describe this process to the driver of its script.

    `stdin` names the socket that hands the standard input over; None if the script gets none.
    """
    umask = os.umask(0)
    os.umask(umask)
    return Caller(dict(os.environ), umask, stdin)


def describe_output() -> OutputStreams:
    """Describe the standard output and standard error of this process."""
    size = terminal_size()
    return OutputStreams(
        stdout_is_terminal=os.isatty(_STDOUT),
        stderr_is_terminal=os.isatty(_STDERR),
        is_shared=os.path.sameopenfile(_STDOUT, _STDERR),
        columns=size.columns,
        lines=size.lines,
    )


@dataclass(frozen=True)
class RunSubmission:
    """A run to submit and how this command follows it.

    `approve_code` is called with a description of the code that is to be sent to another host, if there is much of it;
    what it raises ends the command. The command `options.notify` is run here or, if the run is detached, by the agent.
    """

    options: RunOptions
    detach: bool = False  # return as soon as the run is submitted
    upload: BinaryIO | None = None  # an open file to upload with the run
    approve_code: Callable[[str], None] = lambda description: None
    show_sending: ShowSending = lambda host, size, remaining_bytes: None  # see `ShowSending`
    shows_output: bool = True  # write the output to this command's streams as it arrives
    secret: str = field(default="", repr=False)  # as in `RunRequest`

    def events(self, cluster: Cluster) -> Generator[Event, None, None]:
        """Submit the run and follow it up to its result; an interrupt cancels the run.

        A run on another host continues while the connection to it is lost, and is followed again as soon as the host
        can be reached.

        Yields:
            The events of the run; if it is detached, the first event only, unless the run has ended by then.

        Raises:
            ClusterError: The run could not be started; or it could not be cancelled, and continues.
        """
        options, is_group = self.options, self.options.jobs is not None
        is_script = options.is_script
        client = cluster.connect_head()
        result: Event = {}
        with contextlib.ExitStack() as stack:
            caller = code = None
            passes_signals = is_script and not self.detach
            has_terminal = passes_signals and not is_group
            if is_script and not client.transport.is_remote:
                caller = describe_caller(stack.enter_context(StdinServer()).name if has_terminal else None)
            elif is_script and self.upload is None:  # one from a pipe is uploaded
                with naming_empty_head(cluster):
                    self.code_tree.send(
                        client, lambda host, what: warn(f"sending to {host}: {what}"), self.show_sending
                    )
                code = self.code_tree.location
            request = self._request(caller, code, is_remote=client.transport.is_remote)
            interrupt = stack.enter_context(
                GracefulInterrupt(cluster, ScriptTerminal(cluster) if passes_signals else None, is_script=is_script)
            )
            with naming_empty_head(cluster):
                response = client.stream(request, interrupt=interrupt)
            for event in self._events_of(request, response, cluster, interrupt):
                result = event
                yield event
        if options.notify is not None and not self.detach and result.get("event") == "result":
            run_notify_command(options.notify, run_notice(cluster.name, result))
        if script_exit_code(result) is None:
            interrupt.raise_if_any()

    def _request(self, caller: Caller | None, code: CodeLocation | None, *, is_remote: bool) -> api.RunRequest:
        streams = None
        if self.options.is_script:
            streams = describe_output() if self.shows_output and not self.detach else OutputStreams()
        options = self.options if self.detach else replace(self.options, notify=None)  # this command notifies itself
        return api.RunRequest(options, self.detach, not is_remote, code, caller, streams, self.secret)

    @cached_property
    def code_tree(self) -> CodeTree:
        """Read the folder of the script, which is sent to other hosts; this is done, and asked, once."""
        from tfcluster.client.runs.code import CodeFolder, CodeTree  # on this machine a script runs where it is

        folder = CodeFolder.of(self.options.parameters["path"], self.options.parameters["cwd"])
        for note in folder.notes:
            warn(escape_to_one_line(note))
        if folder.is_large:
            self.approve_code(folder.describe())
        return CodeTree.of(folder)

    def _events_of(
        self,
        request: api.RunRequest,
        response: RunResponse,
        cluster: Cluster,
        interrupt: GracefulInterrupt,
    ) -> Generator[Event, None, None]:
        cancel_on_disconnect = not (cluster.connect_head().transport.is_remote or self.detach)
        # On this machine, closing the response before the result, for any reason, also cancels the run. On another
        # host the command has to cancel it explicitly, because there a closed connection may just be a lost one.
        with contextlib.closing(response):
            with naming_empty_head(cluster):
                first = next(response).record
            run = interrupt.run = str(first["run"])
            from tfcluster.client.runs.requests import follow  # imported while the run starts

            with contextlib.nullcontext() if cancel_on_disconnect or self.detach else interrupt.cancelling():
                yield first
                if self.upload is not None:
                    response.send_file(self.upload)
                yield from follow(
                    cluster,
                    response,
                    run,
                    interrupt,
                    events=1,
                    cancel_on_disconnect=cancel_on_disconnect,
                    again=request,
                )


def with_origin(options: RunOptions, upload: BinaryIO | None) -> RunOptions:
    """Return the options of a run with what the run is started from now."""
    digest, commit, is_clean = None, None, None
    if options.is_script and upload is None:
        digest, commit, is_clean = describe_script(options.parameters)
    path = None
    if upload is not None:  # empty if it is no file that can be read again
        path = os.path.abspath(upload.name) if isinstance(upload.name, str) else ""
        path = path if os.path.isfile(path) and not is_descriptor(path) else ""
    return replace(options, version=__version__, digest=digest, commit=commit, is_clean=is_clean, upload=path)


def describe_script(parameters: Mapping[str, Any]) -> tuple[str | None, str | None, bool | None]:
    """Return the digest of a script, its commit, and whether the work tree is clean, as far as they are known.

    Raises ClusterError if it is a program of another kind.
    """
    from tfcluster.client.runs.code import git_work_tree, run_git  # other programs need no git

    path = parameters["path"]
    digest = None
    if path is not None and os.path.isfile(path):
        source = Path(path).read_bytes()
        if source.startswith((b"#!", b"\x7fELF", b"PK")) or path.endswith(".sh"):
            _check_python(parameters["argument"], source)
        digest = digest_of(source)
    folder = os.path.realpath(parameters["cwd"]) if path is None else os.path.dirname(os.path.realpath(path))
    if git_work_tree(folder) is None:
        return digest, None, None
    try:
        arguments = ("status", "--porcelain=v2", "--branch", "--untracked-files=no")
        status = run_git(folder, *arguments, timeout=settings.GIT_STATUS_SECONDS).decode(errors="replace")
    except ClusterError:  # no git is installed, it takes too long, or the folder is another user's
        return digest, None, None
    first, *rest = status.splitlines()
    commit = first.removeprefix("# branch.oid ")
    return (digest, None, None) if commit == "(initial)" else (digest, commit, all(line[0] == "#" for line in rest))


def _check_python(path: str, source: bytes) -> None:
    """Raise a ClusterError if a file is a program for the kernel or a shell, or an archive without a main module."""
    from tfcluster.core.script_source import find_other_program, lacks_main

    if lacks_main(source):
        raise usage_error(f"{path} is an archive without __main__.py", "`python -m zipapp` makes an archive with one.")
    if other := find_other_program(path, source):
        command = shlex.quote(os.path.join("." if "/" not in path else "", path))
        hint = f"`tfcluster exec -- {command}` runs any program with the cluster's environment."
        raise usage_error(f"{path} is {other}, not a Python script", hint)


def describe_changes(run: str, then: RunOptions, now: RunOptions) -> list[str]:
    """Describe what has changed between `then` and `now`, of the script of a run and its work tree."""
    changes = []
    if then.digest != now.digest:
        changes.append(f"{os.path.basename(now.parameters['path'])} has changed since {run}")
    if then.commit != now.commit or (then.commit is not None and not (then.is_clean and now.is_clean)):
        changes.append(f"{run} ran at {then.describe_commit()}; now it is {now.describe_commit()}")
    return changes


def run_notify_command(command: str, notice: Notice) -> None:
    """Run a command with a notice, as JSON on its standard input and as environment variables; warn if it fails.

    What it prints goes to standard error: standard output is the run's.
    """
    process = subprocess.Popen(
        ["/bin/sh", "-c", command],
        stdin=subprocess.PIPE,
        stdout=2,
        env={**os.environ, **environment_of(notice)},
        start_new_session=True,
    )
    try:
        process.communicate(json.dumps(notice).encode() + b"\n", settings.NOTICE_SECONDS)
    except subprocess.TimeoutExpired:
        warn(f"the command of --notify did not end within {settings.NOTICE_SECONDS:g} s, and was killed")
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if process.returncode > 0:
        warn(f"the command of --notify ended with exit code {process.returncode}")
