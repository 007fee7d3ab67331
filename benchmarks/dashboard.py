"""What an open page costs the agent of 16 idle tasks, and how soon it shows the death of a task."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

from clusters import Cluster, cluster_folder, wait_until_warm
from idle import SERVERS, compare_with_import, helpers, import_tensorflow, measure
from side_by_side import verdict

DEATHS = 5
SHOWN_SECONDS = 2.0
PAGE_PAUSE_SECONDS = 0.25  # between an answer and the next question, as in dashboard/page


@contextlib.contextmanager
def open_page(cluster: Cluster) -> Iterator[Iterator[dict[str, Any]]]:
    """Serve the page and ask for what a browser does; yield the states as they arrive."""
    command = [sys.executable, "-m", "tfcluster", "dashboard", "--no-browser", "-o", "json"]
    with subprocess.Popen(command, env=cluster.environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        base, _, token = json.loads(process.stdout.readline())["url"].partition("/#token=")
        try:
            yield ask_for_views(base, token)
        finally:
            process.terminate()


def ask_for_views(base: str, token: str) -> Iterator[dict[str, Any]]:
    """Ask for each view as the page does, and yield its status."""
    tag = ""
    while True:
        headers = {"Authorization": f"Bearer {token}", "If-None-Match": tag}
        request = urllib.request.Request(f"{base}/api/view", headers=headers)
        with contextlib.suppress(urllib.error.HTTPError), urllib.request.urlopen(request) as response:  # 304 is one
            tag = response.headers["ETag"]
            yield json.load(response)["status"]
        time.sleep(PAGE_PAUSE_SECONDS)


def seconds_until_shown(states: Iterator[dict[str, Any]], index: int) -> float:
    """Kill a task, and return the seconds until the page has its exit."""
    task = next(states)["tasks"][index]
    killed_at = time.monotonic()
    os.kill(task["pid"], signal.SIGKILL)
    while next(states)["tasks"][index]["last_exit"] is None:
        pass
    return time.monotonic() - killed_at


def main() -> bool:
    """Measure and print; return whether the targets are reached."""
    imports = [import_tensorflow()]
    with cluster_folder() as cluster:
        spec = cluster.folder / "idle.yaml"
        spec.write_text(f"jobs:\n  worker: {{tasks: {SERVERS}}}\n")
        cluster("up", str(spec))
        wait_until_warm(cluster)
        without = measure(helpers(cluster))
        imports.append(import_tensorflow())
        with open_page(cluster) as states:
            shown = [seconds_until_shown(states, index) for index in range(DEATHS)]
            threading.Thread(target=list, args=(states,), daemon=True).start()
            more = measure(helpers(cluster)) - without
    imports.append(import_tensorflow())
    is_cheap = compare_with_import(f"what a page over {SERVERS} ready, idle tasks adds", more, imports)
    is_soon = max(shown) < SHOWN_SECONDS
    print(f"a killed task is shown after {statistics.median(shown):.2f} s, at most {max(shown):.2f} s of {DEATHS}")
    print(f"  target below {SHOWN_SECONDS:g} s: {verdict(is_soon)}\n", flush=True)
    return is_cheap and is_soon


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
