"""Clusters in the page of a batch, opened in a browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect

from service.features.report.write import write_report
from tests.cam.clusters.synthetic import blobs
from tests.service.features.report.report_browser import CHROMIUM, found, launched, opened
from tests.service.features.report.report_stage import map_row, write_manifest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine"),
]

CLEAN, MARKED, SAMPLE = 300, 12, 20


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """312 cats, of which the first 12 are hot in one corner; a dog that the model takes for a cat,
    with a warning. The page's sample has 20 maps."""
    folder = tmp_path_factory.mktemp("batch")
    random = np.random.default_rng(5)
    values = blobs(CLEAN + MARKED, 0)
    for each in values[:MARKED]:
        each *= 0.3
        each[-3:, -3:] = 0.9 + 0.1 * random.random((3, 3))
    dog: dict[str, Any] = {"target_index": 1, "target": "dog", "correct": False}
    rows = [
        *(map_row(f"{at}.png", each.tolist()) for at, each in enumerate(values)),
        map_row("dog.png", **dog, predicted_label="cat", warning="truncated"),
    ]
    page = folder / "report.html"
    write_report(write_manifest(folder, rows), folder, page, title="Photos", most=SAMPLE)
    return page


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as browser:
        yield browser


@pytest.fixture
def page(browser: Browser, file: Path) -> Iterator[Page]:
    with opened(browser, file) as page:
        page.locator("#clusters summary").evaluate_all(
            "(all) => all.forEach((each) => { each.parentElement.open = true; })"
        )
        yield page


def test_a_cluster_that_is_not_on_the_page_as_a_whole_says_so(page: Page) -> None:
    rest = page.locator("#rest")
    expect(rest).to_be_hidden()
    suspect, *others = page.locator(".cluster").all()
    assert others
    suspect.click()
    assert found(page) == "12 of the cluster’s 12 maps"
    expect(rest).to_be_hidden()
    for each in others:
        each.click()
        counts = re.fullmatch(r"(\d+) of the cluster’s (\d+) maps", found(page))
        assert counts
        here, all_ = map(int, counts.groups())
        assert 6 <= here == page.locator("#gallery .map").count() < all_
        assert rest.inner_text() == f"{all_ - here} are only in the table"
        assert rest.locator("a").get_attribute("href") == "report.clusters.csv"
    page.get_by_label("Search").fill("no such thing")
    assert rest.inner_text().startswith(f"{all_ - here} are")
    page.get_by_role("button", name="Show all").click()
    expect(rest).to_be_hidden()


def test_the_keyboard_is_not_lost(page: Page) -> None:
    """A cluster is chosen, then its maps are reached by the next keys."""
    page.locator(".cluster").first.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#found")).to_be_focused()
    expect(page.locator("#gallery .map").first).to_be_in_viewport()
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Show all")).to_be_focused()
    only = page.get_by_label("cluster 0 only")
    only.focus()
    page.keyboard.press("Space")
    expect(only).to_be_hidden()
    choice = page.get_by_role("combobox", name="Class")
    expect(choice).to_be_focused()
    expect(choice).to_be_in_viewport()
    everything = page.get_by_role("button", name="Show all")
    everything.focus()
    page.keyboard.press("Enter")
    expect(everything).to_be_hidden()
    expect(choice).to_be_focused()
    page.locator("#classes .portrait").first.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#found")).to_be_focused()


def test_the_checkboxes_are_in_one_row(page: Page) -> None:
    page.locator(".cluster").first.click()
    # All at once, because the page is still scrolling.
    middles = page.locator("#tools input[type=checkbox], #found").evaluate_all(
        """(all) => all.map((each) => {
          const { top, bottom } = each.getBoundingClientRect();
          return (top + bottom) / 2;
        })"""
    )
    assert len(middles) == 4
    assert max(middles) - min(middles) < 2
    page.set_viewport_size({"width": 360, "height": 640})
    assert page.evaluate("document.documentElement.scrollWidth") == 360


def test_a_prototype_opens_as_a_map_of_the_gallery_does(page: Page) -> None:
    suspect = page.locator(".prototypes").first
    names = suspect.locator("img").evaluate_all("(all) => all.map((each) => each.alt)")
    assert len(names) == 6
    assert suspect.locator("img").first.evaluate("(img) => img.clientWidth") >= 112  # 7 rem
    large = page.get_by_role("dialog")
    suspect.locator("img").first.click()
    expect(large.locator("#large-id")).to_have_text(names[0])
    expect(large.locator("#large-place")).to_have_text("1 of 6")
    page.keyboard.press("Escape")
    last = suspect.get_by_role("button", name=names[5], exact=True)
    last.focus()
    page.keyboard.press("Enter")
    expect(large.locator("#large-id")).to_have_text(names[5])
    page.keyboard.press("ArrowLeft")
    expect(large.locator("#large-id")).to_have_text(names[4])
    page.keyboard.press("Escape")
    expect(last).to_be_focused()
    other = page.locator(".prototypes").nth(1).locator("img").first
    assert other.evaluate("(img) => img.clientWidth") >= 72  # 4.5 rem
    page.set_viewport_size({"width": 360, "height": 640})
    widths = page.locator(".prototypes img").evaluate_all("(all) => all.map((i) => i.clientWidth)")
    assert min(widths) >= 72
    assert page.evaluate("document.documentElement.scrollWidth") == 360


def test_without_javascript_no_sentence_needs_it(browser: Browser, page: Page, file: Path) -> None:
    needing = ("Choose a class to see", "Choose a cluster to see", "of 313 maps are shown")
    for each in needing:
        expect(page.get_by_text(each)).to_be_visible()
    with opened(browser, file, script=False) as still:
        for each in needing:
            expect(still.get_by_text(each)).to_have_count(1)
            expect(still.get_by_text(each)).to_be_hidden()
        told = still.locator("noscript p")
        expect(told).to_be_visible()
        expect(told).to_contain_text("the choice of a class or a cluster need JavaScript")
        expect(told).to_contain_text("mean maps, clusters and failures do not")
        prototypes = still.locator(".prototypes").first
        expect(prototypes.locator("img")).to_have_count(6)
        expect(prototypes.locator("img").first).to_be_visible()
        expect(prototypes.locator("button")).to_have_count(0)
