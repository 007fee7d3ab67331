"""Connects to ports of a host at once, and prints what comes of each: `dial.py HOST PORT...`."""

import socket
import sys
from concurrent.futures import ThreadPoolExecutor


def dial(port: str) -> str:
    try:
        socket.create_connection((sys.argv[1], int(port)), 2).close()
        return "connected"
    except OSError as error:
        return type(error).__name__


print(*ThreadPoolExecutor().map(dial, sys.argv[2:]))
