"""The page of a batch, opened from its file in a browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from service.features.report.write import write_report
from tests.service.features.report.report_browser import CHROMIUM, found, launched, opened
from tests.service.features.report.report_stage import (
    HOSTILE,
    failed,
    map_row,
    write_manifest,
    write_picture,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine"),
]

CATS = 70
"""More than are made at once."""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """70 cats of probability 0.00 … 0.69 and concentration 0.80 … 0.11, three dogs, one of no
    probability, and a failure, each with a hostile name among them."""
    output = tmp_path_factory.mktemp("batch")
    red, green = write_picture(output, "red.jpg"), write_picture(output, "a #green.jpg", "green")
    cats = [
        map_row(
            f"cats/{each}.jpg",
            target_probability=each / 100,
            concentration=0.8 - each / 100,
            picture=red,
            peak_x=120,
            peak_y=40,
            width=1300,
            height=200,
        )
        for each in range(CATS)
    ]
    dog: dict[str, Any] = {"target_index": 1, "target": "</option>dog", "concentration": 0.3}
    dogs = [
        map_row(HOSTILE, picture=green, **dog, target_probability=0.9),
        map_row("dogs/gone.jpg", picture="gone.jpg", **dog, target_probability=0.95),
        map_row("dogs/flat.jpg", [[0]], **dog, target_probability=None, warning="zero everywhere"),
    ]
    rows = [*reversed(cats), *dogs, failed(f"not {HOSTILE}")]
    page = output / "report.html"
    write_report(write_manifest(output, rows), output, page, title=f"Photos {HOSTILE}")
    return page


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as browser:
        yield browser


@pytest.fixture
def page(browser: Browser, file: Path) -> Iterator[Page]:
    with opened(browser, file) as page:
        yield page


def cards(page: Page) -> Locator:
    return page.locator("#gallery .map")


def ids(page: Page) -> list[str]:
    return page.locator("#gallery bdi.id").all_inner_texts()


def test_thumbnails_load_as_they_come_into_view(page: Page) -> None:
    expect(cards(page)).to_have_count(60)
    assert found(page) == "73 maps"
    expect(page.locator("#most .map, #least .map")).to_have_count(24)
    page.locator("#end").scroll_into_view_if_needed()
    expect(cards(page)).to_have_count(73)
    page.wait_for_function("[...document.images].every((each) => each.complete || each.hidden)")
    widths = page.locator("#gallery img").evaluate_all(
        "(all) => all.map((img) => img.naturalWidth)"
    )
    # The flat map has no picture.
    assert sorted(widths) == [128, *[192] * 71]
    assert page.locator("#gallery .frame.none").all_inner_texts() == ["no picture"]
    means = page.locator("#classes .portrait img").evaluate_all(
        "(all) => all.map((img) => img.naturalWidth)"
    )
    assert means == [128, 128]


def test_they_are_in_the_order_of_their_names(page: Page) -> None:
    assert ids(page)[:4] == [HOSTILE, "cats/0.jpg", "cats/1.jpg", "cats/2.jpg"]


def test_a_class_is_chosen(page: Page) -> None:
    choice = page.get_by_role("combobox", name="Class")
    assert choice.locator("option").all_inner_texts() == [
        "All classes (73)",
        "cat (70)",
        "</option>dog (3)",
    ]
    choice.select_option("</option>dog (3)")
    assert found(page) == "3 of 73 maps"
    assert ids(page) == [HOSTILE, "dogs/flat.jpg", "dogs/gone.jpg"]
    page.get_by_role("button", name="Show all").click()
    expect(page.locator("#found")).to_have_text("73 maps")
    expect(page.get_by_role("button", name="Show all")).to_be_hidden()


def test_a_mean_map_leads_to_its_maps(page: Page) -> None:
    page.get_by_label("Search").fill("cats/1")
    portrait = page.locator(".portrait").nth(1)
    portrait.click()
    expect(portrait).to_have_attribute("aria-pressed", "true")
    expect(page.locator("#found")).to_have_text("3 of 73 maps")
    expect(cards(page).first).to_be_in_viewport()
    assert page.get_by_label("Search").input_value() == ""


def test_names_and_classes_are_searched(page: Page) -> None:
    search = page.get_by_label("Search")
    search.fill("CATS/1")
    assert found(page) == "11 of 73 maps"
    search.fill("<script>")
    assert ids(page) == [HOSTILE]
    search.fill("n>DOG")
    assert found(page) == "3 of 73 maps"
    search.fill("no such thing")
    assert found(page) == "0 of 73 maps"
    expect(page.get_by_text("No map on this page is like that.")).to_be_visible()
    search.fill("")
    assert found(page) == "73 maps"


def test_a_range_of_probability(page: Page) -> None:
    low, high = page.get_by_label("Lowest probability"), page.get_by_label("Highest probability")
    low.fill("0.65")
    assert found(page) == "7 of 73 maps"
    assert page.locator("#between").inner_text() == "0.65 – 1.00"
    high.fill("0.92")
    assert found(page) == "6 of 73 maps"
    high.fill("0.1")  # pushes the other one along
    assert page.locator("#between").inner_text() == "0.10 – 0.10"
    assert ids(page) == ["cats/10.jpg"]
    low.focus()
    page.keyboard.press("ArrowLeft")
    assert ids(page) == ["cats/9.jpg", "cats/10.jpg"]


@pytest.mark.parametrize(
    ("by", "first", "last"),
    [
        ("probability, highest first", "dogs/gone.jpg", "dogs/flat.jpg"),
        ("probability, lowest first", "cats/0.jpg", "dogs/flat.jpg"),
        ("concentration, highest first", "cats/0.jpg", "cats/69.jpg"),
        ("concentration, lowest first", "cats/69.jpg", "cats/0.jpg"),
    ],
)
def test_they_are_sorted(page: Page, by: str, first: str, last: str) -> None:
    page.get_by_role("combobox", name="Sort by").select_option(by)
    page.locator("#end").scroll_into_view_if_needed()
    expect(cards(page)).to_have_count(73)
    assert (ids(page)[0], ids(page)[-1]) == (first, last)


def test_those_with_a_warning(page: Page) -> None:
    page.get_by_label("with a warning only").check()
    assert ids(page) == ["dogs/flat.jpg"]
    assert "zero everywhere" in cards(page).inner_text()


def test_a_click_shows_one_large(page: Page, file: Path) -> None:
    page.get_by_label("Search").fill("cats/69")
    cards(page).click()
    large = page.get_by_role("dialog", name="cat")
    expect(large).to_be_visible()
    words = " ".join(large.inner_text().split())
    assert words.startswith("1 of 1 cat cats/69.jpg Probability 0.690 Concentration 0.110")
    assert "Hottest at x 120, y 40 Size 1,300 × 200 pixels Class 0 Method gradcam" in words
    assert large.locator("img").evaluate("(img) => img.naturalWidth") == 192
    link = large.get_by_role("link", name="Open the full picture")
    assert link.evaluate("(link) => link.href") == (file.parent / "pictures/red.jpg").as_uri()
    page.mouse.click(5, 5)  # beside it
    expect(large).to_be_hidden()


def test_the_keyboard_is_enough(page: Page) -> None:
    page.get_by_role("combobox", name="Class").select_option("</option>dog (3)")
    cards(page).first.focus()
    page.keyboard.press("Enter")
    large = page.get_by_role("dialog")
    expect(large.locator("#large-id")).to_have_text(HOSTILE)
    expect(large.locator("#before")).to_be_disabled()
    page.keyboard.press("ArrowRight")
    expect(large.locator("#large-id")).to_have_text("dogs/flat.jpg")
    expect(large.get_by_text("zero everywhere")).to_be_visible()
    expect(large.get_by_text("no picture")).to_be_visible()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")  # there are no more
    expect(large.locator("#large-place")).to_have_text("3 of 3")
    expect(large.get_by_text("This is the map alone")).to_be_visible()
    expect(large.get_by_role("link")).to_be_hidden()
    page.keyboard.press("ArrowLeft")
    expect(large.locator("#large-id")).to_have_text("dogs/flat.jpg")
    page.get_by_role("button", name="The map before").click()
    page.keyboard.press("ArrowRight")  # although that button is disabled now
    expect(large.locator("#large-id")).to_have_text("dogs/flat.jpg")
    page.keyboard.press("Escape")
    expect(large).to_be_hidden()
    expect(cards(page).first).to_be_focused()


def test_hostile_names_are_shown_as_they_are(page: Page) -> None:
    expect(page.get_by_role("heading", level=1)).to_have_text(f"Photos {HOSTILE}")
    expect(page).to_have_title(f"Photos {HOSTILE}")
    expect(page.get_by_role("row", name=f"not {HOSTILE}")).to_be_visible()
    expect(cards(page).first).to_contain_text(HOSTILE)
    page.get_by_label("Search").fill("<script>")
    cards(page).click()
    link = page.get_by_role("link", name="Open the full picture")
    assert link.get_attribute("href") == "pictures/a%20%23green.jpg"
    scripts = page.locator("script").evaluate_all("(all) => all.map((each) => each.type)")
    assert scripts == ["application/json", "application/json", ""]  # terms, classes


def test_a_cluster_filters_the_maps(page: Page) -> None:
    """The maps of all cats are equal, so that they are one cluster."""
    page.locator("#clusters summary").click()
    cluster = page.locator(".cluster")
    expect(cluster).to_contain_text("70 maps, 100 % of the class")
    only = page.get_by_label("cluster 0 only")
    expect(only).to_be_hidden()
    cluster.click()
    expect(cluster).to_have_attribute("aria-pressed", "true")
    expect(page.locator("#classes .portrait").first).to_have_attribute("aria-pressed", "false")
    assert found(page) == "70 of the cluster’s 70 maps"
    page.get_by_label("Search").fill("cats/6")
    assert found(page) == "11 of the cluster’s 70 maps"  # 6, and 60 … 69
    page.locator("#class").select_option("")
    expect(only).to_be_hidden()  # the cluster is one of cats
    assert found(page) == "11 of 73 maps"
    cluster.click()
    only.uncheck()
    expect(cluster).to_have_attribute("aria-pressed", "false")
    assert found(page) == "70 of 73 maps"
    cluster.click()
    page.get_by_role("button", name="Show all").click()
    expect(only).to_be_hidden()
    assert found(page) == "73 maps"


def test_a_phone_need_not_scroll_sideways(page: Page) -> None:
    page.set_viewport_size({"width": 360, "height": 640})
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    cards(page).nth(3).click()
    width = page.get_by_role("dialog").evaluate("(dialog) => dialog.scrollWidth")
    assert width <= 360
