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
from tests.service.features.studio.browsing import (
    READY,
    browses,
    explained,
    holding,
    state,
    take,
    violations,
)
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


PRESS_NEXT = """
async () => {
  const shown = [...document.querySelectorAll("main button:not(:disabled), main summary, #tour")]
    .filter((each) => each.checkVisibility() && !each.closest("dialog"));
  const nameOf = (each) => {
    const around = each.closest("section, figure, form");
    const section = around?.querySelector("h2, figcaption")?.textContent ?? "";
    if (each.matches(".map")) return `${section} map ${each.closest("td") ? "of a table" : ""}`;
    if (each.closest("ol")) return `${section} class`;
    return `${section} ${each.ariaLabel ?? each.textContent.replaceAll(/[0-9.]+/g, "")}`;
  };
  window.pressed ??= new Set();
  const next = shown.find((each) =>
    !window.pressed.has(nameOf(each)) && !each.ariaLabel?.startsWith("Remove"));
  if (!next) return null;
  window.pressed.add(nameOf(next));
  next.focus();
  if (document.activeElement !== next) return `${nameOf(next)} takes no focus`;
  next.click();
  for (let n = 0; n < 3; n++) await new Promise(requestAnimationFrame);
  return nameOf(next);
}
"""
"""Presses the next button that was not pressed yet, of those that stand on the page now."""


def press_all(page: Page) -> str:
    """Press every button, and those that come up by it: each leaves the focus on the page. Return
    what was pressed."""
    pressed: list[str] = []
    lost: list[str] = []
    while name := page.evaluate(PRESS_NEXT):
        pressed.append(name)
        if not focused(page):
            lost.append(name)
        expect(page.locator("[aria-busy=true]")).to_have_count(0, timeout=4 * READY)
        if not focused(page):
            lost.append(f"{name}, later")
    assert lost == []
    return "\n".join(pressed)


def focused(page: Page) -> bool:
    return bool(page.evaluate("() => document.activeElement !== document.body"))


def test_no_button_loses_the_focus(page: Page, cat: bytes, espresso: bytes) -> None:
    """Also one that goes away when it is pressed, or that can do nothing more then."""
    expect(page.locator("#runs")).to_contain_text("efficientnet-lite0")
    page.locator(".samples button.map").first.focus()
    page.keyboard.press("Enter")
    explained(page)
    assert focused(page)
    take(page, cat, espresso)
    explained(page)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.locator("#judge").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#judge-heading")).to_be_focused()
    pressed = press_all(page)
    for name in ("Judge it", "by activation", "concepts", "More methods", "End the tour"):
        assert name in pressed  # these go away, or could do nothing for a while
    page.locator("#compare").click()
    cell = page.locator(".grid li", has_text="smoothgradcam++")
    cell.get_by_role("button", name="Compute").focus()
    page.keyboard.press("Enter")
    expect(cell.locator("button.map")).to_be_focused(timeout=4 * READY)
    page.get_by_role("button", name="by activation").click()
    page.locator(".channels button").first.focus()
    page.keyboard.press("Enter")
    back = page.get_by_role("button", name="Back to the classes")
    back.focus()
    page.keyboard.press("Enter")
    expect(back).to_have_count(0)
    assert focused(page)
    removes = page.locator(".thumbnail .remove")
    for left in (2, 1, 0):
        removes.first.focus()
        page.keyboard.press("Enter")
        expect(page.locator(".thumbnail")).to_have_count(left)
        assert focused(page)
    expect(page.locator(".samples button").first).to_be_visible()


def test_a_click_beside_all_controls_leaves_them(page: Page, cat: bytes) -> None:
    """And nothing takes the focus back when the page changes later."""
    take(page, cat)
    explained(page)
    page.locator("#compare").click()
    page.locator("h1").click()
    assert not focused(page)
    page.keyboard.press("2")
    expect(page.locator(".grid")).to_have_count(0)
    explained(page)
    assert not focused(page)


def test_the_model_is_changed_by_keys_in_one_place(page: Page, cat: bytes) -> None:
    """The list of models keeps the focus while the next one is read."""
    take(page, cat)
    explained(page)
    with holding(page, "**/v1/models/efficientnet-lite0"):
        page.locator("#model").focus()
        page.locator("#model").dispatch_event("change")
        expect(page.locator("#method")).to_have_count(0)
        expect(page.locator("#model")).to_be_focused()
    explained(page)
    expect(page.locator("#model")).to_be_focused()


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
