"""The command line that gets to a host, by ssh or by what `connect:` says."""

from __future__ import annotations

import shlex
import subprocess

import pytest

from tfcluster.core.hosts import Host
from tfcluster.transport.connector import CommandConnector
from tfcluster.transport.ssh import UNSHARED, ssh_command

SHELL = ["sh", "-c", "exec echo 'a b'"]


def argv(connect: str, *, is_terminal: bool = False) -> list[str]:
    connector = CommandConnector(Host("box", "10.0.0.2", connect=connect))
    return connector.argv("echo 'a b'", is_terminal=is_terminal)


@pytest.mark.parametrize(
    ("connect", "words"),
    [
        ("docker exec -i {host}", ["docker", "exec", "-i", "box"]),
        ("run --at={address} '{host} x'", ["run", "--at=10.0.0.2", "box x"]),
        ("in ${HOME} {{.ID}} '{ print }'", ["in", "${HOME}", "{{.ID}}", "{ print }"]),
    ],
)
def test_names_are_replaced_and_a_shell_with_a_line_follows(connect: str, words: list[str]) -> None:
    assert argv(connect) == [*words, *SHELL]


def test_an_option_for_a_terminal_is_there_only_with_one() -> None:
    connect = "docker exec -i {terminal:-t} {host}"
    assert argv(connect, is_terminal=True) == ["docker", "exec", "-i", "-t", "box", *SHELL]
    assert argv(connect) == ["docker", "exec", "-i", "box", *SHELL]


def test_a_command_that_joins_its_arguments_gets_the_line_as_one_word() -> None:
    *words, line = argv("sudo -u tf ssh {host} {command}")
    assert words == ["sudo", "-u", "tf", "ssh", "box"]
    assert shlex.split(line) == SHELL


@pytest.mark.needs("ssh")
def test_ssh_asks_nothing_and_gives_up_in_time() -> None:
    program, *arguments = ssh_command(Host("alpha", "10.0.0.1", ssh="tf@box"), "true", sharing=UNSHARED)
    printed = subprocess.run([program, "-G", *arguments], capture_output=True, text=True, check=True).stdout
    options = {name: value for name, _, value in (line.partition(" ") for line in printed.splitlines())}
    assert (options["user"], options["batchmode"], options["connecttimeout"]) == ("tf", "yes", "8")
    # It asks after 2 s of silence, and closes the connection when a third question would follow.
    assert (options["serveraliveinterval"], options["serveralivecountmax"]) == ("2", "2")
