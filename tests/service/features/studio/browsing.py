"""What the tests of the page do in a browser, and what they read there."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx2
import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from numpy.typing import NDArray
from PIL import Image
from playwright.sync_api import FilePayload, Page, Route, expect

from tests.service.features.report.report_browser import CHROMIUM
from tests.service.live import serving

READY = 30_000
"""Milliseconds that an answer may take on a busy machine."""

expect.set_options(timeout=READY)
browses = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine")
Pixels = NDArray[np.int16]


def take(page: Page, *photos: bytes, name: str = "photo", kind: str = "image/png") -> None:
    files: list[FilePayload] = [
        {"name": f"{name}{number or ''}.png", "mimeType": kind, "buffer": content}
        for number, content in enumerate(photos)
    ]
    page.locator("input[multiple]").first.set_input_files(files)


@contextmanager
def serving_models(folder: Path, models: str) -> Iterator[str]:
    """The address of a service with these entries of a models.toml in a folder."""
    file = folder / "models.toml"
    file.write_text(models)
    with serving("--models", str(file), GRADCAM_DEADLINE_SECONDS="300") as (_, http):
        yield str(http.base_url).rstrip("/")


@contextmanager
def holding(page: Page, pattern: str) -> Iterator[list[Route]]:
    """Hold matching requests until the end of the block; those that nobody answered go on then.

    The route stays: Playwright itself answers a request that is held while its route is removed."""
    held: list[Route] = []
    is_free = False
    page.route(pattern, lambda route: route.continue_() if is_free else held.append(route))
    yield held
    is_free = True
    for route in held:
        route.continue_()


def first_of(page: Page, held: list[Route]) -> Route:
    """The first request that is held, once there is one, to be answered by the caller."""
    for _ in range(READY // 20):
        if held:
            return held.pop(0)
        page.wait_for_timeout(20)
    raise AssertionError("no request came")


def explained(page: Page) -> None:
    expect(page.locator("#classes button").first).to_be_visible(timeout=READY)
    expect(page.locator(".right")).to_have_attribute("aria-busy", "false")


def judged(page: Page) -> None:
    """Measure the map on the screen, and wait for its scores."""
    page.locator("#judge").click()
    expect(page.locator("#scores")).to_contain_text("insertion", timeout=4 * READY)


def canvas(page: Page, name: str) -> Pixels:
    """A canvas of the page, RGB, once it has been the same for a while."""
    picture = page.locator(f"#{name}")
    script = "canvas => canvas.toDataURL('image/png')"
    before, address = "", picture.evaluate(script)
    while address != before:
        page.wait_for_timeout(300)
        before, address = address, picture.evaluate(script)
    assert isinstance(address, str)
    return pixels_of(base64.b64decode(address.partition(",")[2]))


def drawn(page: Page) -> Pixels:
    """What is on the screen."""
    return canvas(page, "picture")


def pixels_of(file: bytes) -> Pixels:
    with Image.open(BytesIO(file)) as picture:
        return np.asarray(picture.convert("RGB")).astype(np.int16)


def is_alike(one: Pixels, other: Pixels) -> bool:
    """Whether two pictures differ by 2 of 255 at most; by 4 where a number lies between two colours
    and is rounded otherwise, because another batch computed its last bit."""
    difference = np.abs(one - other).max(2)
    return bool(difference.max() <= 4 and (difference > 2).mean() < 1e-3)


def served(
    address: str,
    photo: bytes,
    model: str = "efficientnet-lite0",
    verb: str = "explain",
    **parameters: str,
) -> Pixels:
    """What the service draws, with an opacity that follows the heat and colours as on the page."""
    colours = "coolwarm" if "signed" in parameters else "inferno"
    answer = httpx2.post(
        f"{address}/v1/models/{model}:{verb}",
        params={"opacity": "heat", "colormap": colours, **parameters},
        content=photo,
        headers={"Content-Type": "image/png", "Accept": "image/png"},
        timeout=60,
    )
    assert answer.status_code == 200, answer.text
    return pixels_of(answer.content)


def violations(page: Page) -> list[str]:
    """What of the page hinders people with disabilities, by axe."""
    found = Axe().run(page).response["violations"]
    return [f"{one['id']}: {one['nodes'][0]['html'][:120]}" for one in found]


def state(page: Page) -> dict[str, str]:
    """The view as the address has it."""
    return {name: value for name, (value,) in parse_qs(urlsplit(page.url).fragment).items()}
