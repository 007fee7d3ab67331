"""Machines with several addresses, and names that only the system's resolver knows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import COMMAND, make_sandbox

#: A machine of its own name, which no file and no name server knows, but a module of the C library does.
_NAMED = 'hostname alpha.local && mount --bind "$0" /etc/nsswitch.conf && exec "$@"'


@pytest.mark.needs("own-name")
def test_a_name_that_only_the_systems_resolver_knows(tmp_path: Path) -> None:
    switch = tmp_path / "nsswitch.conf"
    switch.write_text("passwd: files\nhosts: files myhostname dns\n")
    command = ("unshare", "--uts", "--mount", "sh", "-c", _NAMED, str(switch), *COMMAND)
    with make_sandbox(tmp_path, command) as named:
        named("up", named.spec("name: named\nhosts: {localhost: {address: alpha.local}}\njobs: {worker: {tasks: 2}}\n"))
        assert {address.partition(":")[0] for address in named.tasks("address").values()} == {"alpha.local"}
        named("run", "pi", "--samples", "1e5")
