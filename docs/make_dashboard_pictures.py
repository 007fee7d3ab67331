"""Draws the pictures of the page of `dashboard`: a cluster that has worked, in a headless Chromium, light and dark."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image  # matplotlib brings it

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.browser import Browser, open_browser
from tests.conftest import wait_for

ROOT = Path(__file__).parent.parent
SAMPLES = 20  # of what the tasks use, until the lines of it have a shape
COLOURS = 128


@dataclass(frozen=True)
class Picture:
    """A picture, with the colours, the size of the window and the view that it shows."""

    name: str
    colours: str
    size: tuple[int, int]
    view: str

    def draw(self, browser: Browser, url: str, shown: str) -> None:
        """Open the page, wait until a script says that all is shown, and write the picture."""
        width, height = self.size
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        scheme = {"features": [{"name": "prefers-color-scheme", "value": self.colours}]}
        chrome: Any = browser.chrome
        chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", scheme)
        browser.open(url)
        wait_for(lambda: browser.text("#link") == "live" and browser.run(f"return {shown}"))
        chrome.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
        data = chrome.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})["data"]
        image = Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB")
        # A third of the size; without dithering, areas stay even.
        palette = image.quantize(COLOURS, dither=Image.Dither.NONE)
        palette.save(ROOT / "docs" / f"{self.name}.png", optimize=True)


PICTURES = (
    Picture("dashboard-light", "light", (1180, 870), "overview"),
    Picture("dashboard-narrow-dark", "dark", (400, 860), "overview"),
    Picture("dashboard-run-dark", "dark", (1180, 700), "run"),
    Picture("dashboard-narrow-light", "light", (400, 860), "run"),
)


def main() -> None:
    """Bring the example cluster up, have it work, and draw the pictures."""
    with tempfile.TemporaryDirectory() as folder, open_browser(Path(folder)) as browser:
        environment = {**os.environ, "XDG_STATE_HOME": folder, "XDG_RUNTIME_DIR": folder, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "tfcluster"]

        def call(words: str) -> str:
            arguments = [*command, *shlex.split(words)]
            result = subprocess.run(arguments, cwd=ROOT, env=environment, check=True, capture_output=True, text=True)
            return result.stdout

        call("up examples/cluster.yaml")
        try:
            for words in ("run pi --samples 1e8", "run expfit --mode data-parallel", "run linear --steps 4000"):
                call(words)
            finished = json.loads(call("runs -o json"))[-1]["run"]
            os.kill(json.loads(call("status -o json"))["tasks"][2]["pid"], signal.SIGKILL)
            call("run linear --steps 1000000 --detach")
            with serve(command, environment) as url:
                draw(browser, url, finished)
        finally:
            call("down")


@contextlib.contextmanager
def serve(command: list[str], environment: dict[str, str]) -> Iterator[str]:
    """Serve the page while the context is open, and return its link."""
    arguments = [*command, "dashboard", "--no-browser", "-o", "json"]
    with subprocess.Popen(arguments, cwd=ROOT, env=environment, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())["url"]
        finally:
            process.terminate()


def draw(browser: Browser, url: str, run: str) -> None:
    """Draw the pictures of a page."""
    points = "document.querySelector('#tasks path')?.getAttribute('d').split('L').length"
    progress = "document.querySelector('#runs progress:not([hidden])')?.value"
    for picture in PICTURES:
        if picture.view == "overview":
            picture.draw(browser, url, f"{points} >= {SAMPLES} && {progress} > 0")
        else:
            picture.draw(browser, f"{url}&run={run}", "document.querySelectorAll('.curves canvas').length >= 2")


if __name__ == "__main__":
    main()
