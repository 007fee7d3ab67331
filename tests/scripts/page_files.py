"""Asks the page's server for files, and prints which are as they are in the package, after where the package is."""

import threading
import urllib.request
from pathlib import Path

import tfcluster
from tfcluster.dashboard.server import PageServer

package = Path(tfcluster.__file__).parent
print(package)
server = PageServer(0, None, "token")  # type: ignore[arg-type]  # no request is for the API
threading.Thread(target=server.serve_forever, daemon=True).start()
for path in (package / "dashboard" / "page").iterdir():
    with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/{path.name}") as response:
        if response.read() == path.read_bytes():
            print(path.name)
