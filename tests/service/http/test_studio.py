"""The page of the service: its files, and what one does with it in a browser."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx2
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from playwright.sync_api import Browser, FilePayload, Page, Route, expect
from starlette.testclient import TestClient

from cam.drawing.overlay import COLORMAPS, colorize
from service.core.settings import Settings
from service.http.page import BUILT, PATHS
from service.limits.keys import new_key
from service.local.app import create_app
from tests.service.conftest import encoded, noise
from tests.service.insights.report.report_browser import CHROMIUM, launched
from tests.service.live import serving, until_ready

STUDIO = BUILT.parent
READY = 30_000
"""Milliseconds that an answer may take on a busy machine."""
LIGHT = 250_000
"""Bytes that the page may load."""


# The files


def test_the_page_and_its_files_are_open_and_small(tmp_path: Path) -> None:
    _, entry = new_key("someone", ["explain"], None)
    (tmp_path / "keys.toml").write_text(entry)
    with TestClient(create_app(Settings(keys=tmp_path / "keys.toml"), [])) as client:
        answers = {path: client.get(path) for path in PATHS}
        assert {answer.status_code for answer in answers.values()} == {200}
        assert sum(len(answer.content) for answer in answers.values()) < LIGHT
        for path, answer in answers.items():
            again = client.get(path, headers={"If-None-Match": answer.headers["etag"]})
            assert (again.status_code, again.content) == (304, b"")
        for path in ("/studio/", "/studio/../page.py", "/studio/%2e%2e/page.py", "/studio/x"):
            assert client.get(path).status_code in (401, 404)
        assert client.get("/v1/models").status_code == 401


def test_the_page_has_no_script_of_its_own_and_no_other_host() -> None:
    with TestClient(create_app(Settings(), [])) as client:
        answer = client.get("/")
    policy = answer.headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    assert "://" not in answer.text
    assert "<script>" not in answer.text


def test_colour_maps_are_the_service_s() -> None:
    tables = json.loads((STUDIO / "source" / "colormaps.json").read_text())
    assert tuple(tables) == COLORMAPS
    ramp = np.arange(256)[:, None] / 255
    for name, table in tables.items():
        assert base64.b64decode(table) == colorize(ramp.astype(np.float32), name).tobytes()


@pytest.mark.slow
def test_what_is_checked_in_is_built_of_the_sources(tmp_path: Path) -> None:
    if shutil.which("npm") is None:
        pytest.skip("there is no npm on this machine")
    for name in ("package.json", "package-lock.json", "tsconfig.json", "build.mjs"):
        shutil.copy(STUDIO / name, tmp_path)
    shutil.copytree(STUDIO / "source", tmp_path / "source")
    install = ["npm", "ci", "--no-audit", "--no-fund", "--prefer-offline"]
    done = subprocess.run(install, cwd=tmp_path, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"npm cannot install: {done.stderr[-200:]}")
    subprocess.run(["npm", "run", "build"], cwd=tmp_path, check=True, capture_output=True)
    built = {file.name: file.read_bytes() for file in (tmp_path / "built").iterdir()}
    kept = {file.name: file.read_bytes() for file in BUILT.iterdir()}
    assert built == kept, "run `make studio`"


# In a browser

expect.set_options(timeout=READY)
browses = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine")
Pixels = NDArray[np.int16]


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


def take(page: Page, *photos: bytes, name: str = "photo", kind: str = "image/png") -> None:
    files: list[FilePayload] = [
        {"name": f"{name}{number or ''}.png", "mimeType": kind, "buffer": content}
        for number, content in enumerate(photos)
    ]
    page.locator("input[multiple]").first.set_input_files(files)


def explained(page: Page) -> None:
    expect(page.locator("#classes button").first).to_be_visible(timeout=READY)
    expect(page.locator(".right")).to_have_attribute("aria-busy", "false")


def drawn(page: Page) -> Pixels:
    """What is on the screen, RGB, once it has been the same for a while."""
    picture = page.locator("#picture")
    script = "canvas => canvas.toDataURL('image/png')"
    before, address = "", picture.evaluate(script)
    while address != before:
        page.wait_for_timeout(300)
        before, address = address, picture.evaluate(script)
    assert isinstance(address, str)
    return pixels_of(base64.b64decode(address.partition(",")[2]))


def pixels_of(file: bytes) -> Pixels:
    with Image.open(BytesIO(file)) as picture:
        return np.asarray(picture.convert("RGB")).astype(np.int16)


def is_alike(one: Pixels, other: Pixels) -> bool:
    """Whether two pictures differ by 2 of 255 at most; by 4 where a number lies between two colours
    and is rounded otherwise, because another batch computed its last bit."""
    difference = np.abs(one - other).max(2)
    return bool(difference.max() <= 4 and (difference > 2).mean() < 1e-3)


def served(address: str, photo: bytes, **parameters: str) -> Pixels:
    """What the service draws."""
    answer = httpx2.post(
        f"{address}/v1/models/efficientnet-lite0:explain",
        params=parameters,
        content=photo,
        headers={"Content-Type": "image/png", "Accept": "image/png"},
        timeout=60,
    )
    assert answer.status_code == 200, answer.text
    return pixels_of(answer.content)


def state(page: Page) -> dict[str, str]:
    """The view as the address has it."""
    return {name: value for name, (value,) in parse_qs(urlsplit(page.url).fragment).items()}


@browses
@pytest.mark.slow
def test_a_sample_is_explained_by_one_click(page: Page) -> None:
    page.get_by_role("button", name="a cat").click()
    explained(page)
    expect(page.locator("#classes button").first).to_contain_text("Egyptian cat")


@browses
@pytest.mark.slow
@pytest.mark.parametrize("fit", ["squash", "crop"])
def test_the_picture_is_the_service_s(page: Page, address: str, cat: bytes, fit: str) -> None:
    take(page, cat)
    explained(page)
    page.locator("#fit").select_option(fit)
    explained(page)
    page.wait_for_function(f"location.hash.includes('fit={fit}')")
    theirs = served(address, cat, fit=fit, output="overlay", size="image")
    page.wait_for_timeout(300)
    assert is_alike(drawn(page), theirs)
    page.get_by_label("Evidence for and against").check()
    page.wait_for_timeout(300)
    explained(page)
    page.wait_for_timeout(300)
    theirs = served(address, cat, fit=fit, output="overlay", signed="true")
    assert is_alike(drawn(page), theirs)


@browses
@pytest.mark.slow
def test_the_look_changes_without_a_request(page: Page, cat: bytes, address: str) -> None:
    take(page, cat)
    explained(page)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    before = drawn(page)
    page.locator("#opacity").fill("0.9")
    stronger = drawn(page)
    assert np.abs(stronger - before).mean() > 5
    page.locator("#colours").select_option("viridis")
    page.wait_for_timeout(100)
    theirs = served(address, cat, fit="squash", output="overlay", opacity="0.9", colormap="viridis")
    assert is_alike(drawn(page), theirs)
    page.get_by_role("button", name="Photo", exact=True).click()
    assert np.abs(drawn(page) - pixels_of(cat)).max() <= 1
    page.get_by_role("button", name="Contour").click()
    lines = np.abs(drawn(page) - pixels_of(cat)).max(2) > 0
    assert 0.001 < lines.mean() < 0.2
    page.get_by_role("button", name="Overlay").click()
    page.locator("#threshold").fill("0.5")
    page.wait_for_timeout(100)
    untouched = (drawn(page) == pixels_of(cat)).all(2).mean()
    assert untouched > 0.2
    assert [url for url in asked if not url.startswith(("data:", "blob:"))] == []


@browses
@pytest.mark.slow
def test_any_class_is_found_by_its_name_and_explained(page: Page, cat: bytes) -> None:
    take(page, cat)
    explained(page)
    page.locator("#search").fill("espresso")
    page.get_by_role("button", name="espresso", exact=True).click()
    page.wait_for_function("location.hash.includes('target=967')")
    page.locator("#search").fill("no such thing")
    expect(page.get_by_text("No class has “no such thing” in its name.")).to_be_visible()


@browses
@pytest.mark.slow
def test_a_class_is_contrasted_with_another(page: Page, address: str, cat: bytes) -> None:
    take(page, cat)
    explained(page)
    page.locator("#minus").select_option("282")
    page.wait_for_function("location.hash.includes('minus=282')")
    explained(page)
    page.wait_for_timeout(300)
    target = json.dumps({"index": 285, "minus": 282})
    theirs = served(address, cat, fit="squash", output="overlay", target=target)
    assert is_alike(drawn(page), theirs)


@browses
@pytest.mark.slow
def test_keys_choose_class_method_layer_and_view(page: Page, cat: bytes) -> None:
    take(page, cat)
    explained(page)
    page.locator("h1").click()
    page.keyboard.press("2")
    expect(page.locator("#classes button").nth(1)).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("m")
    assert state(page)["method"] == "gradcam++"
    page.keyboard.press("ArrowLeft")
    assert state(page)["layer"] != "auto"
    page.keyboard.press("v")
    assert state(page)["view"] == "heat"
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()


@browses
@pytest.mark.slow
def test_a_class_that_is_chosen_keeps_the_focus(page: Page, cat: bytes) -> None:
    take(page, cat)
    explained(page)
    page.locator("#classes button").nth(1).focus()
    page.keyboard.press("Enter")
    chosen = page.locator("#classes button[aria-pressed=true]")
    expect(page.locator("#classes button").nth(1)).to_have_attribute("aria-pressed", "true")
    expect(chosen).to_be_focused()


@browses
@pytest.mark.slow
def test_a_link_brings_the_view_back(page: Page, address: str, cat: bytes) -> None:
    take(page, cat)
    explained(page)
    page.locator("#classes button").nth(2).click()
    page.locator("#method").select_option("layercam")
    page.locator("#opacity").fill("0.75")
    explained(page)
    page.wait_for_timeout(500)
    link, before = page.url, drawn(page)
    page.goto("about:blank")
    page.goto(link)
    explained(page)
    page.wait_for_timeout(500)
    assert np.abs(drawn(page) - before).max() <= 1
    assert state(page)["method"] == "layercam"
    page.goto("about:blank")
    page.goto(link.replace("photo=", "photo=0"))
    expect(page.locator("#note")).to_contain_text("Open the same file")


@browses
@pytest.mark.slow
def test_methods_are_compared_in_a_grid(page: Page, cat: bytes) -> None:
    take(page, cat)
    explained(page)
    page.locator("#compare").click()
    maps = page.locator(".grid canvas")
    expect(maps.nth(14)).to_be_visible(timeout=READY)
    page.locator(".grid button.map", has_text="hirescam").click()
    assert state(page)["method"] == "hirescam"
    expect(page.locator(".grid button", has_text="2560 passes").first).to_be_visible()
    assert page.locator(".grid li", has_text="odam").count() == 0, "it needs a detector"


@browses
@pytest.mark.slow
def test_a_method_of_many_passes_counts_them(page: Page, cat: bytes) -> None:
    take(page, cat)
    explained(page)
    page.locator("#method").select_option("occlusion")
    expect(page.locator("figure progress")).to_be_visible()
    expect(page.locator("#time")).to_contain_text("occlusion at")


@browses
@pytest.mark.slow
def test_a_channel_is_explained_from_the_layer_s_gallery(page: Page, cat: bytes) -> None:
    take(page, cat)
    explained(page)
    page.get_by_role("button", name="by activation").click()
    channel = page.locator(".channels button").first
    expect(channel).to_be_visible(timeout=READY)
    number = channel.inner_text()
    channel.click()
    expect(page.get_by_text(f"Explained is channel {number} of bn2.")).to_be_visible()
    assert state(page)["unit"] == f"{number}@bn2"
    page.get_by_role("button", name="Back to the classes").click()
    assert "unit" not in state(page)


@browses
@pytest.mark.slow
def test_a_map_is_judged_beside_maps_that_know_nothing(page: Page, cat: bytes) -> None:
    take(page, cat)
    explained(page)
    page.locator("#judge").click()
    scores = page.locator("#scores")
    expect(scores).to_contain_text("insertion", timeout=4 * READY)
    expect(scores).to_contain_text("chance")
    assert scores.locator("polyline").count() == 2
    page.locator("#classes button").nth(1).click()
    expect(scores).to_have_count(0)  # they were another map's


@browses
@pytest.mark.slow
@pytest.mark.parametrize("language", ["curl", "Python"])
def test_the_code_makes_what_is_on_the_screen(
    page: Page, cat: bytes, tmp_path: Path, language: str
) -> None:
    take(page, cat, name="it's mine")
    explained(page)
    page.locator("#classes button").nth(1).click()
    page.get_by_label("Evidence for and against").check()
    page.locator("#colours").select_option("bwr")
    explained(page)
    page.wait_for_timeout(500)
    page.get_by_role("button", name=language, exact=True).click()
    (tmp_path / "it's mine.png").write_bytes(cat)
    code = page.locator("#code").inner_text()
    command = ["bash", "-c", code] if language == "curl" else [sys.executable, "-c", code]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    made = pixels_of((tmp_path / "overlay.png").read_bytes())
    assert is_alike(drawn(page), made)


@browses
@pytest.mark.slow
def test_what_is_taken_along_is_what_is_shown(page: Page, cat: bytes) -> None:
    take(page, cat)
    explained(page)
    files: dict[str, bytes] = {}
    for kind in ("png", "npy", "svg"):
        with page.expect_download() as waiting:
            page.locator(f"#{kind}").click()
        assert waiting.value.suggested_filename == f"photo-gradcam.{kind}"
        files[kind] = Path(waiting.value.path()).read_bytes()
    assert (pixels_of(files["png"]) == drawn(page)).all()
    values = np.load(BytesIO(files["npy"]))
    assert (values.shape, values.dtype) == ((7, 7), np.float32)
    assert b"Egyptian cat" in files["svg"]


@browses
@pytest.mark.slow
def test_a_bad_file_among_good_ones_says_so_and_leaves(page: Page, cat: bytes) -> None:
    take(page, cat)
    explained(page)
    take(page, b"no photo", name="bad")
    expect(page.locator("#problem")).to_contain_text("bad.png: ")
    expect(page.locator(".thumbnail")).to_have_count(1)
    page.locator("#fit").select_option("pad")
    explained(page)
    expect(page.locator("#problem")).to_be_hidden()


@browses
@pytest.mark.slow
def test_several_photos_stand_in_a_strip(page: Page, cat: bytes, espresso: bytes) -> None:
    take(page, cat, espresso)
    expect(page.locator(".thumbnail")).to_have_count(2)
    explained(page)
    page.locator(".thumbnail button").nth(2).click()
    expect(page.locator("#classes button").first).to_contain_text("espresso")
    page.locator("h1").click()
    page.keyboard.press("n")
    expect(page.locator("#classes button").first).to_contain_text("Egyptian cat")
    page.locator(".remove").first.click()
    expect(page.locator(".thumbnail")).to_have_count(1)


@browses
@pytest.mark.slow
def test_a_photo_that_the_browser_cannot_read_is_drawn_by_the_service(page: Page) -> None:
    tiff = encoded(noise(64, 48), "TIFF")
    take(page, tiff, kind="image/tiff")
    explained(page)
    expect(page.locator("#picture")).to_be_visible(timeout=READY)
    expect(page.locator("#note")).to_contain_text("cannot read")


@browses
@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "says"),
    [(429, "The service is busy"), (503, "The service is busy"), (0, "does not answer")],
)
def test_a_refusal_for_now_is_told_and_tried_again(
    page: Page, cat: bytes, status: int, says: str
) -> None:
    left = 1

    def refuse(route: Route) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            route.continue_()
        elif status:
            problem = {"title": "t", "status": status, "detail": "full", "error": "full"}
            route.fulfill(status=status, json=problem, headers={"Retry-After": "2"})
        else:
            route.abort()

    page.route("**/v1/models/*:explain**", refuse)
    take(page, cat)
    expect(page.locator("#problem")).to_contain_text(says)
    explained(page)
    expect(page.locator("#problem")).to_be_hidden()


@browses
@pytest.mark.slow
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
    page.goto("about:blank")
    page.goto(address)
    expect(page.locator("#problem")).to_contain_text("Not ready")
    expect(page.locator("#runs")).to_contain_text("efficientnet-lite0")
    expect(page.locator("#problem")).to_be_hidden()


@browses
@pytest.mark.slow
def test_methods_that_the_model_cannot_do_are_not_offered(page: Page) -> None:
    expect(page.locator("#runs")).to_contain_text("efficientnet-lite0")
    expect(page.locator("#method option[value=odam]")).to_be_disabled()
    expect(page.locator("#method option[value=gradcam]")).to_be_enabled()
    assert "detector" in (page.locator("#method option[value=odam]").get_attribute("title") or "")


@browses
@pytest.mark.slow
def test_a_service_with_keys_is_asked_with_the_key_that_is_typed(
    browser: Browser, tmp_path: Path, cat: bytes
) -> None:
    key, entry = new_key("someone", ["explain"], None)
    (tmp_path / "keys.toml").write_text(entry)
    with (
        serving(GRADCAM_KEYS=str(tmp_path / "keys.toml")) as (process, http),
        browser.new_page() as page,
    ):
        until_ready(process, http)
        page.set_default_timeout(READY)
        page.goto(str(http.base_url))
        page.locator("#key").fill("gradcam_wrong")
        page.get_by_role("button", name="Use it").click()
        expect(page.locator("#key")).to_be_visible()
        page.locator("#key").fill(key)
        page.get_by_role("button", name="Use it").click()
        take(page, cat)
        explained(page)
        assert page.evaluate("Object.keys(localStorage).length") == 0


@browses
@pytest.mark.slow
@pytest.mark.parametrize(("width", "height"), [(360, 640), (1920, 1080)])
def test_nothing_is_wider_than_the_screen(page: Page, cat: bytes, width: int, height: int) -> None:
    page.set_viewport_size({"width": width, "height": height})
    take(page, cat)
    explained(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
