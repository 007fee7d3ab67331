"""Waits in a thread and in a child; prints `ready`, ends with its input, and prints `end` if it was undisturbed."""

import multiprocessing
import os
import re
import signal
import sys
import threading


def sleep_in_thread() -> None:
    os.read(reading, 1)


def sleep_in_child() -> None:
    os.read(reading, 1)


def hold_the_lock() -> None:
    re.match("(a+)+$", "a" * 60 + "b")  # in C, for ever


if sys.argv[1:] == ["hold"]:
    print("ready", flush=True)
    hold_the_lock()
reading, writing = os.pipe()
mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
assert handlers[signal.SIGURG] is signal.SIG_DFL
assert not mask
assert threading.active_count() == 1
thread = threading.Thread(target=sleep_in_thread)
thread.start()
child = multiprocessing.get_context("fork").Process(target=sleep_in_child)
child.start()
other = os.posix_spawnp("sleep", ["sleep", "600"], dict(os.environ))
print("ready", flush=True)
line = sys.stdin.readline()
os.write(writing, b"xx")
thread.join()
child.join()
os.kill(other, 9)
os.waitpid(other, 0)
print("end", line.strip(), child.exitcode)
