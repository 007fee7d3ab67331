"""Asks at a terminal, whose size it shows, and says when it was continued."""

import getpass
import os
import signal
from typing import Any


def show_size(*_: Any) -> None:
    print("size", *os.get_terminal_size(), flush=True)


signal.signal(signal.SIGWINCH, show_size)
signal.signal(signal.SIGCONT, lambda *_: print("continued", flush=True))
show_size()
print("[name]", input("name? "))
print("[password]", getpass.getpass("password? "))
print("[line]", input("line? "))
input("interrupt me: ")
