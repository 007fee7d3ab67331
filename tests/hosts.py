"""Hosts on a network of their own, and this machine among them as `here`: with a real sshd each, or as containers."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests import requirements
from tests.conftest import Sandbox, environment_of, files_of, marked_processes, wait_for
from tests.namespaces import Network, network
from tfcluster.core.hosts import Host
from tfcluster.os import procfs

HERE = "here"
#: The `connect:` of hosts that are entered as containers are.
CONNECT = "enter {terminal:-t} {host}"
# What processes on hosts inherit of the tests' environment, as commands do; tests/changed has the code that reads it.
_INHERITED = ("PATH", "TEST_RUN", "TEST_SETTINGS", "TEST_CHANGES")
CHANGED = str(Path(__file__).parent / "changed")
#: What Debian's sshd_config says; all else is what OpenSSH does without a word.
_DEBIAN = """\
KbdInteractiveAuthentication no
UsePAM yes
X11Forwarding yes
PrintMotd no
AcceptEnv LANG LC_*
Subsystem sftp /usr/lib/openssh/sftp-server
"""

# The default key exchange takes twice the processor time of the rest of a login. Behind a router it stays: its packets
# are large.
_KEY_EXCHANGE = "curve25519-sha256"

#: For pam: asks for the code `1234`, after a key was accepted.
_SECOND_FACTOR = """\
auth required pam_exec.so quiet expose_authtok /bin/grep -q 1234
auth required pam_permit.so
account required pam_permit.so
session required pam_permit.so
"""

# As `docker exec -i` in a container: enter [-t] NAME COMMAND.
_ENTER = """\
printf '%s\\n' "$*" >>{log}
[ "$1" != -t ] || shift
if [ -e {folder}/"$1".away ]; then echo "Error: No such container: $1" >&2; exit 1; fi
name=$1; shift
exec {folder}/bin/"$name".enter TEST_ENTERED="$name" "$@\""""


@dataclass
class SshHosts:
    """Hosts that `ssh NAME`, or `enter NAME COMMAND`, reaches from the machine `here`, where the command is to run.

    They share this machine's files, but have folders of their own for all that a user keeps.
    """

    folder: Path
    network: Network
    names: tuple[str, ...]
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)  # TEST_MARK of every process that runs on them
    etc_hosts: Path | None = None  # the file that all machines have as /etc/hosts; None for that of this machine
    _daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """What a command needs in its environment on the machine `here`: its ssh knows the hosts."""
        return {
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            **self._user_folders(HERE),
            "TEST_MARK": self.mark,
        }

    def command(self, *arguments: str) -> list[str]:
        """A command line that runs another one on the machine `here`."""
        return self._on(HERE, *arguments)

    def _on(self, name: str, *arguments: str) -> list[str]:
        mount = f'mount --bind {self.etc_hosts} /etc/hosts && exec "$@"'
        named = () if self.etc_hosts is None else ("unshare", "--mount", "sh", "-c", mount, "sh")
        return self.network[name].command(*named, *arguments)

    def address(self, name: str) -> str:
        """What the other hosts dial."""
        return self.network[name].ipv4

    def host(self, name: str, **more: Any) -> Host:
        """A host as a topology has it."""
        return Host(**{"name": name, "address": self.address(name), "ssh": name, "python": sys.executable, **more})

    def home(self, name: str) -> Path:
        """Where a host's user keeps everything: state/, run/, cache/ and what is in a home folder."""
        return self.folder / name

    def _user_folders(self, name: str) -> dict[str, str]:
        home = self.home(name)
        return {
            "HOME": str(home),
            "XDG_STATE_HOME": str(home / "state"),
            "XDG_RUNTIME_DIR": str(home / "run"),
            "XDG_CACHE_HOME": str(home / "cache"),
        }

    def set_up(self) -> None:
        """Make keys and folders, and the programs `ssh` and `enter`."""
        for name in (HERE, *self.names):
            for part in ("state", "run", "cache"):
                (self.home(name) / part).mkdir(mode=0o700, parents=True)
        (self.folder / "bin").mkdir()
        for name in self.names:
            self.enter_as(name)
        self._write_program("enter", _ENTER.format(log=self._ways_log, folder=self.folder))

    def enter_as(self, name: str, *become: str, **variables: str) -> None:
        """Have `enter` run all on a host by a command that makes it another user's, and with more variables."""
        given = " ".join(shlex.quote(f"{key}={value}") for key, value in (self.variables(name) | variables).items())
        command = shlex.join(self._on(name, *become, "env", "-i"))
        self._write_program(f"{name}.enter", f'exec {command} {given} "$@"')

    def start_sshds(self) -> None:
        """Make keys, and start every sshd."""
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd wants it
        for key in ("host_key", "other_host_key", "user_key", "other_user_key"):
            _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(self.folder / key))
        shutil.copy(self.folder / "user_key.pub", self.folder / "authorized_keys")
        ssh = self.command(shutil.which("ssh") or "ssh", "-F", str(self.folder / "ssh_config"))
        self._write_program("ssh", f'echo "$@" >>{self._ways_log}\nexec {shlex.join(ssh)} "$@"')
        self.use_key("user_key")
        self.know(*self.names)
        for name in self.names:
            self.start(name)

    def _write_program(self, name: str, script: str) -> None:
        program = self.folder / "bin" / name
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)

    @property
    def _ways_log(self) -> Path:
        return self.folder / "calls"

    def ssh_calls(self) -> list[str]:
        """The arguments of each ssh or `enter` that has been started so far, each on a line."""
        return self._ways_log.read_text().splitlines() if self._ways_log.exists() else []

    def hide(self, name: str) -> None:
        """Have `enter` find a host no more, and lose what it runs there already."""
        self._away(name).touch()
        for pid in self.entered(name):
            os.kill(pid, signal.SIGKILL)

    def show(self, name: str) -> None:
        """Have `enter` find a host again."""
        self._away(name).unlink()

    def _away(self, name: str) -> Path:
        return self.folder / f"{name}.away"

    def entered(self, name: str) -> list[int]:
        """The processes that commands and links run on a host by `enter`, without what those have started."""
        marked = marked_processes(self.mark)
        inside = {pid for pid in marked if f"TEST_ENTERED={name}\0".encode() in environment_of(pid)}
        outer = [pid for pid in inside if _parent(pid) not in inside]
        # The command that has entered may have ended since, and its session is kept. An agent has no parent either.
        return [pid for pid in outer if _parent(pid) in marked or "session=json" in marked[pid]]

    def sessions(self) -> int:
        """The number of sessions so far in which a Python was started on a host."""
        return sum("session=json" in line for line in self.ssh_calls())

    def logins(self, name: str) -> int:
        """The number of logins so far to a host."""
        return (self.folder / f"{name}.sshd_log").read_text(errors="replace").count("Accepted ")

    def use_key(self, key: str, options: str = "") -> None:
        """Have ssh offer a key, `user_key` being the one that the hosts accept; `options` precede the others."""
        (self.folder / "ssh_config").write_text(
            options
            + "".join(f"Host {name}\n  HostName {self.address(name)}\n" for name in self.names)
            + f"Host *\n  User root\n  IdentityFile {self.folder / key}\n  IdentitiesOnly yes\n  IdentityAgent none\n"
            f"  UserKnownHostsFile {self.folder / 'known_hosts'}\n  GlobalKnownHostsFile /dev/null\n"
            + ("" if self.etc_hosts else f"  KexAlgorithms {_KEY_EXCHANGE}\n")
        )

    def know(self, *names: str, key: str = "host_key") -> None:
        """Have ssh know the keys of these hosts and of no others."""
        public = (self.folder / f"{key}.pub").read_text()
        (self.folder / "known_hosts").write_text("".join(f"{self.address(name)} {public}" for name in names))

    def variables(self, name: str) -> dict[str, str]:
        """The environment of what a user starts on a host."""
        inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        if not inherited.keys().isdisjoint(("TEST_SETTINGS", "TEST_CHANGES")):
            inherited["PYTHONPATH"] = CHANGED
        return {**self._user_folders(name), "TEST_MARK": self.mark, **inherited}

    def start(self, name: str, *options: str, pam: str = "") -> None:
        """Start a host's sshd, with further options; returns when it accepts connections.

        With a configuration for `pam`, it asks that who may log in.
        """
        variables = self.variables(name)
        config = self.folder / f"{name}.sshd_config"
        # A file below /tmp would be refused, as others can write there; a program that prints it is not.
        keys = f"AuthorizedKeysCommand /bin/cat {self.folder / 'authorized_keys'}\nAuthorizedKeysCommandUser root\n"
        config.write_text(
            "".join(f"{option}\n" for option in options)  # of two values, sshd uses the first
            + f"ListenAddress {self.address(name)}\nHostKey {self.folder / 'host_key'}\nPidFile none\n"
            f"AuthorizedKeysFile none\n{keys}"
            f"SetEnv {' '.join(_quoted(f'{name}={value}') for name, value in variables.items())}\n{_DEBIAN}"
        )
        command = [str(requirements.find_program("sshd")), "-D", "-e", "-f", str(config)]
        if pam:
            (self.folder / "pam").write_text(pam)
            mount = f'mount --bind {self.folder / "pam"} /etc/pam.d/sshd && exec "$@"'
            command = ["unshare", "--mount", "sh", "-c", mount, "sh", *command]
        self._daemons[name] = self._spawn(name, command)

        def listens() -> bool:
            if self._daemons[name].poll() is not None:  # the one before, or its last session, still had the port
                self._daemons[name] = self._spawn(name, command)
            return f"pid={self._daemons[name].pid}," in self.run(name, "ss", "-Hltnp", "sport", "=", ":22")

        wait_for(listens)

    def start_with_second_factor(self, name: str) -> None:
        """Start a host's sshd again, which asks for a code besides a key."""
        self.kill(name)
        methods = "AuthenticationMethods publickey,keyboard-interactive"
        self.start(name, "PermitRootLogin yes", "KbdInteractiveAuthentication yes", methods, pam=_SECOND_FACTOR)

    def typing_the_code(self) -> dict[str, str]:
        """Variables with which ssh gets the code, as from a user on a terminal."""
        self._write_program("askpass", "echo 1234")
        return {"SSH_ASKPASS": str(self.folder / "bin" / "askpass"), "SSH_ASKPASS_REQUIRE": "force"}

    def _spawn(self, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.sshd_log").open("ab") as log:
            return subprocess.Popen(self._on(name, *command), stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def kill(self, name: str) -> None:
        """Kill a host's sshd with all its connections."""
        daemon = self._daemons.pop(name)
        for pid in (daemon.pid, *_descendants(daemon.pid)):
            with contextlib.suppress(OSError):
                if Path(os.readlink(f"/proc/{pid}/exe")).name.startswith("sshd"):
                    os.kill(pid, signal.SIGKILL)
        daemon.wait(30)

    def run(self, name: str, *arguments: str) -> str:
        """What a command prints that is run on a host, without ssh."""
        return _run(*self.network[name].command(*arguments))

    def processes(self) -> dict[int, str]:
        """Return the command line of each process that runs on the hosts, or that a command left on `here`."""
        return marked_processes(self.mark)  # the sshds have no mark

    def pids(self, part: str) -> list[int]:
        """The processes of hosts, and those that a command left on `here`, with this part in their command lines."""
        return [pid for pid, line in self.processes().items() if part in line]

    def leftovers(self) -> list[str]:
        """Everything that may not be left on any host when no cluster is up: processes, sockets, state."""
        return [*map(str, self.processes().items()), *map(str, self._leftover_files())]

    def _leftover_files(self) -> list[Path]:
        kept = {"logs", "runs"}
        folders = "*/state", "*/scratch"  # the second is one that a spec names
        files = [path for folder in folders for path in files_of(self.folder, f"{folder}/tfcluster/*/*/*")]
        files = [path for path in files if path.name not in kept]
        return [*files, *files_of(self.folder, "*/run/tfcluster/*")]

    def check_leftovers(self) -> None:
        """Check that nothing is left, and remove what is, so that it is found once."""
        with contextlib.suppress(AssertionError):
            wait_for(lambda: not self.leftovers())  # an agent without a cluster ends by itself in a moment
        left = self.leftovers()
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for path in self._leftover_files():
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        assert not left, left

    def tear_down(self) -> None:
        """End every sshd, and check that nothing else is left."""
        try:
            self.check_leftovers()
        finally:
            for name in list(self._daemons):
                self.kill(name)


def _quoted(text: str) -> str:
    """Return a text as one argument of a line of sshd_config."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


@contextmanager
def ssh_hosts(*names: str, has_sshd: bool = True, routed: bool = False) -> Iterator[SshHosts]:
    """Hosts of these names, each with an sshd, on a network with the machine `here`; all is gone in the end.

    If the network is routed, the machines know each other's names too.
    """
    requirements.check_declared("sshd" if has_sshd else "network")
    # A short path, as of a home folder: sockets are below it.
    with (
        tempfile.TemporaryDirectory(prefix="tfc-", dir="/tmp") as folder,
        network(HERE, *names, routed=routed) as made,
    ):
        hosts = SshHosts(Path(folder), made, names)
        if routed:
            hosts.etc_hosts = Path(folder, "etc_hosts")
            known = "".join(f"{machine.ipv4} {machine.name}.lab\n" for machine in made.machines.values())
            hosts.etc_hosts.write_text(f"127.0.0.1 localhost\n{known}")
        try:
            hosts.set_up()
            if has_sshd:
                hosts.start_sshds()
            yield hosts
        finally:
            hosts.tear_down()


@dataclass
class HostsSandbox(Sandbox):
    """A sandbox whose commands run on the machine `here` of a network of hosts."""

    hosts: SshHosts | None = None
    has_sshd: bool = True

    @property
    def network(self) -> SshHosts:
        assert self.hosts is not None
        return self.hosts

    @property
    def environment(self) -> dict[str, str]:
        return {**super().environment, **self.network.environment}

    def text(self, names: tuple[str, ...], jobs: str, pythons: dict[str, Path] | None = None) -> str:
        """A spec with these hosts, and this machine where a job names it."""
        paths = dict.fromkeys(names, Path(sys.executable)) | (pythons or {})
        way = "" if self.has_sshd else f", connect: '{CONNECT}'"
        lines = [f"  {name}: {{address: {self.network.address(name)}, python: {paths[name]}{way}}}\n" for name in names]
        here = f"  localhost: {{address: {self.network.address(HERE)}}}\n" if "localhost" in jobs else ""
        return f"name: wide\nhosts:\n{''.join(lines)}{here}{jobs}"

    @contextmanager
    def without(self, part: str, host: str) -> Iterator[None]:
        """A host has lost its `link`, or the `way` that commands take to it, which ends what they have there."""
        lose, restore = {
            "link": (self.network.network.unplug, self.network.network.plug_in),
            "way": (self.network.kill, self.network.start) if self.has_sshd else (self.network.hide, self.network.show),
        }[part]
        lose(host)
        try:
            yield
        finally:
            restore(host)


@contextmanager
def over(folder: Path, *names: str, has_sshd: bool = True, routed: bool = False) -> Iterator[HostsSandbox]:
    """Hosts, and a sandbox to run commands in; nothing may be left in the end."""
    with ssh_hosts(*names, has_sshd=has_sshd, routed=routed) as hosts:
        command = tuple(hosts.command(sys.executable, "-m", "tfcluster"))
        sandbox = HostsSandbox(folder, mark=hosts.mark, command=command, hosts=hosts, has_sshd=has_sshd)
        try:
            yield sandbox
        finally:
            sandbox.end_commands()
            if hosts.leftovers():
                sandbox("down", "--all", "--grace", "1", code=None)


def _descendants(pid: int) -> list[int]:
    found = procfs.children(pid)
    return [*found, *(each for child in found for each in _descendants(child))]


def _parent(pid: int) -> int:
    return [*procfs.ancestors(pid), 0][1]


def _run(*command: str) -> str:
    result = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, f"{command}: {result.stderr}"
    return result.stdout
