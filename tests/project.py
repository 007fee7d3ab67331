"""A folder in which tests type commands: files in, output and exit code out, without any process.

The command line runs in this process, before the agents of `tests/fake_agent.py`. Only what starts processes or
connects to other hosts is replaced, and only here.
"""

from __future__ import annotations

import contextlib
import gc
import io
import os
import re
import shlex
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.fake_agent import THREAD, FakeAgent, OtherHost
from tfcluster import settings
from tfcluster.cli import output
from tfcluster.cli.main import main
from tfcluster.client import cluster as module
from tfcluster.client.resolve import load_spec_topology, spec_source
from tfcluster.core.topology import ClusterTopology
from tfcluster.transport import local
from tfcluster.ui import console


class Outcome(NamedTuple):
    """How a command has ended, and all that it has printed."""

    code: int
    stdout: str
    stderr: str


class Stream(io.TextIOWrapper):
    """A standard stream of a command, in memory."""

    def __init__(self, content: bytes = b"", *, is_terminal: bool = False) -> None:
        self.content = io.BytesIO(content)
        self.is_terminal = is_terminal
        super().__init__(self.content, encoding="utf-8", newline="", write_through=True)

    def isatty(self) -> bool:
        return self.is_terminal

    def text(self) -> str:
        """Return what was written."""
        return self.content.getvalue().decode()


@dataclass
class Project:
    """The current folder, in which commands are typed, and the agents that answer them."""

    folder: Path
    agent: FakeAgent
    patch: pytest.MonkeyPatch

    def file(self, name: str, text: str = "") -> Path:
        """Write a file, and its folder."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def bring_up(self, text: str, name: str = "cluster.yaml") -> ClusterTopology:
        """Write a spec, and have its cluster run as if `up` had started it."""
        path = self.file(name, text)
        topology, _ = load_spec_topology(path, None)
        self.agent.bring_up(topology)
        module.register(module.cluster_of(topology))
        module.record_spec(topology.cluster, spec_source(path, None))
        return self.agent.up[topology.cluster]

    def run(
        self,
        line: str,
        *,
        typed: str = "",
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = "",
        terminal: bool = False,
        error_terminal: bool | None = None,
    ) -> Outcome:
        """Run a command line, without the word `tfcluster`.

        `typed` is its standard input; with a `cwd` of None, it runs in the test's own folder. With `terminal`, its
        streams are terminals; `error_terminal` is for standard error alone.
        """
        streams = {
            "stdin": Stream(typed.encode(), is_terminal=terminal),
            "stdout": Stream(is_terminal=terminal),
            "stderr": Stream(is_terminal=terminal if error_terminal is None else error_terminal),
        }
        with self.patch.context() as patch, _process_state(), _standard_input(typed):
            if cwd is not None:
                patch.chdir(self.folder / cwd)
            for name, stream in streams.items():
                patch.setattr(sys, name, stream)
            for name, value in (env or {}).items():
                patch.setenv(name, value)
            patch.setattr(sys, "argv", ["tfcluster", *shlex.split(line)])
            with pytest.raises(SystemExit) as ended:
                main()
        code = ended.value.code
        assert isinstance(code, int)
        stdout, stderr = streams["stdout"].text(), streams["stderr"].text()
        if terminal:  # where nobody sees that click 8.1 writes the blank after a question to standard output
            stdout, stderr = stdout.removeprefix(" "), re.sub(r"\[y/N\]:(?! )", "[y/N]: ", stderr)
        assert "Traceback" not in stdout + stderr
        return Outcome(code, stdout, stderr)


@contextlib.contextmanager
def _standard_input(text: str) -> Iterator[None]:
    """Have the descriptor 0 bring a text too, which is what /dev/stdin leads to."""
    with tempfile.TemporaryFile() as file, os.fdopen(os.dup(0), "rb") as before:
        file.write(text.encode())
        file.seek(0)
        os.dup2(file.fileno(), 0)
        try:
            yield
        finally:
            os.dup2(before.fileno(), 0)


@contextlib.contextmanager
def _process_state() -> Iterator[None]:
    """Restore what a command changes in its process, and have it find nothing that an earlier one has left."""
    for cached in (console.console, console.error_console, output._sending_view):
        cached.cache_clear()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    threshold, hook = gc.get_threshold(), sys.unraisablehook
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        gc.set_threshold(*threshold)
        sys.unraisablehook = hook
        console.console.cache_clear()
        console.error_console.cache_clear()


def isolate(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Have the commands of this process see only the clusters of a folder."""
    for name in [*os.environ]:
        if name.startswith("TFCLUSTER_") or name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES"):
            patch.delenv(name)
    for variable in ("XDG_STATE_HOME", "XDG_RUNTIME_DIR", "HOME"):
        patch.setenv(variable, str(folder / variable.lower()))
        (folder / variable.lower()).mkdir(mode=0o700)


@contextlib.contextmanager
def make_project(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[Project]:
    """Make a folder for commands, before agents that have nothing up."""
    isolate(folder, patch)
    agent = FakeAgent()
    patch.setattr(module, "make_transport", lambda cluster, host: OtherHost(agent, cluster, host))
    patch.setattr(module, "prestart_agent", lambda: None)
    patch.setattr(local, "start_agent", lambda cluster, host, **options: agent.start(cluster, host))
    # The fake agent is this process, which does not exit with it.
    patch.setattr(settings, "AGENT_EXIT_UNANNOUNCED_SECONDS", 0.0)
    (folder / "project").mkdir()
    before = {*threading.enumerate()}
    try:
        yield Project(folder / "project", agent, patch)
    finally:
        agent.stop()
        # Threads of commands, which would end with their process; one may just be starting another one.
        deadline = time.monotonic() + 1
        while time.monotonic() < deadline and any(
            thread.name != THREAD for thread in {*threading.enumerate()} - before
        ):
            time.sleep(0.01)
