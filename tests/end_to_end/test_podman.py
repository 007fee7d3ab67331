"""A host that is a container of podman, which shares this machine's files and has no network."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.conftest import Sandbox, make_sandbox, skip, wait_for
from tests.end_to_end.ways import check_way

pytestmark = [pytest.mark.slow, pytest.mark.needs("podman")]

_NAME = "box1"


@contextmanager
def container(folder: Path, *options: str, network: str = "none") -> Iterator[list[str]]:
    """A container that runs until the block ends; yields how podman's commands for it begin."""
    podman = ["podman", "--storage-driver", "vfs", "--runtime", "runc", "--cgroup-manager", "cgroupfs"]
    podman += ["--root", str(folder / "root"), "--runroot", str(folder / "run")]
    limits = ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096"]
    run = [*podman, "run", "--detach", "--name", _NAME, f"--network={network}", *limits, *options, "--rootfs", "/:O"]
    # With SIGCHLD ignored, the kernel reaps processes that lose their parent, as `--init` does where it is found. bash
    # leaves the signal ignored for what it executes, and dash does not: under its sleep, agents and tasks stay zombies.
    started = subprocess.run(
        [*run, "bash", "-c", "trap '' CHLD; exec sleep infinity"], capture_output=True, text=True, check=False
    )
    try:
        if started.returncode != 0:
            skip(f"podman starts no container here: {started.stderr.strip()}")
        yield podman
    finally:
        subprocess.run([*podman, "rm", "--force", "--all", "--time", "0"], capture_output=True, check=True)
        wait_for(partial(_remove, folder))  # a process of podman may still write the container's end


def _remove(folder: Path) -> bool:
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


@contextmanager
def boxed(folder: Path, *options: str) -> Iterator[tuple[Sandbox, list[str]]]:
    """A sandbox whose cluster.yaml has a container, with these options, as its only host."""
    with (
        container(Path(tempfile.mkdtemp(prefix="tfc-", dir="/tmp")), *options) as podman,
        make_sandbox(folder) as sandbox,
    ):
        way = " ".join([*podman, "exec", "-i", "{terminal:-t}", "{host}"])
        host = {"address": "127.0.0.1", "connect": way, "python": sys.executable}
        spec = {"name": "boxed", "hosts": {_NAME: host}, "jobs": {"worker": {"tasks": 2}}}
        sandbox.spec(json.dumps(spec))
        yield sandbox, podman
        sandbox("down", code=None)


def docker_profile(folder: Path) -> Path:
    """A profile that, as Docker's and unlike podman's, allows pidfd_getfd() only with CAP_SYS_PTRACE."""
    profile = json.loads(Path("/usr/share/containers/seccomp.json").read_text())
    for rule in profile["syscalls"]:
        rule["names"] = [name for name in rule["names"] if name != "pidfd_getfd"]
    rule = {"names": ["pidfd_getfd"], "includes": {"caps": ["CAP_SYS_PTRACE"]}, "action": "SCMP_ACT_ALLOW"}
    refusal = {"excludes": rule["includes"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1}
    profile["syscalls"] += [rule, {**refusal, "names": ["pidfd_getfd"]}]
    path = folder / "profile.json"
    path.write_text(json.dumps(profile))
    return path


@pytest.mark.parametrize("more", [(), ("--cap-add", "SYS_PTRACE")], ids=["stock", "ptrace"])
def test_in_a_container_of_docker_only_programs_that_listen_need_a_capability(
    tmp_path: Path, more: tuple[str, ...]
) -> None:
    with boxed(tmp_path, "--security-opt", f"seccomp={docker_profile(tmp_path)}", *more) as (sandbox, _):
        warning = sandbox("up").stderr
        sandbox("run", "pi", "--samples", "1000")
        (tmp_path / "listens.py").write_text("import socket; socket.socket().listen(); print('listens')")
        result = sandbox.execute(*sandbox.command, "run", tmp_path / "listens.py")
        assert result.stdout == ("listens\n" if more else "")
        for text in (warning, result.stderr):
            assert ("In a container, add `--cap-add SYS_PTRACE` to `docker run`, or write" in text) == (not more)


def test_a_cluster_in_a_container(tmp_path: Path) -> None:
    with boxed(tmp_path) as (sandbox, podman):

        def processes(word: str) -> list[str]:
            listed = subprocess.run([*podman, "top", _NAME, "args"], capture_output=True, text=True, check=True).stdout
            return [line for line in listed.splitlines()[1:] if word in line]

        sandbox("up")
        assert len(sandbox.json("run", "pi", "--samples", "1e6")["devices"]) == 2
        (tmp_path / "train.py").write_text("import socket; print(socket.gethostname())")
        name = sandbox("exec", "--on", _NAME, "--", "hostname").stdout
        assert sandbox("run", tmp_path / "train.py").stdout == name
        check_way(sandbox, "boxed", _NAME)
        assert len(processes("session=json")) == 1  # the connection that later commands use
        command = sandbox.start("exec", "--on", _NAME, "--", "sh", "-c", "cat; sleep 986", stdin=subprocess.PIPE)
        command.stdin.write("typed\n")
        command.stdin.close()
        assert command.stdout.read(6) == "typed\n"
        command.send_signal(signal.SIGINT)  # which ends podman, with a code of its own
        assert command.wait(60) != 0
        wait_for(lambda: not processes("sleep 986"))
        sandbox("down")
        wait_for(lambda: not processes("tfcluster: "))
        wait_for(lambda: not processes("session=json"))
        wait_for(lambda: processes("") == processes("sleep infinity"))  # no zombie is left either
