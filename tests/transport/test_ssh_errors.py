"""What OpenSSH prints when it fails, as users see it: why, and what to type; test_unreachable.py has the rest."""

from __future__ import annotations

import pytest

from tfcluster.core.hosts import Host
from tfcluster.errors import ExitCode
from tfcluster.transport.ssh import classify_ssh_error


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
    assert """`ssh 'it'"'"'s; rm'`""" in error.hint
