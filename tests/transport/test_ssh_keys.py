"""Which keys ssh cannot use without a terminal."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tfcluster.transport.ssh import find_locked_key

pytestmark = pytest.mark.needs("ssh")


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


@pytest.mark.usefixtures("use_key")
@pytest.mark.parametrize("options", [["-t", "ed25519"], ["-t", "ecdsa", "-m", "PEM"], ["-t", "ecdsa", "-m", "PKCS8"]])
def test_a_key_with_a_passphrase_is_found(tmp_path: Path, options: list[str]) -> None:
    key = make_key(tmp_path / "key", "words", *options)
    assert find_locked_key("alpha") == (key, False)


@pytest.mark.usefixtures("use_key")
def test_a_key_without_a_passphrase_is_not_meant(tmp_path: Path) -> None:
    assert find_locked_key("alpha") is None
    make_key(tmp_path / "key", "", "-t", "ed25519")
    assert find_locked_key("alpha") is None


@pytest.mark.usefixtures("use_key")
def test_a_key_that_the_agent_has_is_not_meant(tmp_path: Path, agent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", agent)
    key = make_key(tmp_path / "key", "", "-t", "ed25519")
    subprocess.run(["ssh-add", "-q", key], check=True)
    subprocess.run(["ssh-keygen", "-q", "-p", "-P", "", "-N", "words", "-f", key], check=True)
    assert find_locked_key("alpha") is None
    subprocess.run(["ssh-add", "-q", "-D"], check=True)
    assert find_locked_key("alpha") == (key, True)
