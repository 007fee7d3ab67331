"""Connects to a port of several addresses at once, `PORT SECONDS ADDRESS...`, and prints what came of each."""

import socket
import sys
from concurrent.futures import ThreadPoolExecutor


def try_connect(address: str) -> str:
    try:
        socket.create_connection((address, int(sys.argv[1])), float(sys.argv[2])).close()
        return "connected"
    except OSError as error:
        return type(error).__name__


with ThreadPoolExecutor() as threads:
    print(*threads.map(try_connect, sys.argv[3:]))
