"""What forbids a private network: the switch is named, before anything starts."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.accounts import account
from tests.clusters import sandbox_of
from tests.conftest import COMMAND
from tests.forbidden import forbid_unshare, switched
from tfcluster import private_network
from tfcluster.errors import ClusterError
from tfcluster.os import netns
from tfcluster.os.process_handle import ProcessHandle

_CLONE_NEWUSER = 0x10000000


def in_child(work: Callable[[], str]) -> str:
    """Run a function in a child process, which it may change as it likes, and return its result."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writing, work().encode())
        except BaseException as error:
            os.write(writing, repr(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading) as pipe:
        result = pipe.read()
    os.waitpid(pid, 0)
    return result


def enter_user_namespace() -> None:
    """Enter a user namespace in which the switches are this process's own."""
    uid, gid = os.getuid(), os.getgid()
    assert ctypes.CDLL(None).unshare(_CLONE_NEWUSER) == 0
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        Path(f"/proc/self/{name}").write_text(text)


def describe() -> str:
    problem = private_network.find_obstacle()
    return "nothing" if problem is None else f"{problem.message} {problem.hint}"


def test_nothing_forbids_a_private_network_here_and_a_seccomp_filter_is_named() -> None:
    assert in_child(describe) == "nothing"

    def work() -> str:
        forbid_unshare()
        return describe()

    found = in_child(work)
    assert "a seccomp filter of this container" in found
    assert "--security-opt seccomp=unconfined" in found


@pytest.mark.parametrize("switch", ["user.max_user_namespaces", "user.max_net_namespaces"])
def test_a_switch_that_is_off_is_named(switch: str) -> None:
    def work() -> str:
        enter_user_namespace()
        Path("/proc/sys", *switch.split(".")).write_text("0")
        netns.drop_capabilities()
        return describe()

    found = in_child(work)
    assert f"the switch {switch} is 0" in found
    assert f"`sysctl -w {switch}=15000`" in found
    assert "`network: closed`" in found
    assert "`network: open`" in found


@pytest.mark.parametrize(("error", "words"), [(28, "the limit user.max_user_namespaces"), (22, "CONFIG_USER_NS")])
def test_other_reasons_are_explained(error: int, words: str) -> None:
    problem = private_network.explain_failure(error)
    assert words in f"{problem.message} {problem.hint}"
    assert isinstance(problem, ClusterError)


def test_a_process_that_is_elsewhere_is_not_entered() -> None:
    def work() -> str:
        this = ProcessHandle.from_pid(os.getppid())
        assert this is not None
        network = private_network.PrivateNetwork(this, user=1, net=2)
        assert not network.contains_this_process()
        try:
            network.enter()
        except OSError as error:
            return str(error.strerror)
        return "entered"

    assert in_child(work) == "the cluster's private network no longer exists"


@pytest.mark.parametrize(
    ("commands", "switch", "value", "refusal", "words"),
    [
        (
            ["doctor", "up"],
            "kernel.unprivileged_userns_clone",
            "0",
            "forbid_unshare",
            "sysctl -w kernel.unprivileged_userns_clone=1",
        ),
        pytest.param(
            ["doctor", "up"],
            "kernel.apparmor_restrict_unprivileged_userns",
            "1",
            "withhold_capabilities",
            "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
            marks=pytest.mark.slow,
        ),
    ],
    ids=["Debian", "AppArmor"],
)
@pytest.mark.needs("root")
def test_an_ordinary_account_is_told_which_switch_forbids_it(
    tmp_path: Path, commands: list[str], switch: str, value: str, refusal: str, words: str
) -> None:
    started = (sys.executable, "-m", "tests.forbidden", refusal, *COMMAND)
    with account("tfc-o") as owner, sandbox_of(owner, started) as inner:
        refused = replace(inner, command=(*switched(tmp_path, switch, value), *inner.command))
        spec = refused.spec("name: demo\nnetwork: private\njobs:\n  worker: {tasks: 1}\n")
        for command in commands:
            result = refused(command, spec, code=1)
            said = " ".join((result.stdout + result.stderr).split())
            assert words in said, command
            assert "`network: closed`" in said, command
            assert "`network: open`" in said, command
        assert refused.leftovers() == []
