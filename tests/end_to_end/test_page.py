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
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.browser import Browser, open_browser
from tests.conftest import mostly_slow, wait_for
from tests.recorded_page import RecordedApi, serve_recorded
from tfcluster.dashboard.api import Stream

COMPARED = "run/linear-0061,linear-005d"
CHOOSE = (
    "const list = document.querySelector(arguments[0]); list.value = arguments[1];"
    "list.dispatchEvent(new Event('change'))"
)
VIEWS = ("overview", "run/linear-0061", COMPARED, "logs", "events")


@pytest.fixture(scope="module")
def browser(needs_browser: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with open_browser(tmp_path_factory.mktemp("browser")) as browser:
        browser.set_midnight()  # most times of the page have a date
        yield browser


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serve_recorded(RecordedApi()) as url:
        yield url


def show(browser: Browser, url: str, view: str, width: int = 1280, colours: str = "light") -> None:
    browser.resize(width, colours)
    browser.open(url)
    wait_for(lambda: browser.text("#link") == "live")
    browser.run("location.hash = arguments[0]", view)
    shown = {"overview": "progress:not([hidden])", "logs": ".log div", "events": "#events tr"}.get(view, ".u-over")
    wait_for(lambda: browser.run("return document.querySelectorAll(arguments[0]).length", shown))


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
        " && !node.closest('.log, .numbers, .plot, .hidden') && isWide(node))"
        ".map((node) => node.outerHTML.slice(0, 200))"
        ".concat(document.documentElement.scrollWidth > arguments[0] ? document.documentElement.scrollWidth : [])"
    )
    return [str(found) for found in browser.run(script, width)]


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("colours", mostly_slow(["light", "dark"], fast=["light"]))
@pytest.mark.parametrize("width", mostly_slow([400, 800, 1280], fast=[400]))
def test_nothing_is_wider_than_the_window_and_axe_finds_nothing(
    browser: Browser, url: str, view: str, colours: str, width: int
) -> None:
    show(browser, url, view, width, colours)
    with contextlib.suppress(AssertionError):  # the browser may still lay out the page for its new width
        wait_for(lambda: wider(browser, width) == [], 10)
    assert wider(browser, width) == []
    assert browser.complaints() == []
    assert browser.violations() == []


def test_rows_are_cards_in_a_narrow_window(browser: Browser, url: str) -> None:
    show(browser, url, "overview")
    wide = rows(browser, "tasks")
    show(browser, url, "overview", 400)
    assert rows(browser, "tasks") == wide - 12, "cards are higher"
    name, cell = "#tasks tr th", "#tasks tr td.CPU"
    assert browser.text(name) == "ps:0"
    assert browser.run("return getComputedStyle(document.querySelector('#tasks tr')).display") == "grid"
    label = "return getComputedStyle(document.querySelector(arguments[0]), '::before').content"
    assert browser.run(label, cell) == '"CPU"'
    size = "return parseFloat(getComputedStyle(document.querySelector(arguments[0])).fontSize)"
    assert browser.run(size, cell) >= 12
    assert browser.run(size, ".lane-label") >= 12


def test_the_list_of_runs_has_progress_and_results(browser: Browser, url: str) -> None:
    show(browser, url, "overview")
    assert browser.text("[data-run='linear-0061'] .result") == "41 % · step=4100 loss=0.4213"
    assert browser.run("return document.querySelector('[data-run=linear-0061] progress').value") == 0.41
    assert browser.text("[data-run='linear-005d'] .result").startswith("y = 2.006x + 0.1702")
    assert browser.text("[data-run='pi-0060'] .result").startswith("pi = 3.14158")
    assert browser.text("[data-run='train-005e'] .program") == "train_transformer.py"
    error = "[data-run='train-0056'] details"
    height = "return document.querySelector(arguments[0]).getBoundingClientRect().height"
    assert "ValueError" in browser.text(f"{error} summary")
    for each in (error, "[data-run='mean-005f'] details"):
        assert 10 < browser.run(height, each) < 30, "it is one line"
    browser.click(f"{error} summary")
    assert "line 41, in step" in browser.text(f"{error} pre")
    assert browser.violations() == []


def test_what_needs_attention_is_shown_and_the_rest_on_demand(browser: Browser, url: str) -> None:
    show(browser, url, "overview")
    assert browser.text("[data-task='worker:50'] .state") == "backing-off"
    assert rows(browser, "tasks") < 60
    browser.click("section:has(#tasks) .more")
    assert rows(browser, "tasks") == 60
    browser.type("section:has(#runs) input", "linear")
    assert {name.partition("-")[0] for name in browser.text("#runs").split() if "-0" in name} == {"linear"}


def test_the_problem_of_a_host_is_shown_in_all_views(browser: Browser, url: str) -> None:
    show(browser, url, "overview")
    problem = browser.text("#problem")
    assert problem == "ssh: connect to host node7.example port 22: Connection timed out"
    browser.click(".cancel")
    browser.click("dialog button:not(.danger)")
    for view, shown in (("logs", ".log"), ("events", "#events"), ("overview", "#runs")):
        browser.run("location.hash = arguments[0]", view)
        wait_for(functools.partial(browser.text, shown))
        assert browser.text("#problem") == problem


def test_hosts_are_equal_cards_with_bars(browser: Browser, url: str) -> None:
    show(browser, url, "overview")
    sizes = "return [...document.querySelectorAll('.card')].map((e) => [e.offsetTop, e.offsetWidth, e.offsetHeight])"
    assert len({width for _, width, _ in browser.run(sizes)}) == 1
    rows_of_cards = {(top, height) for top, _, height in browser.run(sizes)}
    assert len({top for top, _ in rows_of_cards}) == len(rows_of_cards) > 1, "those of a row are equally high"
    bars = "return [...document.querySelectorAll('[data-host=node1] .bar div')].map((bar) => bar.style.width)"
    assert browser.run(bars) == ["16.5%", "15.625%", "83%", "76.25%", "76%", "76.25%"]
    assert browser.run("return getComputedStyle(document.querySelector('td.GPU')).display") != "none"
    levels = "return [...document.querySelectorAll('[data-host=node6] .bar div')].map((bar) => bar.dataset.level)"
    assert browser.run(levels) == ["", "high"], "a processor may be busy, but memory must not be full"
    with serve_recorded(RecordedApi(gpus=0)) as without:
        show(browser, without, "overview")
        assert browser.run("return getComputedStyle(document.querySelector('td.GPU')).display") == "none"


def test_the_chart_library_is_that_of_the_npm_registry() -> None:
    """It is uplot@1.6.32 of the npm registry, `dist/uPlot.iife.min.js`, unchanged."""
    page = files("tfcluster.dashboard") / "page"
    digest = hashlib.sha256((page / "uPlot.js").read_bytes()).hexdigest()
    assert digest == "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f"
    assert "MIT License" in (page / "uPlot.LICENSE.txt").read_text()


class _SlowApi(RecordedApi):
    """Says nothing until it is told, and then that there are no runs."""

    told = False

    def _follow_state(self) -> Stream:
        while not self.told:
            yield []
        status = {**self._status(), "runs": []}
        yield [("state", {"status": status, "problems": {}, "runs": []})]


def test_the_page_says_nothing_before_it_is_known_and_its_header_stays(browser: Browser) -> None:
    browser.resize(800)
    find = "const box = document.querySelector(arguments[0]).getBoundingClientRect();"
    nav = f"{find} return [box.left, box.top, box.height]"
    api = _SlowApi()
    with serve_recorded(api) as url:
        browser.open(url)
        wait_for(lambda: browser.run("return document.querySelector('#hosts') !== null"))
        before = browser.run(nav, "nav"), browser.run(nav, "#top")[1:]
        assert "No runs yet" not in browser.text("main")
        api.told = True
        wait_for(lambda: "No runs yet." in browser.text("main"))
        wait_for(lambda: browser.text("#link") == "lost")  # the stream has ended
        assert (browser.run(nav, "nav"), browser.run(nav, "#top")[1:]) == before


class _FailingApi(RecordedApi):
    """Cannot read the logs."""

    def _follow_logs(self, level: str, name: str) -> Stream:
        yield [("problem", "node7 does not answer"), ("end", None)]


def test_why_there_are_no_logs_is_shown_also_when_nothing_follows(browser: Browser) -> None:
    with serve_recorded(_FailingApi()) as url:
        browser.open(url)
        browser.run("location.hash = 'logs'")
        wait_for(lambda: browser.text("section .problem") == "node7 does not answer")
        time.sleep(0.5)  # for what follows
        assert not browser.run("return document.querySelector('section .problem').hidden")


MARKS = (
    "const lanes = [...document.querySelectorAll('.lanes > div')];"
    "const lane = lanes.find((each) => each.innerText.startsWith(arguments[0]));"
    "return [...lane.querySelectorAll('.mark')].map((mark) => {"
    "  const box = mark.getBoundingClientRect(), style = getComputedStyle(mark);"
    "  return {kind: mark.dataset.kind, count: mark.innerText, left: box.left, right: box.right,"
    "    color: style.backgroundColor, order: Number(style.zIndex) || 0, at: parseFloat(mark.style.left)}; })"
)


def test_events_that_would_overlap_are_one_mark_with_their_number(browser: Browser, url: str) -> None:
    show(browser, url, "events")
    ready, died = browser.run(MARKS, "worker:2")
    assert [(mark["kind"], mark["count"]) for mark in (ready, died)] == [("good", ""), ("bad", "3")]
    assert died["order"] > ready["order"]
    assert died["color"] != ready["color"]
    wait_for(lambda: browser.run(MARKS, "worker:2")[1]["at"] < died["at"])  # the axis moves
    browser.run(CHOOSE, "[aria-label='time shown']", "86400")
    for name in ("worker:2", "worker:50", "ps:1"):
        marks = browser.run(MARKS, name)
        assert sum(int(mark["count"] or 1) for mark in marks) == {"worker:2": 4, "worker:50": 6, "ps:1": 7}[name]
        assert all(one["right"] <= other["left"] for one, other in itertools.pairwise(marks))
        assert marks[-1]["kind"] == "bad"


def test_all_events_of_a_mark_are_named_under_the_pointer_and_a_click_enlarges_them(browser: Browser, url: str) -> None:
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


def test_a_part_of_the_time_can_be_chosen(browser: Browser, url: str) -> None:
    show(browser, url, "events")
    ticks = browser.chrome.find_element(By.CSS_SELECTOR, ".ticks")
    half = ticks.size["width"] / 2
    everything = rows(browser, "events")
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


def test_smoothing_is_that_of_tensorboard(browser: Browser, url: str) -> None:
    show(browser, url, "run/train-005e")
    values = [point[1] for point in series_of("train-005e", "loss")[""]]
    assert float(legend(browser)[-1]) == pytest.approx(values[-1], rel=1e-3)
    browser.type("#smoothing", "0.9")
    total = weight = 0.0
    for value in values:
        total, weight = 0.9 * total + 0.1 * value, 0.9 * weight + 0.1
    wait_for(lambda: float(legend(browser)[-1]) == pytest.approx(total / weight, rel=1e-3))


def test_a_curve_is_linear_until_someone_switches_and_shows_the_values_under_the_pointer(
    browser: Browser, url: str
) -> None:
    show(browser, url, "run/train-005e")
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
    values = {point[0]: point[1] for point in series_of("train-005e", "loss")[""]}
    assert float(legend(browser)[2]) == pytest.approx(values[step], rel=1e-3)


def test_runs_are_compared_on_one_chart_and_downloaded(browser: Browser, url: str, tmp_path: Path) -> None:
    show(browser, url, "run/linear-0061")
    wait_for(lambda: browser.text(".log .source").strip() == "worker:0")  # the output names the process, not the run
    browser.run(CHOOSE, "#compare", "linear-005d")
    wait_for(lambda: "linear-005d worker:2" in browser.text("[data-metric=loss] .legend"))
    assert browser.run("return location.hash") == f"#{COMPARED}"
    browser.click("[data-metric=loss] summary")
    wait_for(lambda: browser.run("return document.querySelectorAll('[data-metric=loss] thead th').length") == 7)
    assert browser.violations() == []
    chrome: Any = browser.chrome
    chrome.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    for kind in ("CSV", "PNG"):
        browser.click(f"[aria-label='loss as {kind}']")
    wait_for(lambda: {path.name for path in tmp_path.iterdir()} == {"loss.csv", "loss.png"})
    head, *lines = csv.reader(io.StringIO((tmp_path / "loss.csv").read_text()))
    assert head[0] == "step"
    assert head[1:] == [f"{run} worker:{n}" for run in ("linear-0061", "linear-005d") for n in range(3)]
    column = head.index("linear-005d worker:1")
    assert [[int(line[0]), float(line[column])] for line in lines] == [
        point[:2] for point in series_of("linear-005d", "loss")["worker:1"]
    ]
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_a_line_has_the_same_color_in_all_curves_and_no_value_after_its_end(browser: Browser, url: str) -> None:
    show(browser, url, "run/train-005e,linear-0061")
    script = "return [...document.querySelectorAll(arguments[0])].map((key) => [key.innerText.trim(), key.className])"
    keys = {}
    for name in ("loss", "w"):
        lines = browser.run(script, f"[data-metric={name}] .key")
        keys[name] = {text.rpartition(" ")[0]: (text.rpartition(" ")[2], color) for text, color in lines}
    workers = [f"linear-0061 worker:{number}" for number in range(3)]
    assert list(keys["loss"]) == ["train-005e", *workers]
    assert list(keys["w"]) == workers
    assert [keys["w"][each][1] for each in workers] == [keys["loss"][each][1] for each in workers]
    assert len({color for _, color in keys["loss"].values()}) == 4
    assert [browser.text(f"[data-metric={name}] .legend .quiet") for name in keys] == ["step 9,960", "latest"]
    over = browser.chrome.find_element(By.CSS_SELECTOR, "[data-metric=loss] .u-over")
    offset = int(0.3 * over.size["width"])
    ActionChains(browser.chrome).move_to_element_with_offset(over, offset, 0).perform()
    wait_for(lambda: "7," in browser.text("[data-metric=loss] .legend .quiet"))
    legends = [browser.text(f"[data-metric={name}] .legend") for name in keys]
    assert [text.count("\N{EN DASH}") for text in legends] == [0, 1]
    assert legends[1].endswith("\N{EN DASH}"), "worker:2 has ended before"
    ActionChains(browser.chrome).click_and_hold().move_by_offset(-2 * offset, 0).release().perform()
    tick = "return document.querySelector('[data-metric=accuracy] canvas').toDataURL()"
    zoomed = browser.run(tick)
    ActionChains(browser.chrome).double_click().perform()
    wait_for(lambda: browser.run(tick) != zoomed)  # all curves show the same steps


def test_ticks_have_the_digits_that_distinguish_them(browser: Browser, url: str) -> None:
    show(browser, url, "overview")
    script = (
        "const [ticks, done] = arguments; import('/format.js').then((m) => done(ticks.map((t) => m.formatTick(...t))))"
    )
    ticks = [(0.2331, 0.00002), (0.23312, 0.00002), (0.25, 0.25), (7500, 2500)]
    assert browser.chrome.execute_async_script(script, ticks) == ["0.2331", "0.23312", "0.25", "7,500"]


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


class _QuietApi(RecordedApi):
    """Has logs without a line from warnings on, and then without any."""

    def _follow_logs(self, level: str, name: str) -> Stream:
        yield [*([("hidden", 60)] if level != "info" else []), ("lines", [])]
        while True:
            time.sleep(2)
            yield []


def test_a_log_without_lines_says_why(browser: Browser) -> None:
    with serve_recorded(_QuietApi()) as url:
        browser.resize(1280)
        browser.open(url)
        wait_for(lambda: browser.text("#link") == "live")
        browser.run("location.hash = 'logs'")
        wait_for(lambda: browser.text(".log") == "No entries at this level (60 hidden).")
        assert browser.violations() == []
        browser.run(CHOOSE, ".level", "info")
        wait_for(lambda: browser.text(".log") == "No lines.")
        browser.type("#log-grep", "absent")
        browser.click(".filters button")
        wait_for(lambda: browser.text(".log") == "No lines match.")
        for run, text in (("linear-0061", "No output yet."), ("linear-005d", "No output.")):
            browser.run("location.hash = arguments[0]", f"run/{run}")
            wait_for(functools.partial(is_text, browser, ".log", text))


class _BrokenApi(RecordedApi):
    """Has connections that break after the first lines of a log."""

    reads = 0

    def _follow_logs(self, level: str, name: str) -> Stream:
        self.reads += 1
        yield [("lines", [{"task": "ps:0", "time": time.time(), "line": f"read {self.reads}", "level": "info"}])]


def test_a_log_is_followed_again_when_its_connection_has_broken(browser: Browser) -> None:
    with serve_recorded(_BrokenApi()) as url:
        show(browser, url, "logs")
        wait_for(lambda: "read 2" in browser.text(".log"))
        assert "read 1" not in browser.text(".log")


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
    tabs = {"Overview", "Logs", "Events", "filter tasks", "restart worker:50", "Show all 60", "cancel linear-0061"}
    assert tabs <= {*seen}
    assert any(name.startswith("the script failed") for name in seen)
    browser.run("document.querySelector('section:has(#tasks) .more').focus()")
    ActionChains(browser.chrome).send_keys(Keys.ENTER).perform()
    assert rows(browser, "tasks") == 60
