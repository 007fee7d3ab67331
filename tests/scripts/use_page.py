"""Asks a page for its view with a token, cancels a run, and asks for logs; prints the answers."""

import json
import sys
import time
import urllib.error
import urllib.request

base, token, run = sys.argv[1:]


def ask(path: str, data: bytes | None = None) -> tuple[int, str]:
    """Return the status and the text of an answer."""
    request = urllib.request.Request(base + path, data, {"Authorization": "Bearer " + token})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


while (view := ask("/api/view"))[0] == 503:  # no host has answered yet
    time.sleep(0.1)
print(json.dumps([view, ask("/api/cancel", json.dumps({"run": run}).encode()), ask("/api/logs")]))
