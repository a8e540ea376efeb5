"""The page in a real browser: Chromium against a real server on loopback."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from chromium import browser as browser_program
from server.test_hostile import hostile_trace

pytest.importorskip("playwright", reason="needs Playwright, which drives Chromium")

from playwright.sync_api import (
    Browser,
    ConsoleMessage,
    Dialog,
    Page,
    expect,
    sync_playwright,
)

pytestmark = pytest.mark.slow

ANSWER_MS = 120_000
"""A busy machine may take long; nothing here asks for speed."""


@dataclass
class Visit:
    """A page with all that went wrong on it, and all that it asked for."""

    page: Page
    url: str
    problems: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def open(self, path: str = "/") -> None:
        self.page.goto(self.url + path)
        self.wait()

    def wait(self) -> None:
        """Until the answer and its details are shown."""
        expect(self.page.locator("#results")).to_have_attribute("aria-busy", "false")
        expect(self.page.locator("#details")).to_have_attribute("aria-busy", "false")
        expect(self.page.locator("#details section").first).to_be_visible()

    def note_console(self, said: ConsoleMessage) -> None:
        if said.type == "error":
            self.problems.append(said.text)

    def note_dialog(self, dialog: Dialog) -> None:
        self.problems.append(dialog.message)
        dialog.dismiss()

    def verdict(self) -> str:
        return self.page.locator("#verdict").inner_text()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """The browser; each test has its own profile in it."""
    expect.set_options(timeout=ANSWER_MS)
    options = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=browser_program(), args=options)
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium: Browser, port: int) -> Iterator[Visit]:
    """A visit on which nothing may go wrong, and which may ask nobody else."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900}, color_scheme="light")
    context.set_default_timeout(ANSWER_MS)
    page = context.new_page()
    made = Visit(page, f"http://127.0.0.1:{port}")
    page.on("console", made.note_console)
    page.on("pageerror", lambda error: made.problems.append(str(error)))
    page.on("dialog", made.note_dialog)
    context.on("request", lambda request: made.requests.append(request.url))
    yield made
    context.close()
    assert made.problems == []
    assert made.requests
    assert [url for url in made.requests if not url.startswith(made.url)] == []


def test_a_model_is_chosen_and_a_control_changes_the_answer(visit: Visit) -> None:
    visit.open()
    page = visit.page
    page.locator("#model").select_option("dcgan")
    expect(page.locator("#target")).to_have_text("dcgan, batch 128, bf16")
    visit.wait()
    page.get_by_label("Batch", exact=True).fill("16")
    expect(page.locator("#target")).to_have_text("dcgan, batch 16, bf16")
    page.get_by_label("fp32", exact=True).check()
    expect(page.locator("#target")).to_have_text("dcgan, batch 16, fp32")
    page.get_by_label("Add a GPU").fill("t4")
    page.keyboard.press("Enter")
    expect(page.locator("#comparison tbody tr")).to_have_count(5)
    page.get_by_role("button", name="Remove rtx-4090").click()
    expect(page.locator("#comparison tbody tr")).to_have_count(4)
    page.get_by_label("GPUs of each kind").fill("8")
    expect(page.locator("#comparison")).to_contain_text("8 x t4")
    expect(page.locator("#spread-hint")).to_have_text("8 GPUs, 128 samples in a step")
    page.get_by_label("Its length").select_option("epochs")
    page.get_by_label("Epochs", exact=True).fill("90")
    page.get_by_label("Samples in one").fill("1.28 M")
    expect(page.locator("#training")).to_contain_text("kWh")
    visit.wait()
    page.locator("#choose").get_by_label("t4", exact=True).check()
    visit.wait()
    for part in ("Where the time goes", "Memory", "how sure"):
        expect(page.get_by_role("heading", name=part)).to_be_visible()
    assert page.locator("#details canvas").first.bounding_box() is not None


def test_the_browser_goes_back_and_fields_say_what_is_wrong(visit: Visit) -> None:
    visit.open()
    page = visit.page
    page.locator("#model").select_option("dcgan")
    expect(page.locator("#target")).to_have_text("dcgan, batch 128, bf16")
    visit.wait()
    page.go_back()
    expect(page.locator("#target")).to_have_text("resnet50, batch 64, bf16")
    expect(page.locator("#model")).to_have_value("resnet50")
    page.go_forward()
    expect(page.locator("#target")).to_have_text("dcgan, batch 128, bf16")
    page.get_by_label("Batch", exact=True).fill("-5")
    expect(page.locator("#batch-problem")).to_have_text("A whole number from 1 to 10,000,000")
    page.get_by_label("Batch", exact=True).fill("64")
    expect(page.locator("#batch-problem")).to_be_hidden()
    page.get_by_label("Its length").select_option("samples")
    page.get_by_label("Samples", exact=True).fill("lots")
    expect(page.locator("#amount-problem")).to_contain_text("such as 90, 1.2 M or 2e9")
    page.get_by_label("Samples", exact=True).fill("100 M")
    expect(page.locator("#verdict")).to_contain_text("the whole training takes")
    page.get_by_label("Add a GPU").fill("h100")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="h100-nvl-94gb").click()
    expect(page.locator("#comparison tbody tr")).to_have_count(5)
    page.get_by_label("Budget in USD").fill("500")
    page.get_by_role("button", name="Compare all offers").click()
    expect(page.locator("#offers table").first).to_be_visible()
    visit.wait()


def test_what_fits_nowhere_can_be_spread_out(visit: Visit) -> None:
    visit.open()
    page = visit.page
    page.locator("#model").select_option("gpt2")
    page.get_by_label("Batch", exact=True).fill("1000")
    expect(page.locator("#verdict")).to_contain_text("fits on none of 4 GPUs")
    page.get_by_role("button", name="Try 8 of each").click()
    expect(page.locator("#comparison")).to_contain_text("8 x l4")
    expect(page.get_by_role("button", name="Try 8 of each")).to_be_hidden()
    visit.wait()


def test_a_shared_link_shows_the_same_result(visit: Visit) -> None:
    visit.open()
    said, rows = visit.verdict(), visit.page.locator("#comparison").inner_text()
    visit.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    visit.page.get_by_role("button", name="Copy link").click()
    expect(visit.page.locator("#share-told")).to_have_text("The link is copied")
    link = visit.page.evaluate("navigator.clipboard.readText()")
    assert re.fullmatch(visit.url + "/r/[0-9a-f]{32}", link)
    with visit.page.expect_download() as download:
        visit.page.get_by_text("Download report").click()
    assert "Wavecast" in Path(download.value.path()).read_text(encoding="utf-8")
    visit.page.goto("about:blank")
    visit.page.goto(link)
    visit.wait()
    assert visit.verdict() == said
    assert visit.page.locator("#comparison").inner_text() == rows
    assert visit.page.get_by_label("bf16", exact=True).is_checked()
    visit.page.goto(f"{visit.url}/r/{'0' * 32}")
    expect(visit.page.get_by_role("alert")).to_contain_text("no longer kept here")
    visit.problems.clear()  # the browser tells about the answer 404
    visit.page.get_by_role("button", name="Try again").click()
    visit.wait()


def test_a_trace_is_uploaded_and_its_names_do_no_harm(visit: Visit, tmp_path: Path) -> None:
    hostile_trace().save(tmp_path / "<b>x.json.gz")
    visit.open()
    page = visit.page
    page.get_by_label("Your trace").check()
    expect(page.get_by_role("heading", name="Choose a file")).to_be_visible()
    page.locator("#file").set_input_files(tmp_path / "<b>x.json.gz")
    expect(page.locator("#target")).to_have_text("<b>x.json.gz")
    visit.wait()
    assert page.locator("#answer img, #answer b, #answer script").count() == 0
    assert "\x1b" not in page.locator("#answer").inner_text()
    (tmp_path / "no.json").write_text("{")
    page.locator("#file").set_input_files(tmp_path / "no.json")
    expect(page.get_by_role("alert")).to_contain_text("This file cannot be read")
    visit.problems.clear()  # the browser tells about the answer 422


def test_an_address_asks_and_what_it_names_wrongly_is_said(visit: Visit) -> None:
    visit.open("/?model=dcgan&batch=16&gpus=l4,t4")
    expect(visit.page.locator("#target")).to_have_text("dcgan, batch 16, bf16")
    expect(visit.page.locator("#comparison tbody tr")).to_have_count(2)
    visit.page.goto(f"{visit.url}/?model=nosuch&batch=abc&colour=red")
    problem = visit.page.get_by_role("alert")
    for part in ('model "nosuch"', "resnet50, ", 'not "abc"', '"colour"'):
        expect(problem).to_contain_text(part, ignore_case=True)
    expect(visit.page.locator("#answer")).to_be_hidden()


def test_an_older_answer_is_dim_beside_an_error(visit: Visit, tmp_path: Path) -> None:
    visit.open("/?model=dcgan&batch=16")
    answer = visit.page.locator("#answer")
    expect(answer).to_have_css("opacity", "1")
    visit.page.get_by_label("Batch", exact=True).fill("-5")
    expect(answer).to_have_css("opacity", "0.55")
    visit.page.get_by_label("Batch", exact=True).fill("16")
    expect(answer).to_have_css("opacity", "1")
    with (tmp_path / "large.json").open("wb") as file:
        file.truncate(150_000_000)
    visit.page.get_by_label("Your trace").check()
    visit.page.locator("#file").set_input_files(tmp_path / "large.json")
    expect(visit.page.get_by_role("alert").first).to_contain_text("up to 64 MiB; compress it")
    expect(answer).to_have_css("opacity", "0.55")


def test_dark_mode_phones_and_the_keyboard(visit: Visit) -> None:
    page = visit.page
    visit.open()
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.emulate_media(color_scheme="dark")
    dark = page.evaluate(ground)
    assert dark != light
    page.get_by_role("button", name="Switch to the light theme").click()
    assert page.evaluate(ground) == light
    page.set_viewport_size({"width": 375, "height": 812})
    visit.open()
    assert page.evaluate("document.documentElement.scrollWidth") == 375
    expect(page.locator("#peek")).to_be_in_viewport()
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to the results")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#results")).to_be_in_viewport()
    unnamed = page.evaluate(
        "[...document.querySelectorAll('input, select, button')].filter(one => one.offsetParent"
        " && !(one.labels?.length || one.getAttribute('aria-label') || one.textContent.trim()))"
        ".map(one => one.outerHTML)"
    )
    assert unnamed == []
