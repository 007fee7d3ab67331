"""What OpenSSH prints when it fails, as users see it, and which keys it cannot use without a terminal."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tfcluster.core.hosts import Host
from tfcluster.errors import ExitCode
from tfcluster.transport.errors import HostBusyError
from tfcluster.transport.ssh_errors import classify_ssh_error, find_dead_agent, find_locked_key


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


@pytest.mark.needs("ssh")
@pytest.mark.usefixtures("use_key")
@pytest.mark.parametrize("options", [["-t", "ed25519"], ["-t", "ecdsa", "-m", "PEM"], ["-t", "ecdsa", "-m", "PKCS8"]])
def test_a_key_with_a_passphrase_is_found(tmp_path: Path, options: list[str]) -> None:
    key = make_key(tmp_path / "key", "words", *options)
    assert find_locked_key("alpha") == (key, False)
    error = classify_ssh_error(Host("alpha", "10.0.0.1"), "tf@alpha: Permission denied (publickey).")
    assert f"the key {key} has a passphrase, and no ssh-agent is running" in error.message
    assert f"`ssh-add {key}`" in error.hint


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


@pytest.mark.needs("ssh")
@pytest.mark.usefixtures("use_key")
def test_the_socket_of_an_agent_that_has_ended_is_named(
    tmp_path: Path, agent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_dead_agent("alpha") is None
    monkeypatch.setenv("SSH_AUTH_SOCK", agent)
    assert find_dead_agent("alpha") is None
    monkeypatch.setenv("SSH_AUTH_SOCK", "/nowhere/agent.1")
    why = "the socket of the ssh-agent does not exist (SSH_AUTH_SOCK=/nowhere/agent.1)"
    assert find_dead_agent("alpha") == why
    refused = "tf@alpha: Permission denied (publickey,password)."
    error = classify_ssh_error(Host("alpha", "10.0.0.1"), refused)
    assert f"none of your keys is accepted, and {why} ({refused})" in error.message
    assert "`export SSH_AUTH_SOCK=…`" in error.hint
    key = make_key(tmp_path / "key", "words", "-t", "ed25519")
    error = classify_ssh_error(Host("alpha", "10.0.0.1"), refused)
    assert f"the key {key} has a passphrase, and {why}" in error.message
    (tmp_path / "stale").touch()
    (tmp_path / "config").write_text(f"IdentityAgent {tmp_path}/stale\n")
    assert find_dead_agent("alpha") == (f"the socket of the ssh-agent does not answer (IdentityAgent={tmp_path}/stale)")


@pytest.mark.parametrize(
    ("words", "why", "hint"),
    [
        ("Host key verification failed.\r\n", "its host key is not known here", "Type `ssh tf@alpha` once"),
        ("tf@alpha: Permission denied (publickey,password).", "it requires a password", "Type `ssh-copy-id tf@alpha`"),
        ("tf@alpha: Permission denied (publickey,keyboard-interactive).", "it requires a password", "ssh-copy-id"),
        (
            "tf@alpha: Permission denied (keyboard-interactive).",
            "requires keyboard-interactive (",
            "`ControlMaster auto`",
        ),
        (
            "tf@alpha: Permission denied (password,keyboard-interactive).",
            "it requires password or keyboard-interactive (",
            "Type `ssh tf@alpha` once, keep it open, and try again",
        ),
        ("tf@alpha: Permission denied (gssapi-with-mic,password).", "it requires a Kerberos ticket", "Type `kinit`"),
        (
            "Received disconnect from 10.0.0.1 port 22:2: Too many authentication failures\nDisconnected from 10.0.0.1",
            "more keys than the host lets one login try (Received disconnect",
            "`IdentitiesOnly yes`",
        ),
        (
            "root@10.0.0.9: Permission denied (publickey).\nkex_exchange_identification: Connection closed by x",
            "none of your keys is accepted (root@10.0.0.9: ",
            "`ssh -v tf@alpha`",
        ),
        (
            "channel 0: open failed: administratively prohibited: open failed\nstdio forwarding failed\n"
            "kex_exchange_identification: Connection closed by remote host",
            "the jump host does not connect to it (channel 0",
            "`ssh tf@alpha` shows more",
        ),
        (
            "sh: 1: exec: nc: not found\nkex_exchange_identification: Connection closed by remote host",
            ": sh: 1: exec: nc: not found",
            "`ProxyCommand`",
        ),
        ("ssh: connect to host alpha port 22: Connection timed out", "Connection timed out", "firewall"),
        ("Connection timed out during banner exchange\n", "banner exchange", "firewall"),
        ("ssh: connect to host alpha port 22: No route to host", "No route to host", "firewall"),
        ("ssh: connect to host alpha port 22: Network is unreachable", "Network is unreachable", "firewall"),
        ("/home/me/.ssh/config: line 3: Bad configuration option: hots\n", "hots", "Correct ~/.ssh/config"),
        (
            "kex_exchange_identification: read: Connection reset by peer\nConnection reset by 10.0.0.9 port 22\n"
            "kex_exchange_identification: Connection closed by remote host\n",
            "sshd refuses the login, probably because too many are in progress there (Connection reset by 10.0.0.9",
            "raise MaxStartups",
        ),
        ("Connection closed by UNKNOWN port 65535\r\n", "sshd refuses the login", "raise MaxStartups"),
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


def test_a_connection_that_is_lost_after_the_login_is_not_one_that_is_refused() -> None:
    line = "Connection reset by 10.0.0.1 port 22"
    error = classify_ssh_error(Host("alpha", "10.0.0.1", ssh="tf@alpha"), line, has_logged_in=True)
    assert not isinstance(error, HostBusyError)
    assert "MaxStartups" not in error.hint


def test_a_destination_is_shown_as_it_can_be_typed() -> None:
    error = classify_ssh_error(Host("alpha", "10.0.0.1", ssh="it's; rm"), "Host key verification failed.")
    assert '`ssh "it\'s; rm"`' in error.hint
