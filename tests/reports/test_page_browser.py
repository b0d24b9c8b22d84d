"""The report page in headless Chromium: it loads in silence, answers pointer and keys, and stands without a script."""

import csv
import itertools
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from probe_results import write_probes
from report_runs import EVIL, gold_sentences, write_study

from mtlprune.reports.page import Choices, Sources, report

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
try:
    from playwright.sync_api import Browser, Locator, Page, sync_playwright
except ImportError:
    pytest.skip("playwright is not installed (extra: test)", allow_module_level=True)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here; Debian has it: apt-get install chromium")

FOLDED = Path("results/speed/pruned")
"""A Result of a section that holds nothing but folded parts."""
PATIENCE = 60_000
"""Milliseconds: a busy machine is no defect."""


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("browser")
    encoders = [("pretrained", 0), ("POS", 1)]
    labels = {"pos": ("NN", "VB", EVIL), "dep": ("det", "obj")}
    probes = write_probes(root / "probes", encoders, labels, shape=(3, 4))
    choices = Choices(title=f"A study {EVIL}", resamples=100, permutations=20)
    sources = Sources(write_study(root / "runs", seeds=(1, 2)), probes=[probes], analyses=[FOLDED])
    text = report(sources, choices, lambda *_: gold_sentences())
    file = root / "report.html"
    file.write_text(text, encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    sandbox = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []  # root has none
    with sync_playwright() as driver:
        how = {"args": [*sandbox, "--disable-dev-shm-usage"], "timeout": PATIENCE}
        made = driver.chromium.launch(executable_path=CHROMIUM, **how)
        yield made
        made.close()


class Visit:
    def __init__(self, browser: Browser, file: Path, **options: Any) -> None:
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        self.page: Page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE)
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("dialog", lambda dialog: self.said.append(dialog.message))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(file.as_uri())


@pytest.fixture
def visit(browser: Browser, page_file: Path) -> Iterator[Visit]:
    made = Visit(browser, page_file)
    yield made
    made.context.close()


def test_it_loads_in_silence_asks_for_nothing_and_names_labels_as_words(visit, page_file):
    page = visit.page
    assert page.title() == f"A study {EVIL}"
    assert [url for url in visit.asked if not url.startswith("data:")] == [page_file.as_uri()]
    browser = page.locator("#browser")
    browser.locator("[role=gridcell]").nth(1).click()
    assert browser.locator(".card h4").inner_text() == "Layer 1, head 2"
    assert EVIL in browser.locator(".card").inner_text()
    browser.locator("select").select_option(label="POS, seed 1")
    assert browser.locator("[role=gridcell]").count() == 12
    assert visit.said == []


def test_a_head_chosen_in_one_map_is_marked_in_all_and_keys_walk(visit):
    page, card = visit.page, visit.page.locator("#explorer .card")
    page.locator(".first [role=gridcell]").nth(6).click()
    maps = page.locator("table.heads").count()
    assert maps >= 8 and page.locator(".heads .chosen").count() == maps
    assert {cell.get_attribute("data-k") for cell in page.locator(".heads .chosen").all()} == {"6"}
    assert page.locator("svg .chosen").count() >= 1  # a chart with a cell a head
    assert card.locator("h4").inner_text() == page.locator("#browser h4").inner_text() == "Layer 2, head 3"
    assert card.locator("tbody").inner_text().startswith("POS\t")
    page.locator(".maps [role=gridcell]").first.focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowDown", "End", "ArrowLeft", "Enter"):
        page.keyboard.press(key)
    assert card.locator("h4").inner_text() == "Layer 2, head 3"
    assert page.locator(".heads [tabindex='0']").count() == maps  # one stop of the Tab key a map
    assert visit.said == []


def test_the_first_screen_fits_a_phone(browser, page_file):
    visit = Visit(browser, page_file, viewport={"width": 390, "height": 844})
    places = visit.page.locator(".verdicts > div, .pictures > figure, .pictures > .gaps")
    boxes = [one.bounding_box() for one in places.all()]
    assert len(boxes) == 5 and all(box["x"] >= 0 and box["x"] + box["width"] <= 390 for box in boxes)
    assert [box["y"] for box in boxes] == sorted({box["y"] for box in boxes})  # stacked
    assert visit.page.evaluate("document.documentElement.scrollWidth") == 390
    visit.context.close()


def test_a_head_chosen_on_the_first_screen_is_described_there(browser, page_file):
    """Its card stood thousands of pixels below. Screens of less than 84 rem have it below the map."""
    page = Visit(browser, page_file, viewport={"width": 1440, "height": 900}).page
    assert "Choose a head" in page.locator("#here").inner_text()
    cell = page.locator(".first [role=gridcell]").nth(6)
    cell.click()
    card, map_, plot = (page.locator(name).bounding_box() for name in ("#here .card", ".stripes", ".gaps"))
    assert page.locator("#here h4").inner_text() == page.locator("#explorer h4").inner_text() == "Layer 2, head 3"
    assert abs(card["y"] - map_["y"]) < 200 and card["x"] > map_["x"] + map_["width"]
    assert card["x"] + card["width"] <= plot["x"]


def test_commands_are_copied_and_break_at_blanks_only(browser, page_file):
    rights = ["clipboard-read", "clipboard-write"]
    visit = Visit(browser, page_file, viewport={"width": 390, "height": 844}, permissions=rights)
    page, box = visit.page, visit.page.locator("code.command").first
    box.locator("xpath=following-sibling::button").click()
    page.locator(".copy", has_text="copied").first.wait_for()
    command = page.evaluate("navigator.clipboard.readText()")
    assert command.startswith("mtlprune compare data/x ") and box.inner_text() == command
    tops = [word.bounding_box()["y"] for word in box.locator("span").all()]
    heights = {round(word.bounding_box()["height"]) for word in box.locator("span").all()}
    assert len(set(tops)) > 1 and len(heights) == 1  # lines break between words, and no word is broken
    visit.context.close()


def test_what_scrolls_on_a_phone_says_so(browser, page_file):
    """And nothing does where it fits."""
    words = "e => getComputedStyle(e, '::before').content"
    for width, wide in ((390, True), (1440, False)):
        visit = Visit(browser, page_file, viewport={"width": width, "height": 844})
        scores = visit.page.locator("#table .scroll").first
        visit.page.wait_for_function("document.querySelector('nav ol') !== null")
        visit.page.wait_for_timeout(200)
        assert ("scroll sideways" in scores.evaluate(words)) == wide
        visit.context.close()


def test_print_has_no_heading_of_what_is_folded(visit):
    page = visit.page
    page.emulate_media(media="print")
    headings = page.evaluate(
        """() => [...document.querySelectorAll("main *")].filter((one) => one.checkVisibility()
          && [...one.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim()))
          .map((one) => one.closest("h2, h3, summary")?.tagName ?? "")"""
    )
    assert headings.count("H2") > 4 and headings[-1] == "" and "SUMMARY" in headings  # one fold is open
    for one, after in itertools.pairwise(headings):
        assert (one, after) not in {("H2", "H2"), ("H3", "H3"), ("H3", "H2"), ("SUMMARY", "SUMMARY")}


def column_of(table: Locator, name: str) -> list[str]:
    place = [words.rstrip(" ↑↓") for words in table.locator("thead th").all_inner_texts()].index(name)
    return [row.locator("th, td").nth(place).inner_text() for row in table.locator("tbody tr").all()]


def test_tables_are_sorted_by_keys_as_the_address_keeps_it_and_saved(visit):
    page = visit.page
    page.locator("#table summary").first.click()
    table = page.locator("#table details table")
    button = table.get_by_role("button", name="p", exact=True)
    button.focus()
    for order in (True, False):
        page.keyboard.press("Enter")
        values = [float(value) for value in column_of(table, "p")]
        assert values == sorted(values, reverse=order)
    page.goto(page.url)
    assert table.is_visible()  # its fold opens
    assert [float(value) for value in column_of(table, "p")] == values
    assert page.locator("#table details th[aria-sort=ascending]").inner_text().startswith("p")
    assert page.locator("main table:not(.heads, .card table):not(:has(thead button))").count() == 0
    page.locator("#runs summary").first.click()
    with page.expect_download() as download:
        page.locator("#runs .csv").first.click()
    rows = list(csv.DictReader(Path(download.value.path()).read_text(encoding="utf-8").splitlines()))
    for name in ("run", "tasks", "seed", "time"):
        assert [row[name] for row in rows] == column_of(page.locator("#runs details table").first, name)
    assert visit.said == []


def test_the_address_keeps_the_selection_and_bad_ones_do_no_harm(visit, page_file):
    page = visit.page
    page.locator("nav a").nth(2).click()
    page.locator("#browser select").select_option(label="POS, seed 1")
    page.locator(".first [role=gridcell]").nth(6).click()
    checked = "[...document.querySelectorAll('.card :checked')].map(one => one.value)"
    before = page.evaluate(checked)
    assert page.url.endswith("#know") and "head=2-3" in page.url
    page.goto("about:blank")
    page.go_back()
    assert page.evaluate(checked) == before
    assert page.locator("#explorer .card h4").inner_text() == "Layer 2, head 3"
    bad = "head=99-1&pruned=%3Cb%3E&encoder=&scores.1=99.up"
    page.goto(f"{page_file.as_uri()}?{bad}&runs.1=0.ascending&claims.1=1.descending")
    assert page.locator(".first .chosen").count() == 1
    assert visit.said == []
