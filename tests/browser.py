"""A headless Chromium for tests, with a profile of its own; nothing of it is left behind."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from tests import requirements
from tests.conftest import wait_for


@contextlib.contextmanager
def open_browser(folder: Path) -> Iterator[Browser]:
    """Start a browser; its files are in a folder, and its processes end with the context."""
    requirements.check_declared("browser")
    chromium, driver = map(requirements.find_program, ("chromium", "chromedriver"))
    assert chromium is not None
    assert driver is not None
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in ("headless=new", "no-sandbox", "disable-dev-shm-usage", "disable-gpu", "no-first-run"):
        options.add_argument(f"--{argument}")
    # A renderer process for each load would be a third of what the load takes.
    options.add_argument("--renderer-process-limit=1")
    options.add_argument("--disable-site-isolation-trials")
    options.add_argument(f"--user-data-dir={folder / 'profile'}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    service = Service(driver, env={**environment, "HOME": str(folder)})
    chrome = webdriver.Chrome(options=options, service=service)
    try:
        yield Browser(chrome)
    finally:
        chrome.quit()


class Browser:
    """What the tests do with a page."""

    def __init__(self, chrome: webdriver.Chrome) -> None:
        self.chrome = chrome

    def open(self, url: str) -> None:
        """Open a page, also if only the part after `#` differs from the one that is open."""
        self.chrome.get("about:blank")
        self.complaints()  # those of another page
        self.chrome.get(url)

    def run(self, script: str, *arguments: Any) -> Any:
        """Return the value of a script's `return`."""
        return self.chrome.execute_script(script, *arguments)

    def text(self, selector: str) -> str:
        """Return the text of the first element, empty if there is none."""
        return str(self.run("return document.querySelector(arguments[0])?.innerText ?? ''", selector))

    def attribute(self, selector: str, name: str) -> str:
        """Return an attribute of the first element, empty if there is none."""
        script = "return document.querySelector(arguments[0])?.getAttribute(arguments[1]) ?? ''"
        return str(self.run(script, selector, name))

    def click(self, selector: str) -> None:
        """Wait until an element is there and shown, and click it."""
        script = (
            "const found = document.querySelector(arguments[0]);"
            "if (!found || found.hidden || !found.getClientRects().length) return false; found.click(); return true"
        )
        wait_for(lambda: self.run(script, selector))

    def type(self, selector: str, text: str) -> None:
        """Replace the text of a field."""
        script = "const field = document.querySelector(arguments[0]); field.value = arguments[1]"
        self.run(f"{script}; field.dispatchEvent(new Event('input'))", selector, text)

    def resize(self, width: int, colours: str = "light") -> None:
        """Give the window a width and the user's preference of light or dark colours."""
        metrics = {"width": width, "height": 860, "deviceScaleFactor": 1, "mobile": False}
        scheme = {"features": [{"name": "prefers-color-scheme", "value": colours}]}
        chrome: Any = self.chrome
        chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", scheme)

    def set_midnight(self) -> None:
        """Set the time zone in which it is between midnight and one o'clock."""
        hour = time.gmtime().tm_hour
        chrome: Any = self.chrome
        zone = {"timezoneId": f"Etc/GMT{hour if hour <= 12 else hour - 24:+d}"}
        chrome.execute_cdp_cmd("Emulation.setTimezoneOverride", zone)

    def violations(self, selector: str = "html") -> list[str]:
        """Return what axe finds in an element: the rule, and the first elements."""
        if not self.run("return 'axe' in window"):
            self.run((Path(__file__).parent / "data" / "axe" / "axe.min.js").read_text())
        script = (
            "const [selector, done] = arguments;"
            "axe.run(selector, {resultTypes: ['violations']}).then(({violations}) => done(violations.map((each) =>"
            "  `${each.id}: ${each.nodes.slice(0, 3).map((node) => node.html).join(' ')}`)),"
            "  (error) => done([String(error)]))"
        )
        return list(self.chrome.execute_async_script(script, selector))

    def complaints(self) -> list[str]:
        """Return what the browser has logged of pages since the last call, such as a violation of a page's policy."""
        entries: list[Any] = self.chrome.get_log("browser")  # type: ignore[no-untyped-call]
        return [entry["message"] for entry in entries if not entry["message"].startswith("chrome://")]  # its own pages
