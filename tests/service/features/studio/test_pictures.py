"""The tour of docs/tour.md, done in a browser: its pictures are of the page as it is.

`make pictures` makes them anew. A picture is current if it shows the same, seen from afar: fonts
differ from machine to machine.
"""

from __future__ import annotations

import os
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, expect

from tests.service.features.studio.browsing import READY, browses, explained, judged, state

pytestmark = [browses, pytest.mark.slow]

PICTURES = Path(__file__).parents[4] / "docs" / "tour"
AFAR = (64, 48)
"""Columns and rows at which two pictures are compared."""
LEAST = 0.9
"""Least correlation of two pictures that show the same."""


def shoot(page: Page, name: str, selector: str | None = None, height: int = 860) -> None:
    """Compare what the page shows with a picture of the tour, or make the picture anew."""
    page.wait_for_timeout(800)
    if selector:
        content = page.locator(selector).screenshot()
    else:
        page.evaluate("() => window.scrollTo(0, 0)")
        content = page.screenshot(clip={"x": 0, "y": 0, "width": 1280, "height": height})
    made = Image.open(BytesIO(content)).convert("RGB")
    file = PICTURES / f"{name}.jpg"
    if os.environ.get("PICTURES") == "new":
        made.thumbnail((1000, 2000))
        made.save(file, quality=82, optimize=True)
        return
    with Image.open(file) as kept:
        one, other = (
            np.asarray(picture.convert("L").resize(AFAR), np.float64).ravel()
            for picture in (made, kept)
        )
    assert np.corrcoef(one, other)[0, 1] > LEAST, f"docs/tour/{name}.jpg is old: make pictures"


def test_why_a_tabby_and_no_tiger_cat(browser: Browser, address: str) -> None:
    with browser.new_page(viewport={"width": 1280, "height": 900}) as page:
        page.set_default_timeout(READY)
        page.goto(address)
        expect(page.locator("#runs")).to_contain_text("efficientnet-lite0")
        shoot(page, "1-begin", height=520)
        page.get_by_role("button", name="a cat").click()
        explained(page)
        shoot(page, "2-see")
        page.locator("#classes button", has_text="tabby").click()
        page.locator("#minus").select_option(label="tiger cat")
        page.wait_for_function("() => location.hash.includes('minus=')")
        explained(page)
        shoot(page, "3-contrast")
        page.locator("#minus").select_option("")
        page.locator("#compare-layers").click()
        page.wait_for_function(
            "() => document.querySelectorAll('.grid-table canvas').length === 40"
        )
        expect(page.locator(".grid-table .busy")).to_have_count(0, timeout=4 * READY)
        grid = page.locator("section", has=page.locator("#compare-layers"))
        grid.evaluate(
            "section => { section.style.cssText = 'max-height: 720px; overflow: hidden' }"
        )
        shoot(page, "4-layers", "section:has(#compare-layers)")
        grid.evaluate("section => { section.style.cssText = '' }")
        judged(page)
        page.get_by_role("button", name="Watch deletion").click()
        page.locator("#frame").fill("10")
        shoot(page, "5-judge", "section:has(#scores)")
        link = page.url
        assert state(page)["target"] == "281"
        page.goto("about:blank")
        page.goto(link)
        explained(page)
        expect(page.locator("#classes button[aria-pressed=true]")).to_contain_text("tabby")
