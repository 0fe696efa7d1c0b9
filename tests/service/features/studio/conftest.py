"""A browser, and the page in it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page

from tests.service.features.report.report_browser import launched
from tests.service.features.studio.browsing import READY


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as browser:
        yield browser


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    """The page, which complains of nothing in the browser's console."""
    complaints: list[str] = []
    with browser.new_page(viewport={"width": 1280, "height": 900}) as page:
        page.set_default_timeout(READY)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "console",
            lambda said: complaints.append(said.text) if "Security Policy" in said.text else None,
        )
        page.goto(address)
        yield page
        assert complaints == []
