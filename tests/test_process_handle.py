"""A process is the same only with its pid and start time; how processes end, in words."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import wait_for
from tests.descriptors import free_descriptors
from tfcluster.os import libc
from tfcluster.os.process_handle import (
    ProcessHandle,
    exit_status,
    format_exit_status,
    send_signal,
    supports_pidfds,
)
from tfcluster.os.procfs import STATE, boot_id, stat_fields
from tfcluster.transport.channel import readable_fds


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that lives until its input ends."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield process
        process.kill()


def of(process: subprocess.Popen[bytes]) -> ProcessHandle:
    found = ProcessHandle.from_pid(process.pid)
    assert found is not None
    return found


@contextlib.contextmanager
def opened(process: ProcessHandle) -> Iterator[int]:
    pidfd = process.open()
    assert pidfd is not None
    try:
        yield pidfd
    finally:
        os.close(pidfd)


def test_pidfds_and_files_in_memory_need_nothing_of_python(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Pythons of conda and uv are built with the headers of an old kernel and C library."""
    for module, name in ((os, "pidfd_open"), (os, "P_PIDFD"), (os, "memfd_create"), (signal, "pidfd_send_signal")):
        monkeypatch.delattr(module, name)
    assert supports_pidfds()
    process = of(child)
    with opened(process) as pidfd:
        assert not os.get_inheritable(pidfd)
        assert exit_status(process, pidfd) is None, "it runs"
        assert process.terminate(60, 60)
        assert exit_status(process, pidfd) == signal.SIGTERM
    memory = libc.memfd_create("test")
    assert not os.get_inheritable(memory)
    assert os.readlink(f"/proc/self/fd/{memory}").startswith("/memfd:test")
    os.close(memory)


def test_a_child_is_alive_until_it_is_a_zombie_or_gone(child: subprocess.Popen[bytes]) -> None:
    process = of(child)
    assert process.is_alive()
    assert boot_id() == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and its pid is still taken
    assert not process.is_alive()
    assert process.exists(), "no other process can have its pid before it is reaped"
    child.wait()
    assert not process.exists()
    assert ProcessHandle.from_pid(child.pid) is None
    assert not process.is_alive()
    assert process.open() is None


#: Its first thread ends, as with pthread_exit; another one lives until the input ends.
FIRST_THREAD_ENDS = """
import ctypes, sys, threading
threading.Thread(target=sys.stdin.read).start()
ctypes.CDLL(None).pthread_exit(None)
"""


def test_a_process_whose_first_thread_has_ended_is_alive_until_its_last_one_has() -> None:
    with subprocess.Popen([sys.executable, "-c", FIRST_THREAD_ENDS], stdin=subprocess.PIPE) as child:
        process = of(child)
        wait_for(lambda: stat_fields(child.pid)[STATE] == "Z")
        assert process.is_alive()
        with opened(process) as pidfd:
            assert not readable_fds([pidfd], 0)
            child.kill()
            assert readable_fds([pidfd], 60)
        assert not process.is_alive()


def test_another_process_with_the_same_pid_is_neither_alive_nor_opened_and_an_opened_one_can_be_signalled(
    child: subprocess.Popen[bytes],
) -> None:
    stranger = replace(of(child), start_time=of(child).start_time - 1)
    before = os.listdir("/proc/self/fd")
    assert not stranger.is_alive()
    assert stranger.open() is None
    assert os.listdir("/proc/self/fd") == before
    with opened(of(child)) as pidfd:
        send_signal(pidfd, signal.SIGTERM)
        assert child.wait() == -signal.SIGTERM
        send_signal(pidfd, signal.SIGTERM)  # it has ended already


def test_the_name_of_a_process_cannot_mislead() -> None:
    program = "open('/proc/self/comm', 'w').write('x) Z 1 (2 3'); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as child:
        before = of(child)
        assert child.stdout is not None
        assert child.stdout.readline() == b"\n"
        assert of(child) == before
        child.kill()


def test_how_a_process_ended() -> None:
    for status, words in {
        **{None: "exit status unknown", 0: "exit code 0", 1 << 8: "exit code 1", 255 << 8: "exit code 255"},
        **{signal.SIGTERM.value: "SIGTERM", signal.SIGKILL.value: "SIGKILL"},
        signal.SIGSEGV.value | 0x80: "SIGSEGV",  # with a core dump
        40: "signal 40",  # a real-time signal without a name
    }.items():
        assert format_exit_status(status) == words


def orphan(program: str) -> int:
    """The pid of a process that runs a shell program and is no child of this process: its parent has ended."""
    starting = subprocess.run(
        ["sh", "-c", f"({program}) >/dev/null 2>&1 & echo $!"], stdout=subprocess.PIPE, text=True, check=True
    )
    return int(starting.stdout)


@pytest.mark.parametrize("free", [0, 1])
def test_a_process_is_not_gone_because_no_descriptor_is_left_to_look_with(
    child: subprocess.Popen[bytes], free: int
) -> None:
    process = of(child)
    with free_descriptors(free):
        with pytest.raises(OSError, match="Too many open files"):
            process.open()
        fds = [os.open(os.devnull, os.O_RDONLY) for _ in range(free)]  # what it opened is closed again
        with pytest.raises(OSError, match="Too many open files"):
            process.exists()
        for fd in fds:
            os.close(fd)
    assert process.exists()


@pytest.mark.parametrize(("program", "words"), [("read x < FIFO; exit 3", "exit code 3"), ("read x < FIFO", "SIGKILL")])
def test_how_a_process_ended_that_is_no_child(tmp_path: Path, program: str, words: str) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    pid = orphan(program.replace("FIFO", str(fifo)))
    process = ProcessHandle.from_pid(pid)
    assert process is not None
    with opened(process) as pidfd:
        if words == "SIGKILL":
            send_signal(pidfd, signal.SIGKILL)
        else:
            fifo.write_text("go\n")
        assert readable_fds([pidfd], 60)
        # It may have been reaped by then, which only Linux 6.15 and newer outlive.
        assert format_exit_status(exit_status(process, pidfd)) in {words, "exit status unknown"}
        if kernel() >= (6, 15):
            assert format_exit_status(exit_status(process, pidfd)) == words


def test_the_exit_of_a_child_that_somebody_reaped(child: subprocess.Popen[bytes]) -> None:
    process = of(child)
    with opened(process) as pidfd:
        child.kill()
        child.wait()
        assert exit_status(process, pidfd) == (signal.SIGKILL if kernel() >= (6, 15) else None)


def test_a_childs_exit_is_reaped(child: subprocess.Popen[bytes]) -> None:
    process = of(child)
    with opened(process) as pidfd:
        child.kill()
        assert readable_fds([pidfd], 60)
        assert exit_status(process, pidfd) == signal.SIGKILL
        assert not process.exists()
        child.returncode = -signal.SIGKILL


def kernel() -> tuple[int, int]:
    major, minor = os.uname().release.split(".")[:2]
    return int(major), int(minor)
