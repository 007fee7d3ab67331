"""Find the keys that ssh cannot use without a terminal: those with a passphrase that no ssh-agent has."""

from __future__ import annotations

import base64
import binascii
import contextlib
import os
import subprocess
from pathlib import Path

from tfcluster import settings

_BEGIN = "-----BEGIN "
_MAGIC = b"openssh-key-v1\0"
_NO_CIPHER = b"none"
_NO_AGENT = 2  # the exit code of ssh-add if it cannot connect to an agent


def find_locked_key(destination: str) -> tuple[Path, bool] | None:
    """Find a key that ssh would offer to a host if its passphrase were typed, and whether an ssh agent is running."""
    options = _options(destination)
    agent = next((value for name, value in options if name == "identityagent"), "SSH_AUTH_SOCK")
    code, held = _run(["ssh-add", "-L"], {} if agent == "SSH_AUTH_SOCK" else {"SSH_AUTH_SOCK": agent})
    for name, value in options:
        if name == "identityfile":
            path = Path(value).expanduser()
            public = _public_part_if_locked(path)
            if public is not None and (not public or public not in held):
                return path, code != _NO_AGENT
    return None


def _options(destination: str) -> list[tuple[str, str]]:
    """Return the names and values of ssh's options for a host, by its configuration."""
    _, output = _run(["ssh", "-G", "--", destination], {})
    lines = (line.partition(" ") for line in output.splitlines())
    return [(name.lower(), value) for name, _, value in lines]


def _run(command: list[str], variables: dict[str, str]) -> tuple[int, str]:
    """Run a command; return its exit code and its output, which is empty if it cannot be run."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        process = subprocess.run(
            command,
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=settings.SSH_CONTROL_SECONDS,
            check=False,
        )
        return process.returncode, process.stdout.decode(errors="replace")
    return _NO_AGENT, ""


def _public_part_if_locked(path: Path) -> str | None:
    """Return the public part of a private key that has a passphrase, in base64; empty if the file does not tell it.

    If the key has no passphrase, or the file is no private key, return None.
    """
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return None
    if not text.startswith(_BEGIN):
        return None
    lines = [line for line in text.splitlines() if not line.startswith("-")]
    try:
        data = base64.b64decode("".join(lines), validate=True)
    except binascii.Error:
        data = b""
    if not data.startswith(_MAGIC):  # PEM, which says it in a header or in its first line
        return "" if "ENCRYPTED" in text else None
    cipher, _, _, rest = _fields(data[len(_MAGIC) :])
    if cipher == _NO_CIPHER:
        return None
    return base64.b64encode(_field(rest[4:])[0]).decode()  # the number of keys precedes the first one


def _fields(data: bytes) -> tuple[bytes, bytes, bytes, bytes]:
    """Return the first three fields of an OpenSSH key (cipher, key derivation and its options), and the rest."""
    cipher, data = _field(data)
    derivation, data = _field(data)
    options, data = _field(data)
    return cipher, derivation, options, data


def _field(data: bytes) -> tuple[bytes, bytes]:
    length = int.from_bytes(data[:4], "big")
    return data[4 : 4 + length], data[4 + length :]
