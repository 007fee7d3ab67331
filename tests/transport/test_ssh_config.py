"""What ssh says of itself: what it connects to first, of which only so many at once, and which options it knows."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest

from tfcluster import settings
from tfcluster.core.hosts import Host
from tfcluster.transport import ssh_config
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
