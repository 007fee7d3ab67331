"""What a test module says of the cluster that its tests share; the fixtures `cluster` and `hosts` bring it up."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.accounts import Account, account
from tests.conftest import COMMAND, PLAYED, Sandbox, make_sandbox
from tests.hosts import HostsSandbox, over
from tests.strikes import disk


@dataclass(frozen=True)
class Cluster:
    """A cluster of this machine: the constant CLUSTER of a module, for the fixture `cluster`.

    Attributes:
        spec: The text of its cluster.yaml.
        warm: Whether TensorFlow is imported before the first run.
        settings: Other values in tfcluster.settings, for `up` and the agent that it starts.
        changes: More source of modules, by name; then all commands and agents have it, and the settings.
        has_disk: Whether the state folder is a small disk of its own, if the account of the tests may mount one.
        files: More files in the sandbox's folder, by name.
        is_played: Whether this machine plays the hosts of the spec, see tests/played.py.
        has_account: Whether it belongs to an account made for it, not to the account of the tests.
    """

    spec: str
    warm: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    changes: Mapping[str, str] = field(default_factory=dict)
    has_disk: bool = False
    files: Mapping[str, str] = field(default_factory=dict)
    is_played: bool = False
    has_account: bool = False

    @property
    def needs(self) -> tuple[str, ...]:
        """What it needs of the machine, as the mark `needs` names it."""
        return ("root",) if self.has_account else ()

    @contextlib.contextmanager
    def up(self, folder: Path) -> Iterator[Sandbox]:
        """A sandbox with the cluster up, in this folder unless it has an account."""
        with self._sandbox(folder) as sandbox:
            write_files(sandbox.folder, self.files)
            env = sandbox.with_settings(self.settings) if self.settings else None
            sandbox("up", sandbox.spec(self.spec, warm=self.warm), env=env)
            yield sandbox

    @contextlib.contextmanager
    def _sandbox(self, folder: Path) -> Iterator[Sandbox]:
        command = PLAYED if self.is_played else COMMAND
        with contextlib.ExitStack() as stack:
            if self.changes:
                patch = stack.enter_context(pytest.MonkeyPatch.context())
                patch.setenv("TEST_SETTINGS", json.dumps(self.settings))
                patch.setenv("TEST_CHANGES", json.dumps(self.changes))
            if self.has_disk and os.geteuid() == 0:
                stack.enter_context(disk(folder / "state"))
            if self.has_account:
                yield stack.enter_context(sandbox_of(stack.enter_context(account("tfc-o")), command))
            else:
                yield stack.enter_context(make_sandbox(folder, command))


@dataclass(frozen=True)
class Hosts:
    """A cluster over hosts on a network with this machine: the constant HOSTS of a module, for the fixture `hosts`.

    Attributes:
        names: Its hosts; without any, there are only machines.
        jobs: Its spec after the hosts. If it names `localhost`, this machine is a host of the cluster too.
        keys: More keys of hosts, by name; {home} is the host's home folder, and {folder} that of the sandbox.
        strangers: The machines on the network that are not hosts of the cluster.
        has_sshd: Whether ssh reaches the hosts; otherwise they are entered as containers are, by `connect:`.
        warm: Whether TensorFlow is imported before the first run.
        settings: Other values in tfcluster.settings, on all hosts.
        changes: More source of modules, by name, on all hosts.
        files: More files in the sandbox's folder, by name.
    """

    names: tuple[str, ...] = ()
    jobs: str = ""
    keys: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    strangers: tuple[str, ...] = ()
    has_sshd: bool = True
    warm: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    changes: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def needs(self) -> tuple[str, ...]:
        """What it needs of the machine, as the mark `needs` names it."""
        return ("sshd" if self.has_sshd else "network",)

    @contextlib.contextmanager
    def up(self, folder: Path) -> Iterator[HostsSandbox]:
        """A sandbox with the cluster up."""
        with pytest.MonkeyPatch.context() as patch:
            if self.settings:
                patch.setenv("TEST_SETTINGS", json.dumps(self.settings))
            if self.changes:
                patch.setenv("TEST_CHANGES", json.dumps(self.changes))
            with over(folder, *self.names, *self.strangers, has_sshd=self.has_sshd) as sandbox:
                write_files(folder, self.files)
                if self.names:
                    sandbox("up", sandbox.spec(self._text(sandbox), warm=self.warm))
                yield sandbox

    def _text(self, sandbox: HostsSandbox) -> str:
        text = sandbox.text(self.names, self.jobs)
        if not self.keys:
            return text
        spec = yaml.safe_load(text)
        for name, keys in self.keys.items():
            written = json.dumps(keys).replace("{home}", str(sandbox.network.home(name)))
            spec["hosts"][name] |= json.loads(written.replace("{folder}", str(sandbox.folder)))
        return json.dumps(spec)


@contextlib.contextmanager
def sandbox_of(owner: Account, command: tuple[str, ...] = COMMAND) -> Iterator[Sandbox]:
    """A sandbox of an ordinary account, whose folders are where other accounts can come."""
    folder = Path(tempfile.mkdtemp(prefix="tfc-"))
    folder.chmod(0o755)
    try:
        with make_sandbox(folder, owner.command("env", f"HOME={folder}", *command)) as sandbox:
            for path in (folder, folder / "run"):
                os.chown(path, owner.uid, owner.uid)
            yield sandbox
    finally:
        shutil.rmtree(folder)


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Write files, by name, into a folder."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
