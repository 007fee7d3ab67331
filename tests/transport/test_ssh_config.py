"""The command line that gets to a host, and what ssh says of itself: its entrances, its options, its version."""

from __future__ import annotations

import shlex
import subprocess
import threading
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest

from tfcluster import settings
from tfcluster.core.hosts import Host
from tfcluster.transport import ssh_config
from tfcluster.transport.connector import CommandConnector
from tfcluster.transport.ssh import UNSHARED, ssh_command
from tfcluster.transport.ssh_config import find_entrance, login_slot


@pytest.mark.parametrize(
    ("options", "entrance"),
    [
        ({"hostname": "10.0.0.1", "port": "22"}, "10.0.0.1:22"),
        ({"hostname": "10.0.0.1", "port": "22", "proxycommand": "none"}, "10.0.0.1:22"),
        ({"hostname": "10.0.0.1", "port": "22", "proxyjump": "tf@door:2222"}, "tf@door:2222"),
        ({"hostname": "10.0.0.1", "proxycommand": "ssh -W %h:%p door"}, "ssh -W %h:%p door"),
        ({"hostname": "10.0.0.1", "host": "a", "proxycommand": "ssh -W 10.0.0.1:22 door"}, "ssh -W %h:22 door"),
        ({"hostname": "a", "host": "a", "proxycommand": "ssh -W a:22 gate"}, "ssh -W %h:22 gate"),
        ({"hostname": "gpu", "host": "gpu", "proxycommand": "ssh -W gpu:22 gpu-gate"}, "ssh -W %h:22 gpu-gate"),
    ],
)
def test_the_entrance_of_a_host(options: dict[str, str], entrance: str) -> None:
    assert find_entrance(options) == entrance


@pytest.mark.needs("ssh")
@pytest.mark.usefixtures("use_key")
def test_hosts_behind_one_jump_host_are_logged_into_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "SSH_LOGINS_AT_ONCE", 2)
    (tmp_path / "config").write_text("Host a*\n  ProxyJump door\nHost b*\n  ProxyCommand ssh -W %h:%p other\n")
    has_entered, may_leave = threading.Event(), threading.Event()

    def slot(host: str) -> AbstractContextManager[None]:
        return login_slot(dict(ssh_config.read_options(host)))

    def log_in() -> None:
        with slot("a2"):
            has_entered.set()
            may_leave.wait(60)

    with slot("a0"), ExitStack() as first:
        first.enter_context(slot("a1"))
        waiting = threading.Thread(target=log_in)
        waiting.start()
        with slot("b0"):
            assert not has_entered.wait(0.2)
            first.close()
            assert has_entered.wait(60)
            may_leave.set()
            waiting.join(60)


@pytest.mark.parametrize(("version", "is_set"), [((8, 4), False), ((), False), ((8, 7), True), ((10, 0), True)])
def test_an_older_ssh_gets_no_option_that_it_does_not_know(
    version: tuple[int, ...], is_set: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh_config, "version", lambda: version)
    assert ("SessionType=default" in ssh_command(Host("a", "a"), "true", sharing=UNSHARED)) is is_set


@pytest.mark.needs("ssh")
def test_the_version_of_this_machines_ssh() -> None:
    assert ssh_config.version() > (7, 0)


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
