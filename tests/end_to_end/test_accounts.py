"""Other accounts on a host: `up` names them, and what is said of them is true."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.accounts import Account, account
from tests.conftest import Sandbox

pytestmark = pytest.mark.needs("root")


@pytest.fixture
def other() -> Iterator[Account]:
    """An account with a shell, which is deleted again."""
    with account("tfc") as made:
        yield made


def test_another_account_that_can_connect_is_reported(sandbox: Sandbox, other: Account) -> None:
    """tests/cli/test_up.py has when it is repeated, tests/client/test_checks.py what is said of other hosts."""
    sandbox.spec("name: shared\njobs:\n  worker: {tasks: 1}\n")
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
