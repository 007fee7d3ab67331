"""Asks a page server as the page does. As a program, it prints each answer of a path, which it asks for repeatedly."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

PAUSE = 0.25  # seconds between an answer and the next question, as in the page


class PageClient:
    """Asks for answers, each time only for another one than the last."""

    def __init__(self, url: str) -> None:
        self._base, _, self._token = url.partition("/#token=")

    def get(self, path: str, tag: str = "") -> tuple[Any, str]:
        """Return the answer and its tag; None and the same tag if it is not another one."""
        headers = {"Authorization": f"Bearer {self._token}", **({"If-None-Match": tag} if tag else {})}
        try:
            with urllib.request.urlopen(urllib.request.Request(self._base + path, headers=headers)) as response:
                return json.load(response), response.headers["ETag"]
        except urllib.error.HTTPError as error:
            if error.code == 304:
                return None, tag
            raise


class FollowedPage:
    """Has the latest view, which a thread asks for."""

    def __init__(self, url: str) -> None:
        self.view: dict[str, Any] = {}
        self._client = PageClient(url)
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        tag = ""
        with contextlib.suppress(OSError):  # the server has ended
            while True:
                view, tag = self._client.get("/api/view", tag)
                self.view = view or self.view
                time.sleep(PAUSE)

    @property
    def states(self) -> dict[str, str]:
        """The states of the tasks, and the cluster's at the empty name."""
        status = self.view.get("status", {"state": "unknown", "tasks": []})
        return {"": status["state"], **{f"{each['job']}:{each['index']}": each["state"] for each in status["tasks"]}}

    @property
    def events(self) -> list[Any]:
        return list(self.view.get("events", []))

    def task(self, index: int) -> Any:
        return self.view["status"]["tasks"][index]

    def samples(self) -> list[Any]:
        return list(self._client.get("/api/samples")[0])


def main(url: str, path: str) -> None:
    """Print each answer on a line; of logs, each time the lines that are new."""
    client, tag, after = PageClient(url), "", ""
    while True:
        answer, tag = client.get(path + after, tag)
        if answer is not None:
            print(json.dumps(answer), flush=True)
            after = f"&after={urllib.parse.quote(answer['after'])}" if "after" in answer else ""
        time.sleep(PAUSE)


if __name__ == "__main__":
    main(*sys.argv[1:])
