"""The hosts of a cluster: the name, the address and the way to each machine, what provides it, and its accounts."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import field
from pathlib import PurePath
from typing import Any

from tfcluster import settings
from tfcluster.paths import LOCAL_HOST
from tfcluster.records import record_class


@record_class(frozen=True)
class Provided:
    """What provides a cluster's hosts, or one of them, and what it has to know of them, which only it can read."""

    provider: str  # its name, see `providers`
    facts: Mapping[str, Any] = field(default_factory=dict)  # JSON values


@record_class(frozen=True)
class Host:
    """A host: a machine that tasks run on.

    The machine that the command runs on is always `localhost`, and no other host is. The other hosts of a private
    cluster connect to the forwarder at `tls_port`, and to programs at the ports that begin with `first_program_port`.
    Both are None until they are allocated, and for other clusters.
    """

    name: str
    address: str  # the host name or IP address to which the other hosts connect to reach its tasks
    ssh: str | None = None  # the destination, such as `user@name` or a name from ~/.ssh/config; None for this machine
    python: str | None = None  # the Python that has TensorFlow; None for the Python that runs this command
    state: str | None = None  # the folder for the state of all clusters; None for $XDG_STATE_HOME/tfcluster
    env: Mapping[str, str] = field(default_factory=dict)  # added to that of the agent, and so of its tasks
    setup: tuple[str, ...] = ()  # shell commands that run there once, before anything else
    shell: str | None = None  # a command of bash that sets up the environment of `python`, as for conda
    connect: str | None = None  # the command that runs a command there, if that is not ssh; see `transport.connector`
    provided: Provided | None = None  # None if the spec names the host
    image: str | None = None  # of the container that it is: what provides it says who can connect to it
    tls_port: int | None = None
    first_program_port: int | None = None

    @property
    def program_ports(self) -> tuple[int, ...]:
        """Return the ports for programs to which the other hosts of a private cluster can connect."""
        first = self.first_program_port
        return () if first is None else tuple(range(first, first + settings.PROGRAM_PORTS))

    @property
    def destination(self) -> str:
        """Return the ssh destination of the host."""
        return self.ssh or self.name

    @property
    def way(self) -> str:
        """Return how the host is reached, as the spec says it."""
        return f"ssh {self.ssh}" if self.connect is None else f"connect {self.connect}"

    @property
    def interpreter(self) -> str:
        """Return the Python interpreter to run on the host."""
        return self.python or "python3"


def is_same_place(one: Host, other: Host) -> bool:
    """Return whether two hosts are reached in the same way, and have the same state folder.

    A program that one of them names by its absolute path is the one that the other leaves to PATH: another version of
    it, or the same one in another folder, leads to the same machine.
    """
    if one.connect is None or other.connect is None:
        return (one.way, one.state) == (other.way, other.state)
    words, others = shlex.split(one.connect), shlex.split(other.connect)
    if one.state != other.state or len(words) != len(others):
        return False
    programs = _program_positions(words)
    return all(
        word == counterpart or (position in programs and _is_same_program(word, counterpart))
        for position, (word, counterpart) in enumerate(zip(words, others, strict=True))
    )


def _program_positions(words: list[str]) -> tuple[int, ...]:
    """Return where a command line names programs: first, and after the line of a shell, which executes it as $0."""
    return (0, 3) if words[1:2] == ["-c"] else (0,)


def _is_same_program(one: str, other: str) -> bool:
    names = {one, other}
    return any(each.startswith("/") and PurePath(each).name in names for each in names)


#: The only host of a cluster whose spec names no hosts. Only this machine connects, and can connect, to its tasks.
THIS_MACHINE = Host(LOCAL_HOST, LOCAL_HOST)


@record_class(frozen=True)
class RegistryEntry:
    """The registry's entry of a cluster; see `client.cluster`."""

    head: str  # the host of the head task
    hosts: tuple[Host, ...]
    provided: Provided | None = None  # None if the spec names the hosts; there can be none yet while it gets them


@record_class(frozen=True)
class OtherAccounts:
    """The other login accounts of a cluster's host; they can connect to ports on its loopback device."""

    user: str  # the account that the cluster runs as on this host
    count: int  # at least one
    names: tuple[str, ...]  # the first few
