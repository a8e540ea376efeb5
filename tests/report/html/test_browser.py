"""A page in a real browser: keyboard, themes, widths, and nothing in the console."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from chromium import browser
from made import call, mm, step

import wavecast
from wavecast.report.html.documents import document
from wavecast.report.html.reports import prediction_report

playwright = pytest.importorskip("playwright.sync_api")
HOSTILE = "</script><img src=x onerror=alert(2)>"
OPTIONS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=browser(), args=list(OPTIONS))
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report about a small step, one of whose modules has a hostile name."""
    odd = replace(step(), calls=(*step().calls, call(mm(), module=f"net.{HOSTILE}")))
    rows = [wavecast.predict(odd, gpu) for gpu in ("a100-sxm-80gb", "l4", "t4")]
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(document(prediction_report("two layers", rows)), encoding="utf-8")
    return path


class Opened:
    """A page, and what it said and asked for."""

    def __init__(self, chromium: Any, file: Path, width: int, scheme: str = "light") -> None:
        self.said: list[str] = []
        self.asked: list[str] = []
        size = {"width": width, "height": 900}
        self.page = chromium.new_page(viewport=size, color_scheme=scheme)
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(file.as_uri())

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *error: object) -> None:
        self.page.close()


@pytest.mark.parametrize("width", [375, 768, 1280])
def test_a_page_says_nothing_asks_for_nothing_and_fits(
    chromium: Any, page_file: Path, width: int
) -> None:
    with Opened(chromium, page_file, width) as opened:
        assert opened.said == []
        assert opened.asked == [page_file.as_uri()]
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
        assert opened.page.locator("img").count() == 0


def test_one_walks_through_the_modules_with_the_keyboard(chromium: Any, page_file: Path) -> None:
    with Opened(chromium, page_file, 1280) as opened:
        page = opened.page
        page.locator(".subject:not([hidden]) [role=treeitem][tabindex='0']").focus()
        focused = "document.activeElement.getAttribute('aria-label')"
        assert page.evaluate(focused).startswith("step:")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowRight")
        assert page.evaluate(focused).startswith("net:")
        page.keyboard.press("Enter")
        path = page.locator(".subject:not([hidden]) .path")
        assert path.inner_text().replace("\n", " ").startswith("step")
        assert "net:" in path.inner_text()
        assert page.evaluate(focused).startswith("net:"), "the focus follows"
        page.keyboard.press("Escape")
        assert page.evaluate(focused).startswith("step:")
        assert opened.said == []


def test_the_timeline_is_read_aloud_and_zooms(chromium: Any, page_file: Path) -> None:
    with Opened(chromium, page_file, 1280) as opened:
        page = opened.page
        canvas = page.locator(".subject:not([hidden]) canvas")
        canvas.focus()
        page.keyboard.press(".")
        reading = page.locator(".subject:not([hidden]) .reading")
        assert reading.inner_text().startswith("compute: aten._to_copy")
        page.keyboard.press(".")
        assert "aten.mm of net.0" in reading.inner_text()
        before = canvas.evaluate("canvas => canvas.toDataURL()")
        page.locator(".subject:not([hidden]) button[data-do=in]").click()
        assert canvas.evaluate("canvas => canvas.toDataURL()") != before
        page.keyboard.press("Tab")
        assert opened.said == []


def test_dark_and_light_follow_the_system_until_one_chooses(chromium: Any, page_file: Path) -> None:
    def ground(page: Any) -> str:
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    with (
        Opened(chromium, page_file, 1280) as light,
        Opened(chromium, page_file, 1280, "dark") as dark,
    ):
        assert ground(light.page) != ground(dark.page)
        light.page.locator("button.theme").click()
        assert ground(light.page) == ground(dark.page)
        assert light.said == dark.said == []


def test_another_gpu_is_chosen_and_the_table_sorted(chromium: Any, page_file: Path) -> None:
    with Opened(chromium, page_file, 1280) as opened:
        page = opened.page
        shown = page.locator("#time .subject:not([hidden]) h3")
        assert shown.inner_text() == "a100-sxm-80gb"
        page.locator("#subject").select_option(label="t4")
        assert shown.inner_text() == "t4"
        assert page.locator("#time .subject:not([hidden]) [role=treeitem]").count() > 3
        first = page.locator("#comparison tbody tr:first-child th")
        page.locator("#comparison thead button", has_text="$/h").click()
        cheap = first.inner_text()
        page.locator("#comparison thead button", has_text="$/h").click()
        assert first.inner_text() != cheap
        assert opened.said == []


def test_without_a_script_everything_is_in_tables(chromium: Any, page_file: Path) -> None:
    page = chromium.new_page(java_script_enabled=False)
    page.goto(page_file.as_uri())
    assert page.locator("canvas").first.is_hidden()
    assert page.locator("#time .subject").nth(2).is_visible()
    page.close()
