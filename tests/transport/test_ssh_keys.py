"""What OpenSSH prints when it fails, as users see it, and which keys it cannot use without a terminal."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tfcluster.core.hosts import Host
from tfcluster.errors import ExitCode
from tfcluster.transport.ssh import classify_ssh_error, find_locked_key


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[str]:
    """The socket of an ssh-agent without keys."""
    socket = str(tmp_path / "agent")
    with subprocess.Popen(["ssh-agent", "-D", "-a", socket], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()  # it listens
        yield socket
        process.terminate()


def make_key(path: Path, passphrase: str, *options: str) -> Path:
    subprocess.run(["ssh-keygen", "-q", "-N", passphrase, "-C", "", "-f", path, *options], check=True)
    return path


@pytest.fixture
def use_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have ssh offer the key `key` in the test's folder."""
    wrapper = tmp_path / "bin" / "ssh"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {tmp_path / "config"} "$@"\n')
    wrapper.chmod(0o755)
    (tmp_path / "config").write_text(f"IdentityFile {tmp_path / 'key'}\nIdentitiesOnly yes\n")
    monkeypatch.setenv("PATH", f"{wrapper.parent}:{os.environ['PATH']}")
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)


@pytest.mark.needs("ssh")
@pytest.mark.usefixtures("use_key")
@pytest.mark.parametrize("options", [["-t", "ed25519"], ["-t", "ecdsa", "-m", "PEM"], ["-t", "ecdsa", "-m", "PKCS8"]])
def test_a_key_with_a_passphrase_is_found(tmp_path: Path, options: list[str]) -> None:
    key = make_key(tmp_path / "key", "words", *options)
    assert find_locked_key("alpha") == (key, False)


@pytest.mark.needs("ssh")
@pytest.mark.usefixtures("use_key")
def test_a_key_without_a_passphrase_is_not_meant(tmp_path: Path) -> None:
    assert find_locked_key("alpha") is None
    make_key(tmp_path / "key", "", "-t", "ed25519")
    assert find_locked_key("alpha") is None


@pytest.mark.needs("ssh")
@pytest.mark.usefixtures("use_key")
def test_a_key_that_the_agent_has_is_not_meant(tmp_path: Path, agent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", agent)
    key = make_key(tmp_path / "key", "", "-t", "ed25519")
    subprocess.run(["ssh-add", "-q", key], check=True)
    subprocess.run(["ssh-keygen", "-q", "-p", "-P", "", "-N", "words", "-f", key], check=True)
    assert find_locked_key("alpha") is None
    subprocess.run(["ssh-add", "-q", "-D"], check=True)
    assert find_locked_key("alpha") == (key, True)


@pytest.mark.parametrize(
    ("words", "why", "hint"),
    [
        ("Host key verification failed.\r\n", "its host key is not known here", "Type `ssh tf@alpha` once"),
        ("tf@alpha: Permission denied (publickey,password).", "it requires a password", "Type `ssh-copy-id tf@alpha`"),
        ("tf@alpha: Permission denied (publickey,keyboard-interactive).", "it requires a password", "ssh-copy-id"),
        (
            "Received disconnect from 10.0.0.1 port 22:2: Too many authentication failures\nDisconnected from 10.0.0.1",
            "none of your keys is accepted",
            "~/.ssh/config",
        ),
        ("ssh: connect to host alpha port 22: Connection timed out", "Connection timed out", "firewall"),
        ("Connection timed out during banner exchange\n", "banner exchange", "firewall"),
        ("ssh: connect to host alpha port 22: No route to host", "No route to host", "firewall"),
        ("ssh: connect to host alpha port 22: Network is unreachable", "Network is unreachable", "firewall"),
        ("/home/me/.ssh/config: line 3: Bad configuration option: hots\n", "hots", "Correct ~/.ssh/config"),
        ("kex_exchange_identification: read: Connection reset by peer\n", "reset by peer", "`ssh tf@alpha` shows more"),
        ("Timeout, server 10.0.0.1 not responding.\r\n", "not responding", "`ssh tf@alpha` shows more"),
        ("one\x1b[2J\x07 two\tthree\n \n", ": one\x1b[2J\x07 two", "`ssh tf@alpha` shows more"),
        ("", "ssh printed nothing", "`ssh tf@alpha` shows more"),
    ],
)
def test_words_of_ssh(words: str, why: str, hint: str) -> None:
    error = classify_ssh_error(Host("alpha", "10.0.0.1", ssh="tf@alpha"), words)
    assert error.message.startswith("host 'alpha' cannot be reached: ")
    assert "\n" not in error.message
    assert why in error.message
    assert hint in error.hint
    assert error.exit_code is ExitCode.UNREACHABLE


def test_a_destination_is_shown_as_it_can_be_typed() -> None:
    error = classify_ssh_error(Host("alpha", "10.0.0.1", ssh="it's; rm"), "Host key verification failed.")
    assert """`ssh "it's; rm"`""" in error.hint
