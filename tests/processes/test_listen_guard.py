"""Sockets on which a trapped process listens are bound to loopback first, those of its threads and children too.

A trap cannot be removed, so each test is a process of its own: tests/scripts/trapped.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, SCRIPTS

UNSUPPORTED = "ports cannot be closed before they listen: {}"


def run(*words: str) -> Any:
    """Return what a trapped process has seen, and the reasons for which it was not restricted."""
    result = subprocess.run(
        [sys.executable, SCRIPTS / "trapped.py", *words],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


#: What tests/scripts/trapped.py is to do, and what it sees.
SCENES: list[tuple[tuple[str, ...], Any]] = [
    *((("two_families", user), ["", "lo", "lo", "", "", True, True, True]) for user in ("root", "nobody")),
    (("errors_of_the_kernel",), ["ENOTSOCK", "EBADF", "EADDRINUSE"]),
    (("thread_fork_and_exec",), ["lo", "lo", "lo", 3]),
    (
        ("refused_by_the_kernel",),
        ["EACCES", "the kernel refused to bind port PORT to loopback: Operation not permitted", True, "lo"],
    ),
    (("interrupted_guard",), 1),
    (("without_guard",), "ENOSYS"),
    (("foreign_numbers",), 31),
    # Without any privilege: in a container of Docker and on older kernels.
    *((("refused", each), ["lo", [-1, -1]]) for each in ("pidfd_getfd", "no_pidfd_getfd", "no_pidfd_open")),
    (("swapped_descriptor",), [False, True, "lo"]),
    (("cannot_be_undone",), [["EPERM"] * 3, "lo", "ENOSYS"]),
    (("backlog",), 4),
    (("may_listen_outside",), [True, "", ""]),
    (("support", "unrestricted"), ["isolated", True, ""]),
    (
        ("support", "forbidden"),
        [UNSUPPORTED.format("the kernel refused a seccomp filter (Operation not permitted)"), True, ""],
    ),
    (
        ("support", "isolated"),
        [
            UNSUPPORTED.format(
                "another program (such as a container manager) traps system calls of this process already"
            ),
            True,
            "lo",
        ],
    ),
]


@pytest.mark.parametrize(("words", "expected"), SCENES, ids=[" ".join(words) for words, _ in SCENES])
def test_a_trapped_process(words: tuple[str, ...], expected: Any) -> None:
    assert run(*words) == [expected, []]


_BY_YAMA = "`sysctl -w kernel.yama.ptrace_scope=1`, typed by the machine's root user, allows it."
_IN_A_CONTAINER = "In a container, add `--cap-add SYS_PTRACE` to `docker run`, or"


@pytest.mark.parametrize(
    ("refusal", "scope", "uid", "reason", "remedy"),
    [
        ("", "", 0, "", ""),
        ("pidfd_getfd", "", 0, "pidfd_getfd() is not permitted", _IN_A_CONTAINER),
        ("pidfd_getfd", "2", 0, "pidfd_getfd() is not permitted", _IN_A_CONTAINER),
        ("pidfd_getfd", "2", 65534, "kernel.yama.ptrace_scope is 2", _BY_YAMA),
        ("pidfd_getfd", "3", 0, "kernel.yama.ptrace_scope is 3 until the next boot of the machine", "Until then,"),
        (
            "no_pidfd_getfd",
            "",
            0,
            "there is no pidfd_getfd(): it came with Linux 5.6, and the seccomp filter of a container can forbid it",
            "In a container, add `--security-opt",
        ),
    ],
)
def test_whether_another_process_can_restrict_a_programs_sockets_is_tried(
    tmp_path: Path, refusal: str, scope: str, uid: int, reason: str, remedy: str
) -> None:
    """The kernel of the tests has no Yama."""
    (tmp_path / "scope").write_text(f"{scope}\n")
    switch = tmp_path / ("scope" if scope else "none")
    (message, hint, has_same_descriptors), _ = run("support_of_programs", refusal, str(switch), str(uid))
    assert message == (reason and f"the port of a program cannot be restricted: {reason}")
    assert hint.startswith(remedy)
    assert ("`network: open`" in hint) == bool(reason)
    assert has_same_descriptors
