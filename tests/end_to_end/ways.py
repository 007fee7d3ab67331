"""What must work over every way to a host: one check for ssh, `connect:`, podman, Slurm and pods."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable

import pexpect

from tests.conftest import SCRIPTS, Sandbox, read_until

UPLOAD = b"0123456789" * 300_000  # more than a link has on the way at once
_DIGEST = "import hashlib, sys; print(hashlib.sha256(open(sys.argv[1], 'rb').read()).hexdigest())\n"
_SERVE = (SCRIPTS / "shouts.py").read_text()
_FORWARD = (SCRIPTS / "forward_port.py").read_text()


def check_request(sandbox: Sandbox, cluster: str, host: str) -> None:
    hosts = sandbox.json("status", "-c", cluster)["hosts"]
    assert {each["host"]: each["state"] for each in hosts}[host] == "up"


def check_upload(sandbox: Sandbox, cluster: str, host: str) -> None:
    folder = sandbox.folder / "sent"
    folder.mkdir()
    (folder / "digest.py").write_text(_DIGEST)
    (folder / "data").write_bytes(UPLOAD)
    shown = sandbox("run", "-c", cluster, "digest.py", "data", cwd=folder).stdout
    assert shown == f"{hashlib.sha256(UPLOAD).hexdigest()}\n"


def check_followed_stream(sandbox: Sandbox, cluster: str, host: str) -> None:
    # It waits again after a signal: an agent asks a script that does nothing for its stack.
    text = "import signal\nprint('ready', flush=True)\nwhile True:\n    signal.pause()\n"
    (sandbox.folder / "sent" / "waits.py").write_text(text)
    run = sandbox.start("run", "-c", cluster, sandbox.folder / "sent" / "waits.py")
    read_until(run.stdout, "ready")
    sandbox("cancel", "-c", cluster, sandbox.json("runs", "-c", cluster)[-1]["run"])
    read_until(run.stderr, "cancelled")
    assert run.wait(60) == 1


def check_exec(sandbox: Sandbox, cluster: str, host: str) -> None:
    words = (*sandbox.command, "exec", "-c", cluster, "--on", host, "--", "sh", "-c", "cat; echo no >&2; exit 7")
    shown = sandbox.execute(*words, input="typed")
    assert (shown.stdout, shown.returncode) == ("typed", 7)
    assert "no" in shown.stderr.splitlines()  # srun says more


def check_terminal(sandbox: Sandbox, cluster: str, host: str) -> None:
    script = 'tty; stty size; read -r line; echo "<$line>"; exit 7'
    words = (*sandbox.command, "exec", "-c", cluster, "--on", host, "--", "sh", "-c", script)
    with contextlib.closing(sandbox.at_terminal(*words, dimensions=(33, 111))) as terminal:
        terminal.expect("/dev/pts/")
        terminal.expect("33 111")
        terminal.sendline("typed")
        terminal.expect("<typed>")
        terminal.expect(pexpect.EOF)
        terminal.close()
        assert terminal.exitstatus == 7


def check_forwarded_port(sandbox: Sandbox, cluster: str, host: str) -> None:
    shown = sandbox.execute(*sandbox.command[:-2], "-c", _FORWARD, cluster, host, _SERVE)
    assert shown.stdout == "True\n", shown.stderr


CHECKS: tuple[Callable[[Sandbox, str, str], None], ...] = (
    check_request,
    check_upload,
    check_followed_stream,
    check_exec,
    check_terminal,
    check_forwarded_port,
)


def check_way(sandbox: Sandbox, cluster: str, host: str) -> None:
    """Check all that a command does on a host, which has the cluster's head task."""
    for check in CHECKS:
        check(sandbox, cluster, host)
