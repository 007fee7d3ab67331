"""Serve the page of a cluster until the command ends, and open it in a browser."""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
import threading
import webbrowser
from collections.abc import Iterator
from html import escape
from pathlib import Path
from urllib.parse import quote

from tfcluster.client.cluster import Cluster
from tfcluster.client.runs.runs import find_record
from tfcluster.dashboard.api import Api
from tfcluster.dashboard.feed import Feed
from tfcluster.dashboard.server import PageServer


class Page:
    """A page that is served.

    Its link has the token. `folder` is for the file by which a browser opens the link.
    """

    def __init__(self, url: str, server: threading.Thread, folder: Path) -> None:
        self.url = url
        self._server = server
        self._folder = folder

    def open_browser(self) -> None:
        """Open the page in a browser, if this is the terminal of a desktop or $BROWSER names one.

        Other accounts can read the arguments of a process, so the browser gets the name of a file, which they cannot
        read, and which leads to the link with the token.
        """
        if not any(os.environ.get(name) for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")):
            return  # else a browser for terminals could take over this one
        path = self._folder / "dashboard.html"
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(f'<!doctype html><meta http-equiv="refresh" content="0;url={escape(self.url)}">')
        webbrowser.open(path.as_uri())

    def wait(self) -> None:
        """Wait until a signal ends the command."""
        self._server.join()


@contextlib.contextmanager
def serve(cluster: Cluster, port: int, run: str | None) -> Iterator[Page]:
    """Serve the page of a cluster until the context is left.

    Port 0 stands for a free port. The page opens at the run, or at the overview. Raises ClusterError if there is no
    such run, or the port cannot be used.
    """
    shown = "" if run is None else f"&run={quote(find_record(cluster, run)['run'], safe='')}"
    feed = Feed(cluster)
    server = PageServer(port, Api(cluster, feed), secrets.token_urlsafe())
    with server, tempfile.TemporaryDirectory(prefix="tfcluster-") as folder:
        feed.start()
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield Page(server.url + shown, thread, Path(folder))
