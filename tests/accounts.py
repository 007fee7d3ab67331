"""Accounts of this machine that tests make: the owner of a cluster as an ordinary user, and a stranger."""

from __future__ import annotations

import contextlib
import pwd
import shlex
import subprocess
import sys
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests import requirements

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Account:
    """An account.

    Attributes:
        name: Its name.
        uid: Its user id, and that of its group.
    """

    name: str
    uid: int

    def command(self, *arguments: str) -> tuple[str, ...]:
        """A command line that runs another one as this account, without privileges.

        It sees this Python and the project also where they are in a folder that only root can enter.
        """
        words = (*self.become, *arguments)
        if not (script := show_hidden_folders()):
            return words
        return ("unshare", "--mount", "sh", "-ec", f'{script}exec "$@"', "sh", *words)

    @property
    def become(self) -> tuple[str, ...]:
        """The beginning of a command line that runs another one as this account, where it sees all it needs."""
        return ("setpriv", f"--reuid={self.uid}", f"--regid={self.uid}", "--clear-groups")


@contextlib.contextmanager
def account(prefix: str) -> Iterator[Account]:
    """An account that exists until the block ends."""
    requirements.check_declared("root")
    name = f"{prefix}{uuid.uuid4().hex[:8]}"
    subprocess.run(["useradd", "--no-create-home", "--shell", "/bin/sh", name], check=True)
    try:
        yield Account(name, pwd.getpwnam(name).pw_uid)
    finally:
        subprocess.run(["userdel", name], check=True)


def show_hidden_folders(*emptied: str) -> str:
    """Return shell commands for a mount namespace, in which each account sees this Python and the project then.

    `emptied` are folders that have nothing else there.
    """
    return _show(_hidden_folders(emptied))


def _hidden_folders(emptied: Iterable[str]) -> dict[Path, list[Path]]:
    """Return the folders that other accounts cannot enter, and those to empty, each with what is needed of it."""
    hidden: dict[Path, list[Path]] = {Path(folder): [] for folder in emptied}
    for needed in dict.fromkeys(Path(path).resolve() for path in (sys.base_prefix, sys.prefix, ROOT)):
        parents = [path for path in reversed(needed.parents) if not path.stat().st_mode & 1 or path in hidden]
        if parents:
            hidden.setdefault(parents[0], []).append(needed)
    return hidden


def _show(hidden: dict[Path, list[Path]]) -> str:
    """Return shell commands that replace hidden folders by ones in which there is only what is needed."""
    script = "mount -t tmpfs tmpfs /mnt; " if hidden else ""
    for number, (folder, needed) in enumerate(hidden.items()):
        for index, path in enumerate(needed):
            kept = f"/mnt/{number}-{index}"
            script += f"mkdir {kept}; mount --bind {shlex.quote(str(path))} {kept}; "
        script += f"mount -t tmpfs -o mode=755 tmpfs {shlex.quote(str(folder))}; "
        for index, path in enumerate(needed):
            quoted = shlex.quote(str(path))
            script += f"mkdir -p {quoted}; mount --move /mnt/{number}-{index} {quoted}; "
    return script
