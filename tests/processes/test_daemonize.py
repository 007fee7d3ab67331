"""A forked process keeps nothing of its parent, and has a title and an environment of its own.

Each test of a fork is a small program, as this process may have threads.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tfcluster.process_mark import MARK, NO_MARK, marked_processes, processes_with_marks

# The program's body runs in the forked child with `report`, a descriptor whose text is the parent's output.
_PROGRAM = """
import json, os, signal, socket, sys
from pathlib import Path
from tfcluster.os import daemonize

arguments = sys.argv[1:]
def report(value):
    with open(report_fd, "w") as file:
        json.dump(value, file)

reader, report_fd = os.pipe()
title = Path("/proc/self/cmdline").read_bytes()
{before}
if os.fork() == 0:
    try:
{body}
    finally:
        os._exit(1)
os.close(report_fd)
with open(reader) as file:
    print(file.read())
assert Path("/proc/self/cmdline").read_bytes() == title, "the parent keeps its own"
"""


def forked(body: str, *arguments: str, before: str = "") -> Any:
    """What the body reported."""
    program = _PROGRAM.format(before=before, body="\n".join(" " * 8 + line for line in body.splitlines()))
    command = [sys.executable, "-c", program, *arguments]
    answer = subprocess.run(command, input="from the terminal", capture_output=True, text=True, check=True)
    assert answer.stderr == ""
    return json.loads(answer.stdout)


def test_it_keeps_nothing_but_its_output_and_what_it_is_told_to() -> None:
    before = """
listener = socket.create_server(("127.0.0.1", 0))
lock = os.open("/dev/null", os.O_RDONLY)
os.set_inheritable(lock, True)
connection, _ = socket.socketpair()
"""
    body = """
signal.signal(signal.SIGINT, signal.SIG_IGN)
output = os.readlink("/proc/self/fd/1"), os.readlink("/proc/self/fd/2")
daemonize.detach("t", keep=[connection.fileno(), report_fd])
open_fds = [fd for fd in range(256) if os.path.exists(f"/proc/self/fd/{fd}")]
report({
    "descriptors": open_fds == sorted([0, 1, 2, connection.fileno(), report_fd]),
    "input": [os.readlink("/proc/self/fd/0"), os.read(0, 10).decode()],
    "output": output == (os.readlink("/proc/self/fd/1"), os.readlink("/proc/self/fd/2")),
    "leads a session": os.getsid(0) == os.getpid(),
    "interrupt": signal.getsignal(signal.SIGINT) == signal.SIG_DFL,
})
"""
    expected = {"descriptors": True, "input": ["/dev/null", ""], "output": True}
    assert forked(body, before=before) == {**expected, "leads a session": True, "interrupt": True}


def test_output_is_appended_to_a_private_log_at_the_end_of_each_line_also_what_c_prints(tmp_path: Path) -> None:
    log = tmp_path / "log"
    body = """
import ctypes
log = Path(arguments[0])
daemonize.detach("t", log=log, keep=[report_fd])
os.write(1, b"one\\n")
os.write(2, b"two\\n")
libc = ctypes.CDLL(None)
error = ctypes.c_void_p.in_dll(libc, "stderr")
libc.printf(b"three\\n")
libc.fputs(b"fo", error)
before = log.read_text()
libc.fputs(b"ur\\n", error)
report([oct(log.stat().st_mode & 0o777), before, log.read_text()])
"""
    whole = "one\ntwo\nthree\nfour\n"
    assert forked(body, str(log)) == ["0o600", "one\ntwo\nthree\n", whole]
    assert forked(body, str(log))[2] == 2 * whole


_SHOW = """
daemonize.detach(arguments[0], keep=[report_fd])
report([Path(f"/proc/{os.getpid()}/cmdline").read_text(), Path("/proc/self/comm").read_text()])
"""


@pytest.mark.parametrize("title", ["tfcluster: demo worker:1", "tfcluster: demo é"])
def test_the_title_replaces_the_command_line(title: str) -> None:
    shown, name = forked(_SHOW, title)
    assert shown.rstrip("\0") == title
    assert name.encode() == title.encode()[:15] + b"\n"


def test_a_title_that_is_too_long_is_cut_to_the_room_there_is() -> None:
    body = """
room = len(Path("/proc/self/cmdline").read_bytes())
environment = Path("/proc/self/environ").read_bytes()
daemonize.detach("x" * 100_000, keep=[report_fd])
shown = Path("/proc/self/cmdline").read_bytes()
report([shown == b"x" * (room - 1) + b"\\0", Path("/proc/self/environ").read_bytes() == environment])
"""
    assert forked(body) == [True, True]


_FORKS = """
import os, sys
from tfcluster.process_mark import MARK, marked_processes, set_mark
from tfcluster.os import daemonize
mark = "a" * 32
set_mark(mark)
never, other = os.pipe()
ready, ready_writing = os.pipe()
pids = []
for own in (mark, "0" * 32):
    pid = os.fork()
    if pid == 0:
        if own != mark:
            set_mark(own)
        os.write(ready_writing, b"x")
        os.close(other)
        os.read(never, 1)
        os._exit(0)
    pids.append(pid)
for _ in pids:
    os.read(ready, 1)
print(os.environ[MARK], [process.pid for process in marked_processes(mark)], flush=True)
sys.stdin.readline()
"""


def test_a_mark_is_seen_by_others_and_a_forked_process_may_give_it_up() -> None:
    command = [sys.executable, "-c", _FORKS]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, MARK: NO_MARK}
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == f"{'a' * 32} []\n", "neither itself nor its descendants"
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
        assert marked_processes("a" * 32) == [], "for this process, they are descendants too"
        marks = {process.pid: mark for process, mark in processes_with_marks()}
        assert [marks[pid] for pid in (parent.pid, *map(int, children))] == ["a" * 32, "a" * 32, NO_MARK]
        parent.communicate("")


# A parent forks a child that would wait for ever, and ends; its own parent reads the end of file once the child, the
# last to hold the pipe, has ended too.
_OUTLIVE = """
import os, sys
from tfcluster.os import daemonize
alive, alive_writing = os.pipe()
if os.fork() == 0:
    parent = os.getpid()
    ready, ready_writing = os.pipe()
    if os.fork() == 0:
        never, other = os.pipe()
        daemonize.detach("t", keep=[alive_writing, ready_writing, never, other], parent=int(sys.argv[1]) or parent)
        os.write(ready_writing, b"x")
        os.read(never, 1)
    os.close(ready_writing)
    os.read(ready, 1)
    os._exit(0)
os.close(alive_writing)
print(os.read(alive, 1))
"""


@pytest.mark.parametrize("parent", ["0", "1"])
def test_a_process_that_must_not_outlive_its_parent_ends_with_it(parent: str) -> None:
    # With a pid that is not its parent's, as when that has ended already, it ends at once.
    answer = subprocess.run(
        [sys.executable, "-c", _OUTLIVE, parent], stdout=subprocess.PIPE, text=True, check=True, timeout=60
    )
    assert answer.stdout == "b''\n"
