"""A page that `tfcluster dashboard` serves, and requests to it as anyone can make them."""

from __future__ import annotations

import contextlib
import http.client
import json
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from urllib.parse import urlsplit

from tests.conftest import COMMAND, Command, Sandbox


@contextlib.contextmanager
def serve_page(sandbox: Sandbox, *options: str) -> Iterator[dict[str, str]]:
    """Serve the page of the cluster of a sandbox while the context is open, and return the links."""
    command = [*COMMAND, "dashboard", "--no-browser", "-o", "json", *options]
    with Command(
        command,
        cwd=sandbox.folder,
        env=sandbox.environment,
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.terminate()
        assert process.wait() == 143


@dataclass
class Served:
    """A page that is served, for whom its token is."""

    base: str
    token: str

    @classmethod
    def of(cls, link: str) -> Served:
        """Return the page that a link leads to."""
        base, _, token = link.partition("/#token=")
        return cls(base, token)

    def at(self, fragment: str) -> str:
        """Return the link, with more in its fragment."""
        return f"{self.base}/#token={self.token}{fragment}"

    def request(
        self,
        path: str,
        method: str = "GET",
        body: bytes | None = None,
        headers: Mapping[str, str | None] = MappingProxyType({}),
    ) -> tuple[int, str, http.client.HTTPMessage]:
        """Send a request with the token, unless the headers say otherwise."""
        host, port = urlsplit(self.base).hostname, urlsplit(self.base).port
        connection = http.client.HTTPConnection(str(host), port, timeout=60)
        defaults: dict[str, str | None] = {"Host": f"127.0.0.1:{port}", "Authorization": f"Bearer {self.token}"}
        connection.putrequest(method, path, skip_host=True)
        for name, value in {**defaults, **headers}.items():
            if value is not None:
                connection.putheader(name, value)
        if body is not None:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        response = connection.getresponse()
        answer = response.status, response.read().decode(), response.headers
        connection.close()
        return answer
