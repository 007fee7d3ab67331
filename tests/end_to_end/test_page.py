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

COMPARED = "run/linear-0061,linear-005d"
CHOOSE = (
    "const list = document.querySelector(arguments[0]); list.value = arguments[1];"
    "list.dispatchEvent(new Event('change'))"
)
TEN = f"run/{','.join(f'train-{number:04x}' for number in range(94, 54, -4))}"
VIEWS = ("overview", "runs", "run/linear-0061", COMPARED, TEN, "logs", "events")


@pytest.fixture(scope="module")
def browser(needs_browser: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with open_browser(tmp_path_factory.mktemp("browser")) as browser:
        browser.set_midnight()  # most times of the page have a date
        yield browser


@pytest.fixture
def url() -> Iterator[str]:
    """A page whose times are of now, however slow the machine is."""
    with serve_recorded(RecordedApi()) as url:
        yield url


def show(browser: Browser, url: str, view: str, width: int = 1280, colours: str = "light") -> None:
    browser.resize(width, colours)
    browser.open(url)
    wait_for(lambda: browser.text("#link") == "live")
    browser.run("location.hash = arguments[0]", view)
    shown = {"overview": "progress", "runs": "#all-runs tr", "logs": ".log div", "events": "#events tr"}
    wait_for(lambda: browser.attribute("body", "data-view") == view.partition("/")[0])
    wait_for(lambda: browser.run("return document.querySelectorAll(arguments[0]).length", shown.get(view, ".u-over")))


def is_text(browser: Browser, selector: str, text: str) -> bool:
    return browser.text(selector) == text


def rows(browser: Browser, table: str) -> int:
    return int(browser.run("return document.querySelectorAll(`#${arguments[0]} tr`).length", table))


def wider(browser: Browser, width: int) -> list[str]:
    """Return what ends outside of a window that has a width, and the text of cells that ends outside of the cell."""
    script = (
        "const isWide = (node) => node.getBoundingClientRect().right > arguments[0]"
        " || (node.matches('td, tbody th') && node.scrollWidth > node.clientWidth + 1);"
        "return [...document.querySelectorAll('*')].filter((node) => node.getClientRects().length"
        " && !node.closest('.log, .numbers, .plot, .scroll, .hidden') && isWide(node))"
        ".map((node) => node.outerHTML.slice(0, 200))"
        ".concat(document.documentElement.scrollWidth > arguments[0] ? document.documentElement.scrollWidth : [])"
    )
    return [str(found) for found in browser.run(script, width)]


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize(("width", "colours"), [(400, "light"), pytest.param(1280, "dark", marks=pytest.mark.slow)])
def test_nothing_is_wider_than_the_window_and_axe_finds_nothing(
    browser: Browser, url: str, view: str, width: int, colours: str
) -> None:
    show(browser, url, view, width, colours)
    with contextlib.suppress(AssertionError):  # the browser may still lay out the page for its new width
        wait_for(lambda: wider(browser, width) == [], 10)
    assert wider(browser, width) == []
    for seconds in (600, 3600, 86400, 0) if view in ("overview", "events") else ():
        browser.run(CHOOSE, "[aria-label='time shown']", str(seconds))
        wait_for(lambda: browser.run("return document.querySelectorAll('.tick').length"))
        assert wider(browser, width) == []
    assert browser.complaints() == []
    assert browser.violations() == []


def test_the_overview_has_results_of_runs_and_what_needs_attention(browser: Browser, url: str) -> None:
    show(browser, url, "overview")
    assert browser.text("[data-run='linear-0061'] .result") == "41 % · step=4100 loss=0.4213"
    assert browser.run("return document.querySelector('[data-run=linear-0061] progress').value") == 0.41
    assert browser.text("[data-run='linear-005d'] .result").startswith("y = 2.006x + 0.1702")
    assert browser.text("[data-run='pi-0060'] .result").startswith("pi = 3.14158")
    assert browser.text("[data-run='train-005e'] .program") == "train_transformer.py"
    error = "[data-run='mean-005f'] details"
    height = "return document.querySelector(arguments[0]).getBoundingClientRect().height"
    assert "ValueError" in browser.text(f"{error} summary")
    assert 10 < browser.run(height, error) < 30, "it is one line"
    browser.click(f"{error} summary")
    assert browser.text(f"{error} pre").startswith("worker:3 on node3 failed")
    assert browser.violations() == []
    assert browser.text("[data-task='worker:50'] .state") == "backing-off"
    assert rows(browser, "tasks") < 60
    browser.click("section:has(#tasks) .more")
    assert rows(browser, "tasks") == 60
    browser.type("[aria-label='filter tasks']", "node7")
    wait_for(lambda: rows(browser, "tasks") == 7)
    assert rows(browser, "runs") == 3 + 8, "those that are active, and the latest"
    browser.click(".all")
    wait_for(lambda: rows(browser, "all-runs") == 100)


def test_the_overview_has_hosts_with_their_use_and_problems(browser: Browser, url: str) -> None:
    show(browser, url, "overview")
    bars = "return [...document.querySelectorAll('[data-host=node1] .bar div')].map((bar) => bar.style.width)"
    assert browser.run(bars) == ["16.5%", "15.625%", "83%", "76.25%", "76%", "76.25%"]
    assert browser.run("return getComputedStyle(document.querySelector('td.GPU')).display") != "none"
    levels = "return [...document.querySelectorAll('[data-host=node6] .bar div')].map((bar) => bar.dataset.level)"
    assert browser.run(levels) == ["", "high"], "a processor may be busy, but memory must not be full"
    with serve_recorded(RecordedApi(gpus=0)) as without:
        show(browser, without, "overview")
        assert browser.run("return getComputedStyle(document.querySelector('td.GPU')).display") == "none"


def test_a_question_can_be_refused_and_the_problem_of_a_host_is_in_all_views(browser: Browser, url: str) -> None:
    show(browser, url, "overview")
    problem = browser.text("#problem")
    assert problem == "ssh: connect to host node7.example port 22: Connection timed out"
    browser.click(".cancel")
    wait_for(lambda: browser.run("return document.activeElement.innerText") == "Keep")
    ActionChains(browser.chrome).send_keys(Keys.ESCAPE).perform()
    wait_for(lambda: not browser.run("return document.querySelector('dialog').open"))
    browser.click(".cancel")
    browser.click("dialog button:not(.danger)")
    wait_for(lambda: not browser.run("return document.querySelector('dialog').open"))
    for view, shown in (("logs", ".log"), ("events", "#events"), ("overview", "#runs")):
        browser.run("location.hash = arguments[0]", view)
        wait_for(functools.partial(browser.text, shown))
        assert browser.text("#problem") == problem


def test_rows_are_cards_in_a_narrow_window(browser: Browser, url: str) -> None:
    show(browser, url, "overview", 400)
    assert browser.run("return getComputedStyle(document.querySelector('#tasks tr')).display") == "grid"
    label = "return getComputedStyle(document.querySelector(arguments[0]), '::before').content"
    assert browser.run(label, "#tasks tr td.CPU") == '"CPU"'


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


def test_all_that_comes_from_the_cluster_is_text(browser: Browser) -> None:
    run = quote(f"{TAG}{DIRECTION}linear-005d", safe="")
    count = "return document.body.textContent.split(arguments[0]).length"
    with serve_recorded(_HostileApi()) as url:
        browser.resize(1280)
        browser.open(url)
        for view in ("overview", "runs", f"run/{run}", f"run/{run},{run}", "logs", "events"):
            browser.run("location.hash = arguments[0]", view)
            wait_for(lambda: browser.run(count, TAG + SHOWN_DIRECTION) > 20)
            html = browser.run("return document.body.outerHTML")  # with the tooltips
            assert "\u202e" not in html
            assert "\x1b" not in html
            assert browser.run("return document.querySelector('img, #page script') === null && !('owned' in window)")
        browser.run("location.hash = arguments[0]", f"run/{run}")
        wait_for(lambda: TAG in browser.text("[data-metric] .legend") and TAG in browser.text(".log"))
        assert TAG in browser.text(".head")
        assert browser.complaints() == []


class _AwayApi(RecordedApi):
    """Has a host that can be reached, and answers, until it is told."""

    is_away = is_broken = False

    def view(self) -> dict[str, Any]:
        if self.is_broken:
            raise RequestError(HTTPStatus.BAD_GATEWAY, "the agent does not answer")
        view = super().view()
        away = {"state": "unreachable", "agent_pid": None, "tensorflow": None, "load": None}
        for host in view["status"]["hosts"]:
            host |= away if self.is_away and host["host"] == "node3" else {}
        return view


def test_what_is_last_known_of_a_host_or_a_cluster_that_is_lost_stays(browser: Browser) -> None:
    api = _AwayApi()
    with serve_recorded(api) as url:
        show(browser, url, "overview")
        card, row = "[data-host=node3]", "[data-task='worker:3']"
        assert "24 GiB of 64 GiB" in browser.text(card)
        assert "Last known" not in browser.text(card)
        colour = "return getComputedStyle(document.querySelector(arguments[0])).color"
        ready = browser.run(colour, f"{row} .state .pill")
        api.is_away = True
        wait_for(lambda: "Last known" in browser.text(card))
        assert "24 GiB of 64 GiB" in browser.text(card)
        assert browser.text(f"{card} .pill") == "unreachable"
        assert browser.run(colour, f"{row} .state .pill") != ready
        assert browser.violations() == []
        api.is_away = False
        wait_for(lambda: "Last known" not in browser.text(card))
        assert browser.run(colour, f"{row} .state .pill") == ready
        api.is_broken = True
        wait_for(lambda: browser.text("#link") == "lost")
        assert browser.text("#problem") == "the agent does not answer"
        assert "24 GiB of 64 GiB" in browser.text(card)
        assert browser.chrome.title == "imagenet · lost · tfcluster"
        assert browser.attribute("link[rel=icon]", "href") == "/icon-bad.svg"
        api.is_broken = False
        wait_for(lambda: browser.text("#link") == "live")
        assert browser.chrome.title == "imagenet · degraded · tfcluster"


def test_what_the_user_does_survives_an_update(browser: Browser, url: str) -> None:
    show(browser, url, "overview")
    browser.click("[data-run='mean-005f'] summary")
    browser.run(
        "getSelection().selectAllChildren(document.querySelector('[data-task=\"ps:2\"] td.host'));"
        "document.querySelector('[data-task=\"worker:1\"] .restart').focus(); scrollTo(0, 300);"
        "window.rows = [...document.querySelectorAll('tr')]"
    )
    before = browser.run("return document.querySelector('#tasks path').getAttribute('d')")
    wait_for(lambda: browser.run("return document.querySelector('#tasks path').getAttribute('d')") != before)
    assert browser.run("return document.querySelector('[data-run=mean-005f] details').open")
    assert browser.run("return getSelection().toString()") == "node2"
    assert browser.run("return document.activeElement.getAttribute('aria-label')") == "restart worker:1"
    assert browser.run("return scrollY") == 300
    assert browser.run("return window.rows.every((row) => row.isConnected)")


def test_a_hidden_page_asks_for_nothing(browser: Browser) -> None:
    api = _CountingApi()
    hide = (
        "Object.defineProperty(document, 'visibilityState', {value: arguments[0], configurable: true});"
        "document.dispatchEvent(new Event('visibilitychange'))"
    )
    with serve_recorded(api) as url:
        show(browser, url, "run/linear-0061")
        wait_for(lambda: {path.partition("?")[0] for path in api.paths} >= {"/api/view", "/api/logs"})
        browser.run(hide, "hidden")
        time.sleep(0.5)  # for the requests that are under way
        api.paths.clear()
        time.sleep(1.5)  # the view is asked for four times in this time, and the log once
        assert api.paths == []
        browser.run(hide, "visible")
        wait_for(lambda: {*api.paths} == {"/api/view", "/api/logs", "/api/runs/linear-0061"})


class _CountingApi(RecordedApi):
    """Notes what it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.paths: list[str] = []

    def answer(self, method: str, path: str, query: dict[str, str], body: dict[str, Any], tag: str = "") -> Any:
        self.paths.append(path)
        return super().answer(method, path, query, body)


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


def marks_of(browser: Browser, lane: str) -> list[Any]:
    return list(browser.run(MARKS, lane))


def has_events(browser: Browser, lane: str, count: int) -> bool:
    return sum(int(mark["count"] or 1) for mark in marks_of(browser, lane)) == count


def test_events_that_would_overlap_are_one_mark(browser: Browser, url: str) -> None:
    show(browser, url, "events")
    ready, died = marks_of(browser, "worker:2")
    assert [(mark["kind"], mark["count"]) for mark in (ready, died)] == [("good", ""), ("bad", "3")]
    assert died["order"] > ready["order"]
    assert died["color"] != ready["color"]
    browser.run(CHOOSE, "[aria-label='time shown']", "86400")
    for name, count in {"worker:2": 4, "worker:50": 6, "ps:1": 7}.items():  # those of ps:1 are of just now
        wait_for(functools.partial(has_events, browser, name, count))
        marks = marks_of(browser, name)
        assert all(one["right"] <= other["left"] for one, other in itertools.pairwise(marks))
        assert marks[-1]["kind"] == "bad"


def test_a_mark_names_its_events_and_a_part_of_the_time_can_be_chosen(browser: Browser, url: str) -> None:
    show(browser, url, "events")
    everything = rows(browser, "events")

    def point() -> bool:
        with contextlib.suppress(StaleElementReferenceException):  # the axis has moved, and has other marks now
            lane = browser.chrome.find_element(By.XPATH, "//*[@class='lane'][starts-with(., 'worker:2')]")
            mark = lane.find_element(By.CSS_SELECTOR, ".mark[data-kind=bad]")
            ActionChains(browser.chrome).move_to_element(mark).perform()
        return len(browser.text(".timeline .tip").splitlines()) == 3

    wait_for(point)
    died, started, ready = browser.text(".timeline .tip").splitlines()
    assert died.endswith("worker:2 · died · SIGKILL; out of memory")
    assert started.endswith("worker:2 · started · pid 812")
    assert ready.endswith("worker:2 · ready")
    ActionChains(browser.chrome).click().perform()
    wait_for(lambda: rows(browser, "events") == 3)
    browser.click(".now")
    wait_for(lambda: rows(browser, "events") == everything)
    ticks = browser.chrome.find_element(By.CSS_SELECTOR, ".ticks")
    half = ticks.size["width"] / 2
    chain = ActionChains(browser.chrome).move_to_element_with_offset(ticks, int(half - 2), -60).click_and_hold()
    chain.move_to_element_with_offset(ticks, int(half * 0.1), -60).release().perform()
    shown = (
        "return [...document.querySelectorAll('#events tr')].filter((row) => !row.innerText.includes('ps:1')).length"
    )
    wait_for(lambda: browser.run(shown) == 6)  # of two deaths, 700 s and 25 min ago; those of ps:1 are of just now
    browser.click(".now")
    wait_for(lambda: rows(browser, "events") == everything)
    browser.click("[aria-label='zoom in']")
    wait_for(lambda: rows(browser, "events") < everything)


def series_of(run: str, name: str) -> dict[str, list[list[Any]]]:
    series = RecordedApi().answer("GET", f"/api/runs/{run}", {}, {})["series"]
    return {each["reporter"]: each["points"] for each in series if each["name"] == name}


def legend(browser: Browser) -> list[str]:
    return browser.text("[data-metric=loss] .legend").replace("\n", " ").split()


def test_a_curve_can_be_logarithmic_and_smooth_and_shows_the_values_under_the_pointer(
    browser: Browser, url: str
) -> None:
    show(browser, url, "run/train-005e")
    values = {point[0]: point[1] for point in series_of("train-005e", "loss")[""]}
    browser.type("#smoothing", "0.9")
    total = weight = 0.0
    for value in values.values():
        total, weight = 0.9 * total + 0.1 * value, 0.9 * weight + 0.1
    wait_for(lambda: float(legend(browser)[-1]) == pytest.approx(total / weight, rel=1e-3))
    browser.type("#smoothing", "0")
    wait_for(lambda: float(legend(browser)[-1]) == pytest.approx(value, rel=1e-3))
    picture = "return document.querySelector('[data-metric=loss] canvas').toDataURL()"
    assert not browser.run("return document.querySelector('#logarithmic').checked")
    linear = browser.run(picture)
    browser.click("#logarithmic")
    wait_for(lambda: browser.run(picture) != linear)
    browser.click("#logarithmic")
    wait_for(lambda: browser.run(picture) == linear)
    assert legend(browser)[:2] == ["step", "9,960"]
    over = browser.chrome.find_element(By.CSS_SELECTOR, "[data-metric=loss] .u-over")
    ActionChains(browser.chrome).move_to_element(over).perform()
    wait_for(lambda: 4500 < int(legend(browser)[1].replace(",", "")) < 5500)
    step = int(legend(browser)[1].replace(",", ""))
    assert float(legend(browser)[2]) == pytest.approx(values[step], rel=1e-3)


def test_runs_are_compared_on_one_chart_and_downloaded(browser: Browser, url: str, tmp_path: Path) -> None:
    show(browser, url, "run/linear-0061")
    wait_for(lambda: browser.text(".log .source").strip() == "worker:0")  # the output names the process, not the run
    browser.run(CHOOSE, "#compare", "linear-005d")
    wait_for(lambda: browser.run("return !document.querySelector('#compare-run').disabled"))
    browser.click("#compare-run")
    wait_for(lambda: "linear-005d worker:2" in browser.text("[data-metric=loss] .legend"))
    assert browser.run("return location.hash") == f"#{COMPARED}"
    browser.click("[data-metric=loss] summary")
    wait_for(lambda: browser.run("return document.querySelectorAll('[data-metric=loss] thead th').length") == 7)
    assert browser.violations() == []
    picture = download(browser, tmp_path, "loss.png", "[aria-label='loss as PNG']")
    wait_for(lambda: picture.read_bytes().startswith(b"\x89PNG"))
    text = download(browser, tmp_path, "loss.csv", "[aria-label='loss as CSV']").read_text()
    head, *lines = csv.reader(io.StringIO(text))
    assert head[0] == "step"
    assert head[1:] == [f"{run} worker:{n}" for run in ("linear-0061", "linear-005d") for n in range(3)]
    column = head.index("linear-005d worker:1")
    assert [[int(line[0]), float(line[column])] for line in lines] == [
        point[:2] for point in series_of("linear-005d", "loss")["worker:1"]
    ]


def cells(browser: Browser, table: str, column: str) -> list[str]:
    """Return the texts of a column of a table that sorts."""
    script = (
        "const [table, column] = arguments, head = document.querySelector(`#${table}`).closest('table').tHead.rows[0];"
        "const index = [...head.cells].findIndex((cell) => cell.innerText.trim().split(' ')[0] === column);"
        "return [...document.querySelectorAll(`#${table} tr`)].map((row) => row.cells[index].innerText)"
    )
    return list(browser.run(script, table, column))


def sort_by(browser: Browser, table: str, column: str) -> str:
    """Sort a table by a column, with the keyboard, and return the direction."""
    xpath = f"//table[tbody[@id='{table}']]//button[.='{column}']"
    button = browser.chrome.find_element(By.XPATH, xpath)
    button.send_keys(Keys.ENTER)
    heading = browser.chrome.find_element(By.XPATH, f"{xpath}/..")
    return str(wait_for(lambda: heading.get_attribute("aria-sort")))


def download(browser: Browser, folder: Path, name: str, button: str) -> Path:
    """Return the file that a button saves."""
    chrome: Any = browser.chrome
    chrome.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(folder)})
    browser.click(button)
    wait_for((folder / name).exists)
    return folder / name


def test_the_table_of_runs_sorts_and_filters_and_is_downloaded(browser: Browser, url: str, tmp_path: Path) -> None:
    show(browser, url, "runs")
    assert cells(browser, "all-runs", "waited")[:4] == ["", "", "12 s", ""], "in the queue"
    browser.type("#runs-filter", "train batch=64")
    wait_for(lambda: rows(browser, "all-runs") == 0)
    assert "Nothing matches." in browser.text("main")
    browser.type("#runs-filter", "train succ")
    wait_for(lambda: rows(browser, "all-runs") == 21)
    head = "return [...document.querySelectorAll('thead th')].map((cell) => cell.innerText.trim())"
    assert " ".join(browser.run(head)) == "choose run state program began took rate accuracy loss", "batch is the same"
    assert sort_by(browser, "all-runs", "loss") == "ascending"
    losses = list(map(float, cells(browser, "all-runs", "loss")))
    assert losses == sorted(losses)
    assert sort_by(browser, "all-runs", "loss") == "descending"
    assert list(map(float, cells(browser, "all-runs", "loss"))) == losses[::-1]
    for direction in ("ascending", "descending"):
        assert sort_by(browser, "all-runs", "accuracy") == direction
        known = [text != "" for text in cells(browser, "all-runs", "accuracy")]
        assert known == sorted(known, reverse=True), "those without a value are last"
        assert {True, False} == {*known}
    sort_by(browser, "all-runs", "rate")
    assert browser.violations() == []
    with download(browser, tmp_path, "all-runs.csv", ".csv").open() as file:
        names, *lines = csv.reader(file)
    assert names == ["run", "state", "program", "began", "took", "rate", "accuracy", "loss"]
    assert [line[0] for line in lines] == cells(browser, "all-runs", "run")
    assert all(datetime.fromisoformat(line[3]) for line in lines)
    assert [line[5] for line in lines] == cells(browser, "all-runs", "rate")


def test_chosen_runs_are_compared_in_their_own_colours(browser: Browser, url: str, tmp_path: Path) -> None:
    show(browser, url, "runs")
    assert browser.run("return document.querySelector('#compare-runs').disabled")
    for run in ("train-005e", "train-005a"):
        browser.click(f"[aria-label='choose {run}']")
    wait_for(lambda: browser.text("#compare-runs") == "Compare 2 runs")
    browser.click("#compare-runs")
    wait_for(lambda: browser.run("return location.hash") == "#run/train-005e,train-005a")
    wait_for(lambda: rows(browser, "compared-runs") == 2)
    show(browser, url, TEN)
    runs = TEN.removeprefix("run/").split(",")
    wait_for(lambda: rows(browser, "compared-runs") == 10)
    script = (
        "return [...document.querySelectorAll(arguments[0])].map((node) => {"
        "  const style = getComputedStyle(node, arguments[1]); return style.backgroundColor; })"
    )
    for name in ("loss", "accuracy"):
        colours = browser.run(script, f"[data-metric={name}] .key", "::before")
        assert len({*colours}) == 10
        assert colours == browser.run(script, "#compared-runs .swatch", None)
        assert colours == browser.run(script, ".chip .swatch", None)
    assert cells(browser, "compared-runs", "run") == runs
    sort_by(browser, "compared-runs", "rate")
    rates = list(map(float, cells(browser, "compared-runs", "rate")))
    assert rates == sorted(rates)
    text = download(browser, tmp_path, "compared-runs.csv", ".csv").read_text()
    assert [row[0] for row in csv.reader(io.StringIO(text))] == ["run", *cells(browser, "compared-runs", "run")]
    browser.click(f"[aria-label='no longer compare with {runs[0]}']")
    wait_for(lambda: rows(browser, "compared-runs") == 9)


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


def facts(browser: Browser) -> dict[str, str]:
    script = (
        "return [...document.querySelectorAll('.head dt')].map((name) => [name.innerText, name.nextSibling.innerText])"
    )
    return dict(browser.run(script))


def test_a_run_says_when_and_why_and_has_the_trials_of_a_sweep(browser: Browser, url: str) -> None:
    show(browser, url, "run/linear-0061")
    shown = facts(browser)
    assert (shown["program"], shown["waited"]) == ("linear", "12 s in the queue")
    assert {"began", "took", "inputs"} <= {*shown}
    browser.run("location.hash = arguments[0]", "run/train-0056")
    wait_for(lambda: "line 41, in step" in browser.text(".head .problem"))
    assert browser.text(".head .problem").endswith("Use the same number of units in the last layer.")
    assert browser.text(".head .pill") == "failed"
    assert facts(browser)["exit code"] == "1"
    assert "waited" not in facts(browser)
    browser.run("location.hash = arguments[0]", "run/mean-0063")
    wait_for(lambda: browser.text(".activity") == "waits: worker:50 died (SIGKILL) and restarts in 12 s")
    browser.run("location.hash = arguments[0]", "run/no-such-run")
    wait_for(lambda: browser.text("section .problem") == "no run 'no-such-run'")
    with serve_recorded(_SweepApi()) as url:
        show(browser, url, "run/linear-0061")
        wait_for(lambda: rows(browser, "trials") == 3)
        assert cells(browser, "trials", "trial") == ["1", "0", "2"]
        assert cells(browser, "trials", "lr") == ["0.1", "0.2", "0.3"]
        assert cells(browser, "trials", "by") == ["adam", "sgd", "sgd"]
        assert cells(browser, "trials", "loss") == ["0.25", "\u2013", ""]  # the second is not finite
        assert cells(browser, "trials", "state") == ["succeeded", "failed", "pending"]
        assert cells(browser, "trials", "took") == ["3.0 s", "1 min 15 s", ""]


def test_logs_fill_the_window_and_have_a_level_follow_and_wrap(browser: Browser, url: str) -> None:
    show(browser, url, "logs")
    box = "document.querySelector('.log').getBoundingClientRect()"
    height, below = browser.run(f"return [{box}.height, innerHeight - {box}.bottom]")
    assert height > 600
    assert 0 <= below < 40
    assert browser.text(".left-out") == "60 entries below this level are hidden"
    assert "Local rendezvous" not in browser.text(".log")
    assert browser.text(".log .source").strip() == "worker:1"
    browser.run(CHOOSE, ".level", "info")
    wait_for(lambda: "Local rendezvous" in browser.text(".log") and browser.text(".left-out") == "")
    browser.run(CHOOSE, ".level", "error")
    wait_for(lambda: browser.text(".left-out").startswith("120 "))
    at_end = (
        "const log = document.querySelector('.log'); return log.scrollHeight - log.scrollTop - log.clientHeight < 2"
    )
    wait_for(lambda: browser.run(at_end))
    is_wide = "const log = document.querySelector('.log'); return log.scrollWidth > log.clientWidth"
    assert not browser.run(is_wide)
    browser.click("input.wrap")
    assert browser.run(is_wide)
    browser.run("document.querySelector('.log').scrollTop = 0")
    browser.click("input.follow")
    browser.click("input.follow")
    assert browser.run(at_end)
    show(browser, url, "logs")
    follows = "return document.querySelector('input.follow').checked"
    assert browser.run(follows)
    browser.run("document.querySelector('.log').focus()")
    ActionChains(browser.chrome).send_keys(Keys.PAGE_UP).perform()
    wait_for(lambda: not browser.run(follows))
    ActionChains(browser.chrome).send_keys(Keys.END).perform()
    wait_for(lambda: browser.run(follows))


class _BrokenApi(RecordedApi):
    """Cannot be asked for lines every second time, and refuses a filter."""

    requests = 0

    def logs(self, query: dict[str, str]) -> dict[str, Any]:
        self.requests += 1
        if query.get("grep"):
            raise RequestError(HTTPStatus.BAD_REQUEST, "'(' is not a regular expression")
        if self.requests % 2 == 0:
            raise RequestError(HTTPStatus.BAD_GATEWAY, "node1 does not answer")
        number = int(query.get("after", "0")) + 1
        line = {"task": "ps:0", "time": time.time(), "line": f"line {number}", "level": "info"}
        return log_answer([line], after=str(number))


def test_links_of_any_kind(browser: Browser, url: str) -> None:
    show(browser, url, "run/linear-0061,linear-0061")
    assert browser.text("h2").startswith("linear-0061")
    browser.run("location.hash = 'logs/50%'")
    wait_for(lambda: browser.run("return document.querySelector('#log-tasks')?.value") == "50%")
    browser.run("location.hash = 'overview'")
    wait_for(lambda: browser.text("[data-task='ps:0'] .state") == "ready")
    assert browser.complaints() == []
    with serve_recorded(RecordedApi()) as url:  # of another start of the command, in the same tab
        browser.open(url.replace("token=token", "token=old"))
        wait_for(lambda: "needs the link" in browser.text("#problem"))
        browser.run("location.hash = arguments[0]", url.partition("#")[2])
        wait_for(lambda: browser.text("#link") == "live")
        assert "token" not in browser.chrome.current_url


def test_a_log_continues_where_it_was_when_a_request_has_failed(browser: Browser) -> None:
    with serve_recorded(_BrokenApi()) as url:
        show(browser, url, "logs")
        wait_for(lambda: browser.text("section .problem") == "node1 does not answer")
        assert "line 1" in browser.text(".log")
        wait_for(lambda: "line 3" in browser.text(".log"))
        lines = [line.rpartition("ps:0 ")[2] for line in browser.text(".log").splitlines()]
        assert lines[:3] == ["line 1", "line 2", "line 3"]
        browser.type("#log-grep", "(")
        browser.click(".filters button")
        wait_for(lambda: browser.text("section .problem") == "'(' is not a regular expression")


def test_the_keyboard_reaches_everything_and_the_focus_is_seen(browser: Browser, url: str) -> None:
    show(browser, url, "overview")
    browser.run("document.activeElement.blur()")
    seen: list[str] = []
    script = (
        "const node = document.activeElement, style = getComputedStyle(node);"
        "return [node.getAttribute('aria-label') ?? node.innerText, style.outlineStyle, parseFloat(style.outlineWidth)]"
    )
    for _ in range(120):
        ActionChains(browser.chrome).send_keys(Keys.TAB).perform()
        name, style, width = browser.run(script)
        assert (style, width >= 2) == ("solid", True), name
        seen.append(name)
        if name == "zoom in":
            break
    tabs = {"Overview", "Runs", "Logs", "Events", "filter tasks", "restart worker:50", "cancel linear-0061"}
    assert {*tabs, "Show all 60", "All 100 runs"} <= {*seen}
    assert any(name.startswith("worker:3 on node3 failed") for name in seen)
    browser.run("document.querySelector('section:has(#tasks) .more').focus()")
    ActionChains(browser.chrome).send_keys(Keys.ENTER).perform()
    assert rows(browser, "tasks") == 60
