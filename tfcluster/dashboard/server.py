"""Serve the page of a cluster by HTTP: on the loopback device only, for browsers that know a token.

Other accounts of this machine can connect to the port, and pages of other sites can have a browser connect to it. So
every answer that says something of the cluster needs the token; the page has it from the part of its link after `#`,
which a browser sends to no server. The names in Host and Origin must be this machine's: a foreign name that was made to
mean 127.0.0.1 (DNS rebinding) is refused, and so is a request that a page of another site has a browser send.

The owner's token is for everything. A page that is shared has a second token, for what `Reader` answers.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
import socket
import tempfile
import threading
import webbrowser
from collections.abc import Iterator, Mapping
from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from tfcluster import settings
from tfcluster.client.cluster import Cluster
from tfcluster.client.runs.requests import find_record
from tfcluster.dashboard.api import Api, RequestError
from tfcluster.dashboard.feed import Body, Feed
from tfcluster.dashboard.reader import PageApi, Reader
from tfcluster.errors import ClusterError, ExitCode, usage_error
from tfcluster.version import __version__

_LOOPBACK = "127.0.0.1"
_NAMES = ("localhost", _LOOPBACK, "[::1]")
_PAGE = files("tfcluster.dashboard") / "page"
_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml", "txt": "text/plain"}
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Page:
    """A page that is served.

    Its link has the owner's token; `share`, the link for readers, has theirs, and is None if the page is not shared.
    `folder` is for the file by which a browser opens the owner's link.
    """

    def __init__(self, url: str, share: str | None, server: threading.Thread, folder: Path) -> None:
        self.url = url
        self.share = share
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
def serve(cluster: Cluster, port: int, run: str | None, *, is_shared: bool = False) -> Iterator[Page]:
    """Serve the page of a cluster until the context is left; a shared one to readers too.

    Port 0 stands for a free port. The page opens at the run, or at the overview. Raises ClusterError if there is no
    such run, or the port cannot be used.
    """
    shown = "" if run is None else f"&run={quote(find_record(cluster, run)['run'], safe='')}"
    feed = Feed(cluster)
    api = Api(feed)
    reader = Reader(api) if is_shared else None
    server = PageServer(port, api, secrets.token_urlsafe(), reader)
    with server, contextlib.closing(feed), tempfile.TemporaryDirectory(prefix="tfcluster-") as folder:
        feed.start()
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        share = None if reader is None else server.link(reader.token) + shown
        yield Page(server.url + shown, share, thread, Path(folder))


class PageServer(ThreadingHTTPServer):
    """Serves the page and what it asks for, each connection in a thread.

    Port 0 stands for a free port. A request has to know the owner's token, which `api` answers, or that of the readers.
    Of connections that have shown neither yet, which every account of this machine can open, the oldest one makes room
    for a new one. Raises ClusterError if the port is taken, or may not be used.
    """

    daemon_threads = True

    def __init__(self, port: int, api: PageApi, token: str, reader: Reader | None = None) -> None:
        self.token = token
        self._apis: list[tuple[str, PageApi]] = [(token, api)]
        if reader is not None:
            self._apis.append((reader.token, reader))
        self._strangers: dict[socket.socket, None] = {}  # connections without the token, the oldest first
        self._lock = threading.Lock()
        try:
            super().__init__((_LOOPBACK, port), _Handler)
        except OSError as error:
            raise usage_error(
                f"port {port} of {_LOOPBACK} cannot be used: {error.strerror}",
                "Give another one with --port, or none for a free one.",
            ) from None

    @property
    def url(self) -> str:
        """Return the owner's link of the page, with the token."""
        return self.link(self.token)

    def link(self, token: str) -> str:
        """Return the link of the page with a token."""
        return f"http://{_LOOPBACK}:{self.server_address[1]}/#token={token}"

    def find_api(self, token: str) -> PageApi | None:
        """Return what answers the requests that have a token; None for an unknown one."""
        # All are compared, in a time that depends on none of them.
        known = [api for each, api in self._apis if hmac.compare_digest(token.encode(), each.encode())]
        return known[0] if known else None

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread; if there are too many without the token, the oldest of them is cut."""
        with self._lock:
            self._strangers[request] = None
            if len(self._strangers) > settings.DASHBOARD_STRANGERS_MAX:
                oldest = next(iter(self._strangers))
                del self._strangers[oldest]
                with contextlib.suppress(OSError):  # it has been cut
                    oldest.shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        self.admit(request)
        super().shutdown_request(request)

    def admit(self, request: socket.socket) -> None:
        """Note that a connection has shown the token, or has ended."""
        with self._lock:
            self._strangers.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a connection that has broken: the browser has closed the page."""


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    protocol_version = "HTTP/1.1"
    server_version = f"tfcluster/{__version__}"
    sys_version = ""
    timeout = settings.DASHBOARD_REQUEST_SECONDS

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log nothing: the terminal is the user's."""

    def do_GET(self) -> None:
        self._respond("GET")

    def do_POST(self) -> None:
        self._respond("POST")

    def _respond(self, method: str) -> None:
        url = urlsplit(self.path)
        query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        try:
            self._check_origin()
            if method == "GET" and (name := _page_file(url.path)) is not None:
                self._send_file(name)
                return
            api = self._find_api()
            if isinstance(api, Reader):
                api.check(method, url.path)  # first: what else a reader sends is not read
            body = self._read_body() if method == "POST" else {}
            answer = self._answer(api, method, url.path, query, body)
            if isinstance(answer, str):
                self._send(HTTPStatus.OK, "application/openmetrics-text; version=1.0.0", answer.encode())
            else:
                self._send_news(answer)
        except RequestError as error:
            self.close_connection = True  # its body may not have been read
            self._send_json(error.status, {"message": str(error)})
        except ClusterError as error:
            is_refused = error.exit_code is ExitCode.USAGE
            self._send_json(HTTPStatus.BAD_REQUEST if is_refused else HTTPStatus.BAD_GATEWAY, error.to_json())

    def _answer(self, api: PageApi, method: str, path: str, query: dict[str, str], body: dict[str, Any]) -> Any:
        """Return the answer to a request; see `Api.answer`."""
        try:
            return api.answer(method, path, query, body, self.headers.get("If-None-Match", ""))
        except (RequestError, ClusterError):
            raise
        except Exception as error:  # the page shows it, and the terminal stays as it is
            detail = "" if isinstance(api, Reader) else f": {error}"
            bug = f"this is a bug in tfcluster: {type(error).__name__}{detail}"
            raise RequestError(HTTPStatus.INTERNAL_SERVER_ERROR, bug) from error

    def _check_origin(self) -> None:
        """Raise RequestError unless the request is for this machine, and comes from this page or from no page."""
        host = self.headers.get("Host", "")
        if host.rpartition(":")[0] not in _NAMES and host not in _NAMES:
            raise RequestError(HTTPStatus.FORBIDDEN, "the Host of the request is not this machine")
        origin = self.headers.get("Origin")
        if origin is not None and origin != f"http://{host}":
            raise RequestError(HTTPStatus.FORBIDDEN, "the request comes from a page of another origin")

    def _find_api(self) -> PageApi:
        """Return what answers the request, by its token; raise RequestError if that is not known."""
        kind, _, token = self.headers.get("Authorization", "").partition(" ")
        api = self.server.find_api(token) if kind == "Bearer" else None
        if api is None:
            raise RequestError(
                HTTPStatus.UNAUTHORIZED, "missing or wrong token: open the link that the command printed"
            )
        self.server.admit(self.connection)
        return api

    def _read_body(self) -> dict[str, Any]:
        try:
            size = int(self.headers.get("Content-Length", ""))
            if not 0 <= size <= settings.RPC_REQUEST_MAX_BYTES:
                raise ValueError
            body = json.loads(self.rfile.read(size))
            if not isinstance(body, dict):
                raise ValueError
        except (ValueError, RecursionError):
            raise RequestError(HTTPStatus.BAD_REQUEST, "the request has no JSON object") from None
        return body

    def _send_file(self, name: str) -> None:
        kind = _TYPES[name.rpartition(".")[2]]
        self._send(HTTPStatus.OK, f"{kind}; charset=utf-8", (_PAGE / name).read_bytes())

    def _send_news(self, answer: Any) -> None:
        """Send an answer as JSON, unless it is None or the page has it already."""
        body = None if answer is None else Body.of(answer)
        if body is None or body.tag == self.headers.get("If-None-Match"):
            self._send_headers(HTTPStatus.NOT_MODIFIED, {})
        else:
            self._send(HTTPStatus.OK, "application/json", body.data, {"ETag": body.tag})

    def _send_json(self, status: int, value: Any) -> None:
        self._send(status, "application/json", json.dumps(value).encode())

    def _send(self, status: int, kind: str, data: bytes, more: Mapping[str, str] = MappingProxyType({})) -> None:
        self._send_headers(status, {"Content-Type": kind, "Content-Length": str(len(data)), **more})
        self.wfile.write(data)

    def _send_headers(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        closes = {"Connection": "close"} if self.close_connection else {}
        for name, value in {**headers, **closes, **_HEADERS}.items():
            self.send_header(name, value)
        self.end_headers()


def _page_file(path: str) -> str | None:
    """Return the file of the page at a path; None if there is none."""
    name = path.removeprefix("/") or "index.html"
    is_plain = "/" not in name and name.rpartition(".")[2] in _TYPES
    return name if is_plain and (_PAGE / name).is_file() else None
