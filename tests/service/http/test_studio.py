"""The page of the service, in a browser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.service.insights.report.report_browser import CHROMIUM, launched

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine"),
]
READY = 30_000
"""Milliseconds that an answer may take on a busy machine."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as browser:
        yield browser


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    with browser.new_page() as page:
        page.set_default_timeout(READY)
        yield page


def drop(page: Page, content: bytes, name: str = "photo.png", kind: str = "image/png") -> None:
    page.locator("input[type=file]").set_input_files(
        {"name": name, "mimeType": kind, "buffer": content}
    )


def test_a_page_that_is_opened_while_a_model_loads_recovers(page: Page, address: str) -> None:
    left = 2

    def starting(route: Route) -> None:
        nonlocal left
        left -= 1
        if left >= 0:
            route.fulfill(status=200, json={"models": []})
        else:
            route.continue_()

    page.route("**/v1/models", starting)
    page.goto(address)
    expect(page.locator("#problem")).to_contain_text("Not ready")
    expect(page.locator("#runs")).to_contain_text("efficientnet-lite0", timeout=READY)
    expect(page.locator("#problem")).to_be_hidden()


def test_after_a_bad_file_the_good_photo_is_explained(page: Page, address: str, cat: bytes) -> None:
    page.goto(address)
    expect(page.locator("#runs")).to_contain_text("efficientnet-lite0", timeout=READY)
    drop(page, cat)
    expect(page.locator("#picture")).to_be_visible(timeout=READY)
    drop(page, b"no photo")
    expect(page.locator("#problem")).to_be_visible(timeout=READY)
    page.locator("#fit").select_option("pad")
    expect(page.locator("#problem")).to_be_hidden(timeout=READY)


def test_a_class_that_is_chosen_keeps_the_focus(page: Page, address: str, cat: bytes) -> None:
    page.goto(address)
    expect(page.locator("#runs")).to_contain_text("efficientnet-lite0", timeout=READY)
    drop(page, cat)
    second = page.locator("#classes button").nth(1)
    expect(second).to_be_visible(timeout=READY)
    second.focus()
    page.keyboard.press("Enter")
    chosen = page.locator("#classes button[aria-pressed=true]")
    expect(page.locator("#classes button").nth(1)).to_have_attribute(
        "aria-pressed", "true", timeout=READY
    )
    expect(chosen).to_be_focused()


def test_methods_that_the_model_cannot_do_are_not_offered(page: Page, address: str) -> None:
    page.goto(address)
    expect(page.locator("#runs")).to_contain_text("efficientnet-lite0", timeout=READY)
    expect(page.locator("#method option[value=odam]")).to_be_disabled()
    expect(page.locator("#method option[value=gradcam]")).to_be_enabled()
    assert "detector" in (page.locator("#method option[value=odam]").get_attribute("title") or "")
