"""Other accounts on a host: `up` and `doctor` name them, and what is said of them is true."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.accounts import Account, account
from tests.conftest import COMMAND, Sandbox, mostly_slow
from tests.hosts import over

pytestmark = pytest.mark.needs("root")

_SPEC = "name: shared\nnetwork: {network}\njobs:\n  worker: {{tasks: 1}}\n"
_US = "root:x:0:0:root:/root:/bin/sh\n"
_OTHERS = "anna:x:1001:1001::/home/anna:/bin/sh\nben:x:1002:1002::/home/ben:/bin/sh\n"
_HINT = "`network: private` in the spec keeps them out."


@pytest.fixture
def other() -> Iterator[Account]:
    """An account with a shell, which is deleted again."""
    with account("tfc") as made:
        yield made


def with_accounts(passwd: Path, *command: str) -> tuple[str, ...]:
    """A command line in whose processes a file takes the place of /etc/passwd.

    They get a copy of /etc: a mount on the file itself would end when another test adds an account, which replaces it.
    """
    # What cp cannot find any more are the lock files of a useradd that has just ended.
    etc = "mount -t tmpfs tmpfs /mnt && { cp -a /etc/. /mnt 2>/dev/null; true; }"
    copy = f"{etc} && cp {passwd} /mnt/passwd && mount --bind /mnt /etc"
    return ("unshare", "--mount", "sh", "-c", f'{copy} && exec "$@"', "sh", *command)


def accounts(sandbox: Sandbox) -> list[dict[str, object]]:
    """What `doctor` says of the accounts on each host, as JSON."""
    return [check for check in sandbox.json("doctor")["checks"] if check["check"] == "accounts"]


@pytest.mark.parametrize("network", mostly_slow(["closed", "open"], fast=["closed"]))
def test_another_account_that_can_connect_is_reported(sandbox: Sandbox, other: Account, network: str) -> None:
    sandbox.spec(_SPEC.format(network=network))
    told = sandbox("up", "-o", "json")
    assert json.loads(told.stdout)["state"] == "running"
    assert "note: this machine: " in told.stderr
    assert "can connect to this cluster's servers through 127.0.0.1 and run code as " in told.stderr
    assert told.stderr.count("\n") == 1
    port = sandbox.task("worker:0")["address"].rpartition(":")[2]
    connecting = "import os, socket, sys; socket.create_connection(('127.0.0.1', sys.argv[1])); print(os.getuid())"
    asking = other.command(sys.executable, "-I", "-c", connecting, port)
    answer = subprocess.run(asking, cwd="/", capture_output=True, text=True, timeout=90, check=True).stdout
    assert answer == f"{other.uid}\n"
    again = sandbox("up")
    assert "nothing changed" in again.stdout
    assert again.stderr == "", "it was said when the servers were started"


@pytest.mark.slow
def test_the_note_is_repeated_after_a_day(sandbox: Sandbox) -> None:
    # Other tests add accounts, which would be told at once.
    sandbox.command = with_accounts(sandbox.spec(_US + _OTHERS, "passwd"), *COMMAND)
    sandbox.spec(_SPEC.format(network="closed"))
    assert "note: this machine: " in sandbox("up").stderr
    sandbox("down")
    assert "note:" not in sandbox("up").stderr, "it was said today"
    script = sandbox.spec("print('done')", "script.py")
    assert "note:" not in sandbox("launch", "--workers", "1", script).stderr, "no server listens"
    sandbox("down")
    yesterday = sandbox.with_settings({"NOTE_REPEAT_SECONDS": 0})
    assert "note: this machine: " in sandbox("up", env=yesterday).stderr


@pytest.mark.slow
def test_the_accounts_are_named(sandbox: Sandbox) -> None:
    passwd = sandbox.spec(_US, "passwd")
    sandbox.command = with_accounts(passwd, *COMMAND)
    sandbox.spec(_SPEC.format(network="closed"))
    assert accounts(sandbox) == []
    assert "note: " not in sandbox("up", "--dry-run").stderr
    passwd.write_text(_US + _OTHERS)
    said = (
        "2 other accounts can log in there (anna, ben): any of them can connect to this cluster's servers through "
        "127.0.0.1 and run code as root"
    )
    (row,) = accounts(sandbox)
    assert (row["host"], row["ok"], row["result"], row["hint"]) == ("localhost", True, said, _HINT)
    assert " note " in sandbox("doctor").stdout
    assert f"note: this machine: {said}. {_HINT}" in sandbox("up", "--dry-run").stderr.splitlines()
    assert f"note: this machine: {said}. {_HINT}" in sandbox("up").stderr.splitlines()


@pytest.mark.slow
@pytest.mark.needs("sshd")
def test_the_accounts_of_another_host_are_named(tmp_path: Path) -> None:
    passwd = tmp_path / "passwd"
    passwd.write_text(_US + _OTHERS)
    nobody_else = tmp_path / "alone"
    nobody_else.write_text(_US)
    pythons = {}
    for host, file in (("alpha", passwd), ("beta", nobody_else)):
        pythons[host] = tmp_path / f"python-{host}"
        pythons[host].write_text(f'#!/bin/sh\nexec {shlex.join(with_accounts(file, sys.executable))} "$@"\n')
        pythons[host].chmod(0o755)
    with over(tmp_path, "alpha", "beta") as sandbox:
        spec = sandbox.spec(sandbox.text(("alpha", "beta"), "jobs: {worker: {tasks: 2}}\n", pythons))
        notes = [line for line in sandbox("up", spec).stderr.splitlines() if line.startswith("note: ")]
        assert notes == [
            "note: host 'alpha': 2 other accounts can log in there (anna, ben): any of them can connect to this "
            f"cluster's servers from there and run code as root. {_HINT}"
        ]
        assert [check["host"] for check in accounts(sandbox)] == ["alpha"]
