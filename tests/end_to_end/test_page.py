"""The page in a real browser, for a cluster of 8 hosts, 60 tasks and 100 runs that exists only as its JSON."""

from __future__ import annotations

import contextlib
import csv
import functools
import hashlib
import io
import itertools
import time
from collections.abc import Iterator
from datetime import datetime
from http import HTTPStatus
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pytest
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.browser import Browser, open_browser
from tests.conftest import wait_for
from tests.recorded_page import RecordedApi, log_answer, serve_recorded
from tfcluster.dashboard.api import RequestError
from tfcluster.dashboard.reader import PageApi, Reader

COMPARED = "run/linear-0061,linear-005d"
TEN = f"run/{','.join(f'train-{number:04x}' for number in range(94, 54, -4))}"
VIEWS = ("overview", "runs", "run/linear-0061", COMPARED, TEN, "logs", "events")
#: An element that each view has when it is drawn.
DRAWN = {"overview": "progress", "runs": "#all-runs tr", "run": ".u-over", "logs": ".log div", "events": "#events tr"}


class ChosenApi:
    """Answers as another one, which a test chooses, and notes what the page asks for."""

    def __init__(self) -> None:
        self.chosen: PageApi = RecordedApi()
        self.asked: list[str] = []

    def answer(self, method: str, path: str, *more: Any) -> Any:
        self.asked.append(path)
        return self.chosen.answer(method, path, *more)


class Page(Browser):
    """A page that is loaded once for all tests, each of which shows the views and the cluster that it needs."""

    def __init__(self, browser: Browser, api: ChosenApi, url: str) -> None:
        super().__init__(browser.chrome)
        self.api = api
        self.url = url

    def serve(self, api: PageApi) -> None:
        """Have the page show a cluster."""
        asked: list[str] = []
        self.api.chosen, self.api.asked = api, asked
        wait_for(lambda: asked.count("/api/view") >= 2)  # it draws an answer before it asks for the next one

    def go(self, view: str) -> None:
        """Follow a link to another view."""
        script = (
            "const [view, done] = arguments; if (location.hash === `#${view}`) return done();"
            "addEventListener('hashchange', () => done(), {once: true}); location.hash = view"
        )
        self.chrome.execute_async_script(script, view)

    def show(self, view: str, width: int = 1280, colours: str = "light") -> None:
        """Go to another view, in a window of a width, and wait until it has its data."""
        self.resize(width, colours)
        self.go(view)
        wait_for(lambda: self.count(DRAWN[view.partition("/")[0]]))

    def count(self, selector: str) -> int:
        return int(self.run("return document.querySelectorAll(arguments[0]).length", selector))

    def rows(self, table: str) -> int:
        return self.count(f"#{table} tr")

    def choose(self, selector: str, value: str) -> None:
        """Choose an option of a list."""
        script = "const list = document.querySelector(arguments[0]); list.value = arguments[1];"
        self.run(f"{script} list.dispatchEvent(new Event('change'))", selector, value)

    def press(self, *keys: str) -> None:
        ActionChains(self.chrome).send_keys(*keys).perform()

    def download(self, folder: Path, name: str, button: str) -> Path:
        """Return the file that a button saves."""
        chrome: Any = self.chrome
        chrome.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(folder)})
        self.click(button)
        path = folder / name
        wait_for(lambda: path.exists() and path.stat().st_size)  # the browser reserves the name by an empty file
        return path


@pytest.fixture(scope="module")
def loaded(needs_browser: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    api = ChosenApi()
    with open_browser(tmp_path_factory.mktemp("browser")) as browser, serve_recorded(api) as url:
        browser.set_midnight()  # most times of the page have a date
        page = Page(browser, api, url)
        page.open(url)
        yield page


@pytest.fixture
def page(loaded: Page) -> Page:
    """The page, with the recorded cluster as it is now; another test may have left the window in any size."""
    if loaded.text("#link") != "live" or loaded.count("dialog[open]"):  # a test has failed
        loaded.open(loaded.url)
    loaded.go("none")  # shows the overview, without requests of its own
    loaded.serve(RecordedApi())
    loaded.complaints()
    return loaded


def wider(page: Page, width: int) -> list[str]:
    """Return what ends outside of a window that has a width, and the text of cells that ends outside of the cell."""
    script = (
        "const isWide = (node) => node.getBoundingClientRect().right > arguments[0]"
        " || (node.matches('td, tbody th') && node.scrollWidth > node.clientWidth + 1);"
        "return [...document.querySelectorAll('*')].filter((node) => node.getClientRects().length"
        " && !node.closest('.log, .numbers, .plot, .scroll, .hidden') && isWide(node))"
        ".map((node) => node.outerHTML.slice(0, 200))"
        ".concat(document.documentElement.scrollWidth > arguments[0] ? document.documentElement.scrollWidth : [])"
    )
    return [str(found) for found in page.run(script, width)]


#: What is clicked before axe looks at a view: it shows more then.
OPENED = {"overview": "[data-run='mean-005f'] summary", COMPARED: "[data-metric=loss] summary", "runs": ".sort"}


@pytest.mark.parametrize(("width", "colours"), [(400, "light"), pytest.param(1280, "dark", marks=pytest.mark.slow)])
def test_nothing_is_wider_than_the_window_and_axe_finds_nothing(page: Page, width: int, colours: str) -> None:
    for view in VIEWS:
        page.show(view, width, colours)
        with contextlib.suppress(AssertionError):  # the browser may still lay out the page for its new width
            wait_for(lambda: wider(page, width) == [], 10)
        assert wider(page, width) == [], view
        for seconds in (600, 3600, 86400, 0) if view in ("overview", "events") else ():
            page.choose("[aria-label='time shown']", str(seconds))
            wait_for(lambda: page.count(".tick"))
            assert wider(page, width) == [], view
        if view in OPENED:
            page.click(OPENED[view])
        assert page.violations() == [], view
    assert page.complaints() == []


def test_the_overview_has_hosts_tasks_and_results_of_runs(page: Page) -> None:
    page.show("overview")
    bars = "return [...document.querySelectorAll(arguments[0])].map((bar) => [bar.style.width, bar.dataset.level])"
    used = [width for width, _ in page.run(bars, "[data-host=node1] .bar div")]
    assert used == ["16.5%", "15.625%", "83%", "76.25%", "76%", "76.25%"]
    levels = [level for _, level in page.run(bars, "[data-host=node6] .bar div")]
    assert levels == ["", "high"], "a processor may be busy, but memory must not be full"
    assert page.text("[data-run='linear-0061'] .result") == "41 % · step=4100 loss=0.4213"
    assert page.run("return document.querySelector('[data-run=linear-0061] progress').value") == 0.41
    assert page.text("[data-run='linear-005d'] .result").startswith("y = 2.006x + 0.1702")
    assert page.text("[data-run='pi-0060'] .result").startswith("pi = 3.14158")
    assert page.text("[data-run='train-005e'] .program") == "train_transformer.py"
    error = "[data-run='mean-005f'] details"
    height = "return document.querySelector(arguments[0]).getBoundingClientRect().height"
    assert "ValueError" in page.text(f"{error} summary")
    assert 10 < page.run(height, error) < 30, "it is one line"
    page.click(f"{error} summary")
    assert page.text(f"{error} pre").startswith("worker:3 on node3 failed")
    assert page.text("[data-task='worker:50'] .state") == "backing-off"
    assert page.rows("tasks") < 60
    page.click("section:has(#tasks) .more")
    assert page.rows("tasks") == 60
    page.type("[aria-label='filter tasks']", "node7")
    wait_for(lambda: page.rows("tasks") == 7)
    assert page.violations() == []
    style = "return getComputedStyle(document.querySelector(arguments[0]), arguments[1])[arguments[2]]"
    assert page.run(style, "#tasks td.GPU", None, "display") != "none"
    page.resize(400)
    wait_for(lambda: page.run(style, "#tasks tr", None, "display") == "grid")
    assert page.run(style, "#tasks tr td.CPU", "::before", "content") == '"CPU"', "rows are cards in a narrow window"
    page.resize(1280)
    page.serve(RecordedApi(gpus=0))
    wait_for(lambda: page.run(style, "#tasks td.GPU", None, "display") == "none")
    assert page.rows("runs") == 3 + 8, "those that are active, and the latest"
    page.click(".all")
    wait_for(lambda: page.rows("all-runs") == 100)


TAG = "<img src=x onerror=window.owned=1>"
DIRECTION, SHOWN_DIRECTION = "\r\u202efdp.exe \x1b[31m", r"\r\u202efdp.exe \x1b[31m"
# What preact would take for an element, if it were the child of one.
ELEMENT = {"type": "img", "props": {"src": "x"}, "__b": 1}


class _HostileApi(RecordedApi):
    """Has HTML and control characters in all texts."""

    def answer(self, method: str, path: str, query: dict[str, str], body: dict[str, Any], tag: str = "") -> Any:
        known = unquote(path).replace(TAG + DIRECTION, "")
        return _spoil(super().answer(method, known, query, body))

    def view(self) -> dict[str, Any]:
        view = super().view()
        view["events"][-1]["detail"] = ELEMENT
        view["runs"][-1]["activity"] = ELEMENT
        view["runs"][-1]["parameters"]["seed"] = ELEMENT
        return view


def _spoil(value: Any) -> Any:
    if value is ELEMENT:
        return value
    if isinstance(value, dict):
        return {name: _spoil(each) for name, each in value.items()} | (
            {"metrics": {TAG + DIRECTION: 1.0}} if value.get("metrics") else {}
        )
    if isinstance(value, list):
        return [_spoil(each) for each in value]
    return TAG + DIRECTION + value if isinstance(value, str) else value


def test_all_that_comes_from_the_cluster_is_text(page: Page) -> None:
    run, other = (quote(f"{TAG}{DIRECTION}{name}", safe="") for name in ("linear-005d", "linear-0061"))
    count = "return document.body.textContent.split(arguments[0]).length"
    page.resize(1280)
    page.serve(_HostileApi())
    for view in ("overview", "runs", f"run/{run}", f"run/{run},{other}", "logs", "events"):
        page.go(view)
        wait_for(lambda: page.run(count, TAG + SHOWN_DIRECTION) > 20)
        if view == f"run/{run}":
            wait_for(lambda: TAG in page.text("[data-metric] .legend") and TAG in page.text(".log"))
            assert TAG in page.text(".head")
        html = page.run("return document.body.outerHTML")  # with the tooltips
        assert "\u202e" not in html
        assert "\x1b" not in html
        assert page.run("return document.querySelector('img, #page script') === null && !('owned' in window)")
    assert page.complaints() == []


class _AwayApi(RecordedApi):
    """Has a host that can be reached, and answers, until a test says otherwise."""

    is_away = is_broken = False

    def view(self) -> dict[str, Any]:
        if self.is_broken:
            raise RequestError(HTTPStatus.BAD_GATEWAY, "the agent does not answer")
        view = super().view()
        away = {"state": "unreachable", "agent_pid": None, "tensorflow": None, "load": None}
        for host in view["status"]["hosts"]:
            host |= away if self.is_away and host["host"] == "node3" else {}
        return view


def test_what_is_last_known_of_a_host_or_a_cluster_that_is_lost_stays(page: Page) -> None:
    api = _AwayApi()
    page.serve(api)
    page.show("overview")
    card, row = "[data-host=node3]", "[data-task='worker:3']"
    assert "24 GiB of 64 GiB" in page.text(card)
    assert "Last known" not in page.text(card)
    colour = "return getComputedStyle(document.querySelector(arguments[0])).color"
    ready = page.run(colour, f"{row} .state .pill")
    api.is_away = True
    wait_for(lambda: "Last known" in page.text(card))
    assert "24 GiB of 64 GiB" in page.text(card)
    assert page.text(f"{card} .pill") == "unreachable"
    assert page.run(colour, f"{row} .state .pill") != ready
    assert page.violations(".hosts") == page.violations(row) == []
    api.is_away = False
    wait_for(lambda: "Last known" not in page.text(card))
    assert page.run(colour, f"{row} .state .pill") == ready
    for view in ("logs", "events", "overview"):
        page.show(view)
        assert page.text("#problem") == "ssh: connect to host node7.example port 22: Connection timed out"
    api.is_broken = True
    wait_for(lambda: page.text("#link") == "lost")
    assert page.text("#problem") == "the agent does not answer"
    assert "24 GiB of 64 GiB" in page.text(card)
    assert page.chrome.title == "imagenet · lost · tfcluster"
    assert page.attribute("link[rel=icon]", "href") == "/icon-bad.svg"
    api.is_broken = False
    wait_for(lambda: page.text("#link") == "live")
    assert page.chrome.title == "imagenet · degraded · tfcluster"


def test_the_page_of_a_reader_offers_no_action_and_no_log(page: Page) -> None:
    actions = ".restart, .cancel:not([hidden]), #tasks a, .actions, p:not([hidden]) > .graph"
    no_logs = "It shows no logs, and not why a run failed"
    page.serve(Reader(RecordedApi()))
    page.show("overview")
    assert page.text("#read-only") == "read-only"
    links = "return [...document.querySelectorAll('nav a')].map((link) => link.innerText)"
    assert page.run(links) == ["Overview", "Runs", "Events"]
    assert page.count(actions) == 0
    assert page.violations("#top") == page.complaints() == []
    page.show("run/linear-0061")
    wait_for(lambda: no_logs in page.text(".logs .problem"))
    assert page.count(actions) == 0
    assert page.violations(".logs") == []
    page.go("logs/worker")
    wait_for(lambda: no_logs in page.text(".logs .problem"))
    assert page.count(".log div") == 0
    assert all("/api/logs" in line and "403" in line for line in page.complaints())


def test_an_update_keeps_what_the_user_does_and_a_hidden_page_asks_for_nothing(page: Page) -> None:
    page.show("overview")
    page.click("[data-run='mean-005f'] summary")
    page.run(
        "getSelection().selectAllChildren(document.querySelector('[data-task=\"ps:2\"] td.host'));"
        "document.querySelector('[data-task=\"worker:1\"] .restart').focus(); scrollTo(0, 300);"
        "window.rows = [...document.querySelectorAll('tr')]"
    )
    before = page.attribute("#tasks path", "d")
    wait_for(lambda: page.attribute("#tasks path", "d") != before)
    assert page.run("return document.querySelector('[data-run=mean-005f] details').open")
    assert page.run("return getSelection().toString()") == "node2"
    assert page.run("return document.activeElement.getAttribute('aria-label')") == "restart worker:1"
    assert page.run("return scrollY") == 300
    assert page.run("return window.rows.every((row) => row.isConnected)")
    hide = (
        "Object.defineProperty(document, 'visibilityState', {value: arguments[0], configurable: true});"
        "document.dispatchEvent(new Event('visibilitychange'))"
    )
    counts = (
        "const plain = fetch; window.requests = {begun: 0, ended: 0, uncount: () => { window.fetch = plain; }};"
        "window.fetch = (...given) => {"
        "  requests.begun += 1; return plain(...given).finally(() => { requests.ended += 1; }); }"
    )
    page.show("run/linear-0061")
    wait_for(lambda: {*page.api.asked} >= {"/api/view", "/api/logs"})
    page.run(counts)
    wait_for(lambda: page.run("return requests.begun") > 2)
    page.run(hide, "hidden")
    try:
        wait_for(lambda: page.run("return requests.begun === requests.ended"))
        begun = page.run("return requests.begun")
        time.sleep(1.5)  # the view is asked for four times in this time, and the log once
        assert page.run("return requests.begun") == begun
    finally:
        page.api.asked = []
        page.run("requests.uncount()")
        page.run(hide, "visible")
    wait_for(lambda: {*page.api.asked} == {"/api/view", "/api/logs", "/api/runs/linear-0061"})


@pytest.mark.parametrize(
    ("name", "digest"),
    [
        # uplot@1.6.32, dist/uPlot.iife.min.js
        ("uPlot.js", "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f"),
        # htm@3.1.1, preact/standalone.module.js: htm with preact and its hooks
        ("preact.js", "72284e8e9079c87817145df1110f74e8a2aa040b2fc384922e18dfcb46fc1fd7"),
    ],
)
def test_the_libraries_are_those_of_the_npm_registry(name: str, digest: str) -> None:
    page = files("tfcluster.dashboard") / "page"
    assert hashlib.sha256((page / name).read_bytes()).hexdigest() == digest
    for library, license in (("uPlot", "MIT License"), ("preact", "MIT License"), ("htm", "Apache License")):
        assert license in (page / f"{library}.LICENSE.txt").read_text()


MARKS = (
    "const lanes = [...document.querySelectorAll('.lanes > div')];"
    "const lane = lanes.find((each) => each.innerText.startsWith(arguments[0]));"
    "return [...lane.querySelectorAll('.mark')].map((mark) => {"
    "  const box = mark.getBoundingClientRect(), style = getComputedStyle(mark);"
    "  return {kind: mark.dataset.kind, count: mark.innerText, left: box.left, right: box.right,"
    "    color: style.backgroundColor, order: Number(style.zIndex) || 0}; })"
)


def marks_of(page: Page, lane: str) -> list[Any]:
    return list(page.run(MARKS, lane))


def has_events(page: Page, lane: str, count: int) -> bool:
    return sum(int(mark["count"] or 1) for mark in marks_of(page, lane)) == count


def test_events_are_marks_on_an_axis_of_which_a_part_can_be_chosen(page: Page) -> None:
    page.show("events")
    everything = page.rows("events")

    def point() -> bool:
        with contextlib.suppress(StaleElementReferenceException):  # the axis has moved, and has other marks now
            lane = page.chrome.find_element(By.XPATH, "//*[@class='lane'][starts-with(., 'worker:2')]")
            mark = lane.find_element(By.CSS_SELECTOR, ".mark[data-kind=bad]")
            ActionChains(page.chrome).move_to_element(mark).perform()
        return len(page.text(".timeline .tip").splitlines()) == 3

    wait_for(point)
    died, started, ready = page.text(".timeline .tip").splitlines()
    assert died.endswith("worker:2 · died · SIGKILL; out of memory")
    assert started.endswith("worker:2 · started · pid 812")
    assert ready.endswith("worker:2 · ready")
    ActionChains(page.chrome).click().perform()
    wait_for(lambda: page.rows("events") == 3)
    ActionChains(page.chrome).move_to_element(page.chrome.find_element(By.CSS_SELECTOR, ".mark")).perform()
    wait_for(lambda: page.count(".timeline .tip"))
    page.click(".now")  # as with the keyboard: the pointer rests on a mark
    wait_for(lambda: page.rows("events") == everything)
    assert page.count(".lane") > 1
    ticks = page.chrome.find_element(By.CSS_SELECTOR, ".ticks")
    half = ticks.size["width"] / 2
    chain = ActionChains(page.chrome).move_to_element_with_offset(ticks, int(half - 2), -60).click_and_hold()
    chain.move_to_element_with_offset(ticks, int(half * 0.1), -60).release().perform()
    shown = (
        "return [...document.querySelectorAll('#events tr')].filter((row) => !row.innerText.includes('ps:1')).length"
    )
    wait_for(lambda: page.run(shown) == 6)  # of two deaths, 700 s and 25 min ago; those of ps:1 are of just now
    page.click(".now")
    wait_for(lambda: page.rows("events") == everything)
    page.click("[aria-label='zoom in']")
    wait_for(lambda: page.rows("events") < everything)
    page.choose("[aria-label='time shown']", "3600")
    wait_for(lambda: [mark["count"] for mark in marks_of(page, "worker:2")] == ["", "3"])
    ready, died = marks_of(page, "worker:2")
    assert (ready["kind"], died["kind"]) == ("good", "bad")
    assert died["order"] > ready["order"]
    assert died["color"] != ready["color"]
    page.choose("[aria-label='time shown']", "86400")
    for name, count in {"worker:2": 4, "worker:50": 6, "ps:1": 7}.items():  # those of ps:1 are of just now
        wait_for(functools.partial(has_events, page, name, count))
        marks = marks_of(page, name)
        assert all(one["right"] <= other["left"] for one, other in itertools.pairwise(marks))
        assert marks[-1]["kind"] == "bad"


def series_of(run: str, name: str) -> dict[str, list[list[Any]]]:
    series = RecordedApi().answer("GET", f"/api/runs/{run}", {}, {})["series"]
    return {each["reporter"]: each["points"] for each in series if each["name"] == name}


def legend(page: Page) -> list[str]:
    return page.text("[data-metric=loss] .legend").replace("\n", " ").split()


def test_a_curve_can_be_logarithmic_and_smooth_and_shows_the_values_under_the_pointer(page: Page) -> None:
    page.show("run/train-005e")
    values = {point[0]: point[1] for point in series_of("train-005e", "loss")[""]}
    page.type("#smoothing", "0.9")
    total = weight = 0.0
    for value in values.values():
        total, weight = 0.9 * total + 0.1 * value, 0.9 * weight + 0.1
    wait_for(lambda: float(legend(page)[-1]) == pytest.approx(total / weight, rel=1e-3))
    page.type("#smoothing", "0")
    wait_for(lambda: float(legend(page)[-1]) == pytest.approx(value, rel=1e-3))
    picture = "return document.querySelector('[data-metric=loss] canvas').toDataURL()"
    assert not page.run("return document.querySelector('#logarithmic').checked")
    linear = page.run(picture)
    page.click("#logarithmic")
    wait_for(lambda: page.run(picture) != linear)
    page.click("#logarithmic")
    wait_for(lambda: page.run(picture) == linear)
    assert legend(page)[:2] == ["step", "9,960"]
    over = page.chrome.find_element(By.CSS_SELECTOR, "[data-metric=loss] .u-over")
    ActionChains(page.chrome).move_to_element(over).perform()
    wait_for(lambda: 4500 < int(legend(page)[1].replace(",", "")) < 5500)
    step = int(legend(page)[1].replace(",", ""))
    assert float(legend(page)[2]) == pytest.approx(values[step], rel=1e-3)


def cells(page: Page, table: str, column: str) -> list[str]:
    """Return the texts of a column of a table that sorts."""
    script = (
        "const [table, column] = arguments, head = document.querySelector(`#${table}`).closest('table').tHead.rows[0];"
        "const index = [...head.cells].findIndex((cell) => cell.innerText.trim().split(' ')[0] === column);"
        "return [...document.querySelectorAll(`#${table} tr`)].map((row) => row.cells[index].innerText)"
    )
    return list(page.run(script, table, column))


def sort_by(page: Page, table: str, column: str) -> str:
    """Sort a table by a column, with the keyboard, and return the direction."""
    xpath = f"//table[tbody[@id='{table}']]//button[.='{column}']"
    button = page.chrome.find_element(By.XPATH, xpath)
    button.send_keys(Keys.ENTER)
    heading = page.chrome.find_element(By.XPATH, f"{xpath}/..")
    return str(wait_for(lambda: heading.get_attribute("aria-sort")))


def test_the_table_of_runs_sorts_and_filters_and_is_downloaded(page: Page, tmp_path: Path) -> None:
    page.show("runs")
    assert cells(page, "all-runs", "waited")[:4] == ["", "", "12 s", ""], "in the queue"
    page.type("#runs-filter", "train batch=64")
    wait_for(lambda: page.rows("all-runs") == 0)
    assert "Nothing matches." in page.text("main")
    page.type("#runs-filter", "train succ")
    wait_for(lambda: page.rows("all-runs") == 21)
    head = "return [...document.querySelectorAll('thead th')].map((cell) => cell.innerText.trim())"
    assert " ".join(page.run(head)) == "choose run state program began took rate accuracy loss", "batch is the same"
    assert sort_by(page, "all-runs", "loss") == "ascending"
    losses = list(map(float, cells(page, "all-runs", "loss")))
    assert losses == sorted(losses)
    assert sort_by(page, "all-runs", "loss") == "descending"
    assert list(map(float, cells(page, "all-runs", "loss"))) == losses[::-1]
    for direction in ("ascending", "descending"):
        assert sort_by(page, "all-runs", "accuracy") == direction
        known = [text != "" for text in cells(page, "all-runs", "accuracy")]
        assert known == sorted(known, reverse=True), "those without a value are last"
        assert {True, False} == {*known}
    sort_by(page, "all-runs", "rate")
    with page.download(tmp_path, "all-runs.csv", ".csv").open() as file:
        names, *lines = csv.reader(file)
    assert names == ["run", "state", "program", "began", "took", "rate", "accuracy", "loss"]
    assert [line[0] for line in lines] == cells(page, "all-runs", "run")
    assert all(datetime.fromisoformat(line[3]) for line in lines)
    assert [line[5] for line in lines] == cells(page, "all-runs", "rate")


def test_runs_are_compared_in_their_own_colours_and_downloaded(page: Page, tmp_path: Path) -> None:
    page.show("run/linear-0061")
    wait_for(lambda: page.text(".log .source").strip() == "worker:0")  # the output names the process, not the run
    page.choose("#compare", "linear-005d")
    wait_for(lambda: page.run("return !document.querySelector('#compare-run').disabled"))
    page.click("#compare-run")
    wait_for(lambda: "linear-005d worker:2" in page.text("[data-metric=loss] .legend"))
    assert page.run("return location.hash") == f"#{COMPARED}"
    page.click("[data-metric=loss] summary")
    wait_for(lambda: page.count("[data-metric=loss] thead th") == 7)
    picture = page.download(tmp_path, "loss.png", "[aria-label='loss as PNG']")
    assert picture.read_bytes().startswith(b"\x89PNG")
    text = page.download(tmp_path, "loss.csv", "[aria-label='loss as CSV']").read_text()
    head, *lines = csv.reader(io.StringIO(text))
    assert head == ["step", *(f"{run} worker:{n}" for run in ("linear-0061", "linear-005d") for n in range(3))]
    column = head.index("linear-005d worker:1")
    assert [[int(line[0]), float(line[column])] for line in lines] == [
        point[:2] for point in series_of("linear-005d", "loss")["worker:1"]
    ]
    page.show("runs")
    assert page.run("return document.querySelector('#compare-runs').disabled")
    for run in ("train-005e", "train-005a"):
        page.click(f"[aria-label='choose {run}']")
    wait_for(lambda: page.text("#compare-runs") == "Compare 2 runs")
    page.click("#compare-runs")
    wait_for(lambda: page.run("return location.hash") == "#run/train-005e,train-005a")
    wait_for(lambda: page.rows("compared-runs") == 2)
    page.show(TEN)
    runs = TEN.removeprefix("run/").split(",")
    wait_for(lambda: page.rows("compared-runs") == 10)
    script = (
        "return [...document.querySelectorAll(arguments[0])].map((node) => {"
        "  const style = getComputedStyle(node, arguments[1]); return style.backgroundColor; })"
    )
    for name in ("loss", "accuracy"):
        colours = page.run(script, f"[data-metric={name}] .key", "::before")
        assert len({*colours}) == 10
        assert colours == page.run(script, "#compared-runs .swatch", None)
        assert colours == page.run(script, ".chip .swatch", None)
    assert cells(page, "compared-runs", "run") == runs
    sort_by(page, "compared-runs", "rate")
    rates = list(map(float, cells(page, "compared-runs", "rate")))
    assert rates == sorted(rates)
    text = page.download(tmp_path, "compared-runs.csv", ".csv").read_text()
    assert [row[0] for row in csv.reader(io.StringIO(text))] == ["run", *cells(page, "compared-runs", "run")]
    page.click(f"[aria-label='no longer compare with {runs[0]}']")
    wait_for(lambda: page.rows("compared-runs") == 9)


class _SweepApi(RecordedApi):
    """A run whose members are the trials of a sweep."""

    def _run(self, run: str) -> dict[str, Any]:
        trials: list[dict[str, Any]] = [
            {"trial": 1, "parameters": {"lr": 0.1, "by": "adam"}, "state": "succeeded", "metrics": {"loss": 0.25}},
            {"trial": 0, "parameters": {"lr": 0.2, "by": "sgd"}, "state": "failed", "metrics": {"loss": None}},
            {"trial": 2, "parameters": {"lr": 0.3, "by": "sgd"}, "state": "pending", "metrics": {}},
        ]
        for trial, host, seconds in zip(trials, ("alpha", "beta", None), (3.0, 75.0, None), strict=True):
            trial |= {"host": host, "seconds": seconds}
        return {**super()._run(run), "trials": trials}


def facts(page: Page) -> dict[str, str]:
    script = (
        "return [...document.querySelectorAll('.head dt')].map((name) => [name.innerText, name.nextSibling.innerText])"
    )
    return dict(page.run(script))


def test_a_run_says_when_and_why_and_has_a_placed_graph_and_the_trials_of_a_sweep(page: Page, tmp_path: Path) -> None:
    page.show("run/linear-0061")
    assert page.download(tmp_path, "linear-0061.dot", "button.graph").read_text() == "digraph {}"
    shown = facts(page)
    assert (shown["program"], shown["waited"]) == ("linear", "12 s in the queue")
    assert {"began", "took", "inputs"} <= {*shown}
    page.go("run/train-0056")
    wait_for(lambda: "line 41, in step" in page.text(".head .problem"))
    assert page.text(".head .problem").endswith("Use the same number of units in the last layer.")
    assert page.text(".head .pill") == "failed"
    assert facts(page)["exit code"] == "1"
    assert "waited" not in facts(page)
    page.go("run/mean-0063")
    wait_for(lambda: page.text(".activity") == "waits: worker:50 died (SIGKILL) and restarts in 12 s")
    page.serve(_SweepApi())
    page.show("run/linear-0061")
    assert cells(page, "trials", "trial") == ["1", "0", "2"]
    assert cells(page, "trials", "lr") == ["0.1", "0.2", "0.3"]
    assert cells(page, "trials", "by") == ["adam", "sgd", "sgd"]
    assert cells(page, "trials", "loss") == ["0.25", "\u2013", ""]  # the second is not finite
    assert cells(page, "trials", "state") == ["succeeded", "failed", "pending"]
    assert cells(page, "trials", "took") == ["3.0 s", "1 min 15 s", ""]


class _FailingApi(RecordedApi):
    """Has another line of a log for each request, unless a test says that it fails; refuses a filter."""

    fails = False

    def logs(self, query: dict[str, str]) -> dict[str, Any]:
        if query.get("grep"):
            raise RequestError(HTTPStatus.BAD_REQUEST, "'(' is not a regular expression")
        if self.fails:
            raise RequestError(HTTPStatus.BAD_GATEWAY, "node1 does not answer")
        number = int(query.get("after", "0")) + 1
        line = {"task": "ps:0", "time": time.time(), "line": f"line {number}", "level": "info"}
        return log_answer([line], after=str(number), pause=0.2)


def test_logs_fill_the_window_follow_and_continue_where_they_were(page: Page) -> None:
    page.show("logs")
    box = "document.querySelector('.log').getBoundingClientRect()"
    height, below = page.run(f"return [{box}.height, innerHeight - {box}.bottom]")
    assert height > 600
    assert 0 <= below < 40
    assert page.text(".left-out") == "60 entries below this level are hidden"
    assert "Local rendezvous" not in page.text(".log")
    assert page.text(".log .source").strip() == "worker:1"
    page.choose(".level", "info")
    wait_for(lambda: "Local rendezvous" in page.text(".log") and page.text(".left-out") == "")
    page.choose(".level", "error")
    wait_for(lambda: page.text(".left-out").startswith("120 "))
    at_end = (
        "const log = document.querySelector('.log'); return log.scrollHeight - log.scrollTop - log.clientHeight < 2"
    )
    wait_for(lambda: page.run(at_end))
    follows = "return document.querySelector('input.follow').checked"
    assert page.run(follows)
    page.run("document.querySelector('.log').focus()")
    page.press(Keys.PAGE_UP)
    wait_for(lambda: not page.run(follows))
    page.press(Keys.END)
    wait_for(lambda: page.run(follows))
    is_wide = "const log = document.querySelector('.log'); return log.scrollWidth > log.clientWidth"
    assert not page.run(is_wide)
    page.click("input.wrap")
    assert page.run(is_wide)
    page.run("document.querySelector('.log').scrollTop = 0")
    wait_for(lambda: not page.run(follows))
    page.click("input.follow")
    wait_for(lambda: page.run(at_end))
    page.serve(api := _FailingApi())
    page.show("logs/ps:0")
    api.fails = True
    wait_for(lambda: page.text("section .problem") == "node1 does not answer")
    known = page.text(".log").splitlines()
    api.fails = False
    wait_for(lambda: len(page.text(".log").splitlines()) > len(known))
    assert page.text("section .problem") == ""
    lines = [line.rpartition("ps:0 ")[2] for line in page.text(".log").splitlines()]
    assert lines == [f"line {number}" for number in range(1, len(lines) + 1)]
    page.type("#log-grep", "(")
    page.click(".filters button")
    wait_for(lambda: page.text("section .problem") == "'(' is not a regular expression")


def test_links_of_any_kind(page: Page) -> None:
    page.show("run/linear-0061,linear-0061")
    assert page.text("h2").startswith("linear-0061")
    page.go("logs/50%")
    assert page.run("return document.querySelector('#log-tasks').value") == "50%"
    page.go("overview")
    assert page.text("[data-task='ps:0'] .state") == "ready"
    assert page.complaints() == []
    page.go("run/no-such-run")
    wait_for(lambda: page.text("section .problem") == "no run 'no-such-run'")
    page.open(page.url.replace("token=token", "token=old"))  # of another start of the command, in the same tab
    wait_for(lambda: "needs the link" in page.text("#problem"))
    page.run("location.hash = arguments[0]", page.url.partition("#")[2])
    wait_for(lambda: page.text("#link") == "live")
    assert "token" not in page.chrome.current_url


def test_the_keyboard_reaches_everything_and_refuses_a_question(page: Page) -> None:
    page.show("overview")
    page.run(
        "document.activeElement.blur(); window.focused = [];"
        "addEventListener('focusin', ({target}) => { const style = getComputedStyle(target); window.focused.push("
        "  [target.getAttribute('aria-label') ?? target.innerText, style.outlineStyle, style.outlineWidth]) })"
    )
    for _ in range(3):
        page.press(*[Keys.TAB] * 40)
    focused = page.run("return window.focused")
    assert {(style, width) for _, style, width in focused} == {("solid", "2px")}, "the focus is seen"
    seen = {name for name, _, _ in focused}
    tabs = {"Overview", "Runs", "Logs", "Events", "filter tasks", "restart worker:50", "cancel linear-0061"}
    assert {*tabs, "Show all 60", "All 100 runs", "zoom in"} <= seen
    assert any(name.startswith("worker:3 on node3 failed") for name in seen)
    page.run("document.querySelector('section:has(#tasks) .more').focus()")
    page.press(Keys.ENTER)
    assert page.rows("tasks") == 60
    refusals = functools.partial(page.press, Keys.ESCAPE), functools.partial(page.click, "dialog button:not(.danger)")
    for refuse in refusals:
        page.click(".cancel")
        wait_for(lambda: page.run("return document.activeElement.innerText") == "Keep")
        refuse()
        wait_for(lambda: not page.count("#question") and not page.count("dialog[open]"))
