"""What holds for everybody: access, the keyboard alone, long sessions, a service that is lost."""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, Route, expect

from tests.service.conftest import encoded, noise
from tests.service.http.studio.browsing import READY, browses, explained, state, take, violations
from tests.service.live import serving, starting, until_ready

pytestmark = [browses, pytest.mark.slow]

GROWTH = 1.1
"""How much more memory a page may hold after a long session."""


@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (1280, "light")])
def test_nothing_stands_in_the_way(
    browser: Browser, address: str, cat: bytes, scheme: Literal["light", "dark"], width: int
) -> None:
    with browser.new_page(
        viewport={"width": width, "height": 800}, color_scheme=scheme, bypass_csp=True
    ) as page:
        page.set_default_timeout(READY)
        page.goto(address)
        expect(page.locator("#runs")).to_contain_text("efficientnet-lite0")
        assert violations(page) == []
        take(page, cat)
        explained(page)
        page.locator("#compare").click()
        page.locator("#judge").click()
        page.get_by_role("button", name="by activation").click()
        expect(page.locator("#scores")).to_contain_text("insertion", timeout=4 * READY)
        page.get_by_role("button", name="Watch deletion").click()
        page.locator("#mark").click()
        expect(page.locator(".channels button").first).to_be_visible(timeout=2 * READY)
        assert violations(page) == []
        page.keyboard.press("Escape")
        page.locator("#tour").click()
        expect(page.locator(".tour")).to_be_visible()
        page.get_by_role("button", name="Keyboard shortcuts").click()
        assert violations(page) == []
        page.keyboard.press("Escape")
        page.get_by_role("button", name="Work").click()
        expect(page.locator("#drift")).to_be_visible()
        assert violations(page) == []


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1280, "dark"), (1920, "light")])
def test_comparisons_stand_in_nobody_s_way(
    browser: Browser, address: str, cat: bytes, scheme: Literal["light", "dark"], width: int
) -> None:
    with browser.new_page(
        viewport={"width": width, "height": 800}, color_scheme=scheme, bypass_csp=True
    ) as page:
        page.set_default_timeout(READY)
        page.goto(address)
        expect(page.locator(".samples .views button")).to_have_count(9)
        assert violations(page) == []
        page.get_by_role("button", name="Why drilling platform and not missile?").click()
        explained(page)
        take(page, cat)
        explained(page)
        page.locator("#swipe").click()
        page.locator("#beside").select_option(label="the photo rocket.jpg")
        page.locator("#compare-layers").click()
        page.get_by_role("button", name="by activation").click()
        page.locator("#over").check()
        expect(page.locator("#save-beside")).to_be_visible()
        expect(page.locator(".grid-table canvas")).to_have_count(40, timeout=4 * READY)
        assert violations(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.get_by_role("button", name="Work").click()
        page.locator("#job").click()
        expect(page.locator("#read")).to_have_text("2 of 2 results.", timeout=2 * READY)
        assert violations(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def press_until(page: Page, selector: str, most: int = 120) -> None:
    """Press the tab key until the focus is on an element."""
    for _ in range(most):
        if page.evaluate("selector => document.activeElement?.matches(selector)", selector):
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"the tab key does not reach {selector}")


def test_all_is_done_with_the_keyboard_alone(page: Page) -> None:
    press_until(page, ".samples button")
    page.keyboard.press("Enter")
    explained(page)
    press_until(page, "#opacity")
    page.keyboard.press("ArrowRight")
    assert state(page)["opacity"] == "0.55"
    press_until(page, "#mark")
    page.keyboard.press("Enter")
    page.keyboard.press("Shift+Tab")
    press_until(page, "#marked")
    before = state(page)["marked"]
    page.keyboard.press("Shift+ArrowRight")
    assert state(page)["marked"] != before
    press_until(page, "#compare")
    page.keyboard.press("Enter")
    expect(page.locator(".grid canvas").first).to_be_visible(timeout=READY)
    press_until(page, "#search")
    page.keyboard.type("espresso")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_function("() => location.hash.includes('target=550')")
    explained(page)
    press_until(page, "#judge")
    page.keyboard.press("Enter")
    expect(page.locator("#scores")).to_contain_text("insertion", timeout=4 * READY)
    press_until(page, "#method")
    page.keyboard.press("ArrowDown")
    page.wait_for_function("() => !location.hash.includes('method=gradcam&')")
    press_until(page, "#png")
    with page.expect_download():
        page.keyboard.press("Enter")


def heap(page: Page) -> float:
    """Bytes of JavaScript that the page holds after garbage collection, and its nodes."""
    session = page.context.new_cdp_session(page)
    for _ in range(3):
        session.send("HeapProfiler.collectGarbage")
    used = session.send("Runtime.getHeapUsage")["usedSize"]
    session.detach()
    return float(used)


def test_a_long_session_does_not_grow(page: Page, cat: bytes) -> None:
    take(page, cat)
    explained(page)
    methods = ["gradcam", "layercam", "hirescam", "gradcam++"]

    def switch(times: int) -> None:
        for turn in range(times):
            page.locator("#method").select_option(methods[turn % len(methods)])
            explained(page)

    switch(20)
    before = heap(page)
    switch(100)
    assert heap(page) < GROWTH * before


def test_five_hundred_photos_stand_in_the_strip(page: Page, cat: bytes) -> None:
    take(page, cat)
    explained(page)
    small = [encoded(noise(16, 16, seed=n), "PNG") for n in range(500)]
    take(page, *small[:100])
    expect(page.locator(".thumbnail")).to_have_count(101)
    before = heap(page)
    for start in range(100, 500, 100):
        take(page, *small[start : start + 100])
        expect(page.locator(".thumbnail")).to_have_count(start + 101)
    # A photo's bytes are the browser's own; the page holds its name and a few elements.
    assert heap(page) - before < 400 * 12_000
    page.locator(".thumbnail button").first.click()
    explained(page)


def test_a_photo_of_48_megapixels_is_drawn_small(page: Page) -> None:
    gradient = np.linspace(0, 255, 8000, dtype=np.uint8)[None, :, None].repeat(6000, 0)
    file = BytesIO()
    Image.fromarray(gradient.repeat(3, 2)).save(file, "JPEG", quality=80)
    take(page, file.getvalue(), kind="image/jpeg")
    explained(page)
    size = page.locator("#picture").evaluate("canvas => [canvas.width, canvas.height]")
    assert size == [1600, 1200]


def test_a_file_that_is_a_drawing_is_no_photo(page: Page, cat: bytes) -> None:
    take(page, cat)
    explained(page)
    drawing = b'<svg xmlns="http://www.w3.org/2000/svg" onload="alert(1)"/>'
    take(page, drawing, name="drawing", kind="image/svg+xml")
    expect(page.locator("#problem")).to_contain_text("drawing.png: ")
    page.locator("#method").select_option("layercam")
    explained(page)
    expect(page.locator("#problem")).to_be_hidden()


def test_a_model_that_vanishes_leaves_the_others(page: Page, cat: bytes) -> None:
    take(page, cat)
    explained(page)

    def gone(route: Route) -> None:
        problem = {"title": "t", "status": 404, "detail": "there is no model 'x'", "error": ""}
        route.fulfill(status=404, body=json.dumps(problem), content_type="application/problem+json")

    page.route("**/v1/models/*:explain**", gone)
    page.locator("#method").select_option("layercam")
    expect(page.locator("#problem")).to_contain_text("there is no model 'x'")
    expect(page.locator(".thumbnail")).to_have_count(1)
    page.unroute("**/v1/models/*:explain**")
    page.locator("#method").select_option("hirescam")
    explained(page)
    expect(page.locator("#problem")).to_be_hidden()


def test_a_service_that_is_gone_and_comes_back_loses_nothing(
    browser: Browser, tmp_path: Path, cat: bytes
) -> None:
    with serving() as (process, http), browser.new_page() as page:
        page.set_default_timeout(READY)
        page.goto(str(http.base_url))
        take(page, cat)
        explained(page)
        port = str(http.base_url).rsplit(":", 1)[1].rstrip("/")
        process.kill()
        process.wait()
        page.locator("#method").select_option("layercam")
        expect(page.locator("#problem")).to_contain_text("does not answer")
        with starting("--port", port) as (again, back):
            back.base_url = http.base_url
            until_ready(again, back)
            expect(page.locator("#problem")).to_be_hidden(timeout=2 * READY)
            explained(page)
            expect(page.locator("#time")).to_contain_text("layercam")
