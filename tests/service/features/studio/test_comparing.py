"""Maps beside maps, what a mark holds, the films of insertion and deletion, and the tour."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, Locator, Page, Route, expect

from cam import spearman
from service.client import Client
from tests.service.features.studio.browsing import (
    READY,
    Pixels,
    browses,
    canvas,
    drawn,
    explained,
    is_alike,
    judged,
    pixels_of,
    served,
    serving_models,
    state,
    take,
)

pytestmark = [browses, pytest.mark.slow]

MODELS = """
[[models]]
name = "efficientnet-lite0"
source = "embedded:efficientnet-lite0"

[[models]]
name = "twin"
source = "embedded:efficientnet-lite0"

[[models]]
name = "resnet18"
source = "torchvision:resnet18"
weights = "none"
seed = 1

[[models]]
name = "segmenter"
source = "torchvision:lraspp_mobilenet_v3_large"
weights = "none"
seed = 1
"""


KEEP_FORM = """
() => {
  const plain = window.fetch;
  window.fetch = (path, init) => {
    if (init?.body instanceof FormData) window.sentTarget = init.body.get("target");
    return plain(path, init);
  };
}
"""


COUNT_REQUESTS = """
() => {
  const plain = window.fetch;
  let now = window.mostAtOnce = 0;
  window.fetch = async (path, init) => {
    window.mostAtOnce = Math.max(window.mostAtOnce, ++now);
    try { return await plain(path, init); } finally { now--; }
  };
}
"""


KEEP_WORDS = """
() => {
  const plain = CanvasRenderingContext2D.prototype.fillText;
  window.written = [];
  CanvasRenderingContext2D.prototype.fillText = function (text, ...place) {
    window.written.push(text);
    plain.call(this, text, ...place);
  };
}
"""


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a service with two classifiers and a segmenter."""
    with serving_models(tmp_path_factory.mktemp("models"), MODELS) as address:
        yield address


@pytest.fixture
def wide(browser: Browser, several: str) -> Iterator[Page]:
    """The page of the service with several models."""
    with browser.new_page(viewport={"width": 1280, "height": 900}) as page:
        page.set_default_timeout(READY)
        page.goto(several)
        yield page


def test_maps_of_pixels_are_bright_and_the_service_s(page: Page, address: str, cat: bytes) -> None:
    take(page, cat)
    explained(page)
    expect(page.locator("#bright")).not_to_be_checked()
    page.locator("#method").select_option("guidedbackprop")
    expect(page.locator("#time")).to_contain_text("guidedbackprop at")
    expect(page.locator("#bright")).to_be_checked()
    page.locator("#colours").select_option("turbo")  # two neighbours of inferno differ by up to 5
    bright = drawn(page)
    asked = {"method": "guidedbackprop", "fit": "squash", "output": "overlay", "colormap": "turbo"}
    assert is_alike(bright, served(address, cat, normalize="percentile", **asked))
    page.locator("#bright").uncheck()
    assert is_alike(drawn(page), served(address, cat, **asked))
    assert state(page)["bright"] == "0"


def test_the_grid_says_how_alike_maps_are(page: Page, address: str, cat: bytes) -> None:
    take(page, cat)
    explained(page)
    page.locator("#compare").click()
    cell = page.locator(".grid li", has_text="shapleycam")
    expect(page.locator("#agreement")).to_contain_text("1 if both order all places alike")
    expect(cell).to_contain_text(re.compile(r"agreement -?\d\.\d\d"))
    with Client(address, model="efficientnet-lite0") as client:
        one, other = (
            client.explain(cat, method=method, fit="squash", size="layer", normalize="none")
            for method in ("gradcam", "shapleycam")
        )
    assert one.layer == other.layer  # else the page compares them on the photo
    expect(cell).to_contain_text(f"agreement {spearman(one.map, other.map):.2f}")


def test_a_grid_goes_with_its_photo_and_its_class(page: Page, cat: bytes, espresso: bytes) -> None:
    take(page, cat, espresso)
    explained(page)
    cells = page.locator(".grid canvas")
    page.locator("#compare").click()
    expect(cells.nth(3)).to_be_visible(timeout=2 * READY)
    page.locator("#layer").select_option("blocks.4")  # the grid keeps its own layer
    expect(cells.nth(3)).to_be_visible()
    page.locator("#classes button").nth(1).click()
    expect(cells).to_have_count(0)
    page.locator("#compare-layers").click()
    expect(page.locator(".grid-table canvas").first).to_be_visible(timeout=2 * READY)
    page.locator(".thumbnail button").nth(2).click()
    expect(page.locator(".grid-table")).to_have_count(0)
    explained(page)
    expect(page.locator(".grid-table")).to_have_count(0)


def test_methods_are_compared_at_the_network_s_stages(page: Page, cat: bytes) -> None:
    take(page, cat)
    explained(page)
    page.locator("#compare-layers").click()
    heads = page.locator(".grid-table thead th")
    expect(heads).to_have_text(
        ["blocks.0112 × 112", "blocks.156 × 56", "blocks.228 × 28", "blocks.414 × 14", "bn27 × 7"]
    )
    row = page.locator(".grid-table tr", has=page.get_by_role("rowheader", name="gradcam"))
    row = row.filter(has=page.locator("th", has_text=re.compile("^gradcam$")))
    expect(row.locator("canvas")).to_have_count(5)
    expect(page.locator(".grid-table td > div, .grid-table td > button")).to_have_count(40)
    row.locator("button.map").nth(3).click()
    explained(page)
    assert state(page)["layer"] == "blocks.4"
    expect(page.locator("#told")).to_contain_text("blocks.4")
    page.locator("#rows-after").click()
    expect(page.get_by_text("Methods 9 to 16 of 16")).to_be_visible()
    refused = page.locator(".grid-table td", has_text="cannot explain it").first
    expect(refused).to_be_visible()  # CAM needs the last layer, and says so
    expect(page.locator("#rows-after")).to_be_disabled()


def test_the_stages_of_a_resnet_are_its_four_layers(wide: Page, cat: bytes) -> None:
    wide.locator("#model").select_option("resnet18")
    take(wide, cat)
    explained(wide)
    wide.locator("#compare-layers").click()
    heads = wide.locator(".grid-table thead th")
    expect(heads).to_have_text([re.compile(f"^layer{n}") for n in (1, 2, 3, 4)])


def test_the_grid_waits_for_a_busy_service(page: Page, cat: bytes) -> None:
    take(page, cat)
    explained(page)
    refused = 0

    def busy_at_first(route: Route) -> None:
        nonlocal refused
        refused += 1
        if refused > 12:
            route.continue_()
            return
        problem = {"title": "t", "status": 429, "detail": "too many wait", "error": ""}
        headers = {"Retry-After": "1", "Content-Type": "application/problem+json"}
        route.fulfill(status=429, body=json.dumps(problem), headers=headers)

    page.evaluate(COUNT_REQUESTS)
    page.route("**/v1/models/*:explain**", busy_at_first)
    page.locator("#compare-layers").click()
    expect(page.locator(".grid-table canvas")).to_have_count(40, timeout=4 * READY)
    assert refused > 12
    assert page.evaluate("window.mostAtOnce") == 2
    expect(page.locator("#problem")).to_be_hidden()


def panel(page: Page, button: str) -> tuple[Pixels, str]:
    """The picture that a button saves, and all the words that are written on it."""
    page.evaluate(KEEP_WORDS)
    with page.expect_download() as waiting:
        page.locator(button).click()
    picture = pixels_of(Path(waiting.value.path()).read_bytes())
    return picture, " ".join(page.evaluate("window.written"))


def test_a_grid_is_saved_as_one_picture_with_its_captions(page: Page, cat: bytes) -> None:
    take(page, cat)
    explained(page)
    page.locator("#compare").click()
    expect(page.locator(".grid canvas").nth(14)).to_be_visible()
    expect(page.locator(".grid .busy")).to_have_count(0)
    picture, words = panel(page, "#save-comparison")
    for each in page.locator(".grid li:has(canvas)").all_inner_texts():
        assert each.split()[0] in words
    for said in ("photo.png", "Egyptian cat", "efficientnet-lite0", "gradcam at bn2"):
        assert said in words
    assert re.search(r"\d{4}-\d\d-\d\d", words)
    assert picture.shape[1] == 5 * (360 + 16) + 16
    shown = page.locator(".grid canvas").first
    first = pixels_of(base64.b64decode(shown.evaluate("c => c.toDataURL()").partition(",")[2]))
    height = round(360 * first.shape[0] / first.shape[1])
    top = 16 + 20 * 2 + 8  # below two lines
    there = picture[top : top + height, 16 : 16 + 360]
    small = Image.fromarray(first.astype(np.uint8)).resize((360, height), Image.Resampling.BILINEAR)
    assert np.corrcoef(there.ravel(), np.asarray(small).ravel())[0, 1] > 0.97


def test_two_models_beside_each_other_are_saved_as_one_picture(wide: Page, cat: bytes) -> None:
    take(wide, cat)
    explained(wide)
    wide.locator("#beside").select_option("model:resnet18")
    expect(wide.locator("#alike")).to_contain_text("agreement")
    picture, words = panel(wide, "#save-beside")
    assert picture.shape[1] == 3 * (360 + 16) + 16
    assert "efficientnet-lite0: Egyptian cat; gradcam at bn2" in words
    assert "resnet18: " in words
    assert "blue: hotter in resnet18" in words


def test_two_models_stand_side_by_side_with_the_difference(
    wide: Page, several: str, cat: bytes
) -> None:
    take(wide, cat)
    explained(wide)
    wide.locator("#beside").select_option("model:resnet18")
    expect(wide.locator("#alike")).to_contain_text("agreement")
    asked = {"fit": "squash", "target": "Egyptian cat"}  # the first class here, on both
    theirs = served(several, cat, model="resnet18", output="overlay", layer="auto", **asked)
    assert is_alike(canvas(wide, "other"), theirs)
    assert (canvas(wide, "mine") == drawn(wide)).all()
    first, second = (wide.locator(".pair figcaption").nth(n) for n in (0, 1))
    expect(first).to_contain_text("efficientnet-lite0: Egyptian cat")
    expect(first).to_contain_text("gradcam at bn2")
    expect(second).to_contain_text("resnet18: Egyptian cat")
    expect(wide.locator("#unlike")).to_have_count(0)
    expect(second).to_contain_text("gradcam at layer4")
    legend = wide.locator("#legend-difference")
    expect(legend).to_contain_text("1, red: hotter in efficientnet-lite0. 0: equal.")
    expect(legend).to_contain_text("−1, blue: hotter in resnet18.")
    bar, figure = (wide.locator(each).bounding_box() for each in (".pair .bar", "#difference"))
    assert bar
    assert figure
    assert bar["x"] + bar["width"] <= figure["x"] + figure["width"] + 1
    one, other = (
        served(several, cat, model=model, output="mask", **asked)
        for model in ("efficientnet-lite0", "resnet18")
    )
    shown = canvas(wide, "difference")
    redder = shown[..., 0] - shown[..., 2]
    more = one[..., 0] - other[..., 0]
    assert np.corrcoef(redder.ravel(), more.ravel())[0, 1] > 0.95
    link = wide.url
    wide.goto("about:blank")
    wide.goto(link)
    expect(wide.locator("#difference")).to_be_visible()


def test_a_map_of_another_class_says_whose_class_it_is(wide: Page, cat: bytes) -> None:
    take(wide, cat)
    explained(wide)
    wide.locator("#beside").select_option("model:segmenter")
    second = wide.locator(".pair figcaption").nth(1)
    expect(second).to_contain_text("Its first class: ")
    own = re.search(r"segmenter: (.+)", second.inner_text())
    assert own
    said = f"The map of segmenter is of its own first class, {own[1].strip()}, and not of Egyptian"
    expect(wide.locator("#unlike")).to_contain_text(said)


def test_two_equal_maps_are_said_to_be_equal(wide: Page, cat: bytes) -> None:
    take(wide, cat)
    explained(wide)
    wide.locator("#beside").select_option("model:twin")
    expect(wide.locator("#legend-difference")).to_contain_text("Both maps are equal")
    shown = canvas(wide, "difference")
    assert np.ptp(shown.reshape(-1, 3), axis=0).max() == 0
    wide.locator("#method").select_option("hirescam")
    wide.locator("#layer").select_option("blocks.4")
    expect(wide.locator("#legend-difference")).to_contain_text("hotter in twin")


def dragged(page: Page, divider: Locator, to: float) -> None:
    """Drag a divider to a share of its picture's width."""
    area, handle = divider.locator("xpath=..").bounding_box(), divider.bounding_box()
    assert area
    assert handle
    page.mouse.move(handle["x"] + handle["width"] / 2, handle["y"] + handle["height"] / 2)
    page.mouse.down()
    page.mouse.move(area["x"] + to * area["width"], area["y"] + area["height"] / 3, steps=4)
    page.mouse.up()


def test_a_divider_is_dragged_between_photo_and_map(page: Page, cat: bytes) -> None:
    take(page, cat)
    explained(page)
    page.locator("#swipe").click()
    divider = page.get_by_role("slider", name="Divider: Photo at the left, Map at the right")
    expect(divider).to_have_attribute("aria-valuenow", "50")
    assert np.abs(canvas(page, "plain") - pixels_of(cat)).max() <= 2
    divider.scroll_into_view_if_needed()
    dragged(page, divider, 0.25)
    expect(divider).to_have_attribute("aria-valuenow", "25")
    upper = page.locator("#plain")
    expect(upper).to_have_css("clip-path", "inset(0px 75% 0px 0px)")
    divider.focus()
    layer = state(page)["layer"]
    page.keyboard.press("ArrowRight")
    expect(divider).to_have_attribute("aria-valuenow", "27")
    page.keyboard.press("Shift+ArrowLeft")
    expect(divider).to_have_attribute("aria-valuetext", "17 % Photo")
    page.keyboard.press("End")
    page.keyboard.press("ArrowRight")
    expect(divider).to_have_attribute("aria-valuenow", "100")
    assert state(page)["layer"] == layer, "the arrow keys move the divider alone"
    page.locator("#swipe").click()
    expect(divider).to_have_count(0)


def test_a_divider_stands_between_two_maps_without_motion(wide: Page, cat: bytes) -> None:
    wide.emulate_media(reduced_motion="reduce")
    take(wide, cat)
    explained(wide)
    wide.locator("#beside").select_option("model:resnet18")
    wide.locator("#swipe-both").click()
    assert (canvas(wide, "upper") == drawn(wide)).all()
    assert (canvas(wide, "lower") == canvas(wide, "other")).all()
    divider = wide.get_by_role("slider", name="Divider: efficientnet-lite0 at the left, resnet18")
    divider.focus()
    wide.keyboard.press("Home")
    expect(wide.locator("#upper")).to_have_css("clip-path", "inset(0px 100% 0px 0px)")
    for moving in (wide.locator("#upper"), divider):
        expect(moving).to_have_css("transition-duration", "0s")
        expect(moving).to_have_css("animation-name", "none")


def test_two_photos_stand_side_by_side(
    page: Page, address: str, cat: bytes, espresso: bytes
) -> None:
    take(page, cat, espresso)
    explained(page)
    page.locator("#beside").select_option(label="the photo photo1.png")
    expect(page.locator(".pair")).to_contain_text("Its first class: espresso")
    theirs = served(address, espresso, fit="squash", output="overlay")
    assert is_alike(canvas(page, "other"), theirs)
    expect(page.locator("#difference")).to_have_count(0)


def test_the_film_of_deletion_ends_without_a_pixel_of_the_photo(page: Page, cat: bytes) -> None:
    take(page, cat)
    explained(page)
    judged(page)
    page.get_by_role("button", name="Watch deletion").click()
    photo = pixels_of(cat)
    start = canvas(page, "film")
    assert np.abs(start - photo).max() <= 2
    last = page.locator("#frame").get_attribute("max") or ""
    page.locator("#frame").fill(str(int(last) // 2))
    expect(page.locator("#share")).to_contain_text("50 % of the pixels gone: probability 0.")
    half = canvas(page, "film")
    gone = (half == 128).all(2)  # the model's mean colour, 0.5
    assert abs(gone.mean() - 0.5) < 0.02
    page.locator("#frame").fill(last)
    assert (canvas(page, "film") == 128).all()
    page.get_by_role("button", name="Watch insertion").click()
    page.locator("#play").click()
    expect(page.locator("#share")).to_contain_text("100 % of the pixels there")
    assert np.abs(canvas(page, "film") - photo).max() <= 2


def test_the_film_shows_the_probability_of_the_service(
    page: Page, address: str, cat: bytes
) -> None:
    take(page, cat)
    explained(page)
    judged(page)
    page.get_by_role("button", name="Watch deletion").click()
    with Client(address, model="efficientnet-lite0") as client:
        (found,) = client.evaluate(cat, fit="squash", metrics=["deletion"])
    curve = found.scores["deletion"].details["curve"]
    assert isinstance(curve, list)
    page.locator("#frame").fill("7")
    share = page.locator("#share").inner_text().rpartition(" ")[2]
    assert abs(float(share) - curve[7]) < 0.002


def test_a_marked_place_says_how_much_of_the_heat_it_holds(
    page: Page, address: str, cat: bytes
) -> None:
    take(page, cat)
    explained(page)
    page.locator("#mark").click()
    share = page.locator("#mark-share")
    expect(share).to_contain_text("which is 2")
    heat = served(address, cat, fit="squash", output="mask")[..., 0]
    height, width = heat.shape
    left, top, right, bottom = (int(edge) for edge in state(page)["marked"].split(","))
    inside = heat[top:bottom, left:right].sum() / heat.sum()
    said = re.search(r"([\d.]+) % of the heat", share.inner_text())
    assert said
    assert abs(float(said[1]) - 100 * inside) < 1.5
    page.locator("#marked").focus()
    page.keyboard.press("ArrowRight")
    assert int(state(page)["marked"].split(",")[0]) > left
    area = page.locator(".mark").bounding_box()
    assert area
    page.mouse.move(area["x"] + 0.1 * area["width"], area["y"] + 0.1 * area["height"])
    page.mouse.down()
    page.mouse.move(area["x"] + 0.4 * area["width"], area["y"] + 0.5 * area["height"])
    page.mouse.up()
    edges = np.array([int(edge) for edge in state(page)["marked"].split(",")])
    assert (
        np.abs(edges - np.array([0.1 * width, 0.1 * height, 0.4 * width, 0.5 * height])).max() < 4
    )
    page.locator("#mark").click()
    assert "marked" not in state(page)


def test_a_box_is_a_segmenter_s_target(wide: Page, several: str, cat: bytes) -> None:
    wide.locator("#model").select_option("segmenter")
    take(wide, cat)
    explained(wide)
    wide.locator("#mark").click()
    wide.wait_for_function("() => location.hash.includes('box=')")
    explained(wide)
    box = [int(edge) for edge in state(wide)["box"].split(",")]
    assert len(box) == 4
    target = f'{{"box":{box}}}'
    theirs = served(several, cat, model="segmenter", fit="auto", output="overlay", target=target)
    shown = drawn(wide)
    for edge in (box[0], box[2]):  # the service draws the box; the page shows it over the picture
        theirs[:, edge - 4 : edge + 5] = shown[:, edge - 4 : edge + 5]
    for edge in (box[1], box[3]):
        theirs[edge - 4 : edge + 5] = shown[edge - 4 : edge + 5]
    assert is_alike(shown, theirs)


def test_what_is_painted_is_a_segmenter_s_mask(wide: Page, several: str, cat: bytes) -> None:
    wide.locator("#model").select_option("segmenter")
    take(wide, cat)
    explained(wide)
    wide.locator("#mark").click()
    wide.locator("#paint").click()
    area = wide.locator("#brush").bounding_box()
    assert area
    wide.evaluate(KEEP_FORM)
    wide.mouse.move(area["x"] + 0.2 * area["width"], area["y"] + 0.3 * area["height"])
    wide.mouse.down()
    wide.mouse.move(area["x"] + 0.4 * area["width"], area["y"] + 0.3 * area["height"], steps=5)
    wide.mouse.up()
    explained(wide)
    wide.wait_for_function("() => window.sentTarget")
    target = json.loads(wide.evaluate("() => window.sentTarget"))
    explained(wide)
    mask = pixels_of(base64.b64decode(target["mask"]["b64"]))[..., 0] > 127
    height, width = pixels_of(cat).shape[:2]
    assert mask.shape == (height, width)
    assert mask[int(0.3 * height), int(0.3 * width)]
    assert not mask[int(0.3 * height), int(0.6 * width)]
    with Client(several, model="segmenter") as client:
        theirs = client.explain(
            cat, fit="auto", target=target, output="overlay", opacity="heat", colormap="inferno"
        )
    assert is_alike(drawn(wide), pixels_of(theirs.overlay))


def test_the_tour_explains_on_the_page_in_five_steps(page: Page, cat: bytes) -> None:
    page.locator("#tour").click()  # without a photo it takes the first example
    step = page.locator(".tour")
    expect(step).to_contain_text("1 of 5: capture")
    expect(page.locator(".channels canvas").first).to_be_visible()
    first = page.locator(".channels").inner_text()
    page.locator("#next").click()
    expect(step).to_contain_text("2 of 5: gradient")
    expect(page.locator(".channels")).not_to_have_text(first)
    page.locator("#next").click()
    page.wait_for_function("() => location.hash.includes('view=heat')")
    page.locator("#next").click()
    page.wait_for_function("() => location.hash.includes('view=overlay')")
    page.locator("#next").click()
    expect(step).to_contain_text("5 of 5: judge")
    expect(page.locator("#scores")).to_contain_text("deletion", timeout=4 * READY)
    page.locator("#next").click()
    expect(step).to_have_count(0)


PLACES = {
    "capture": "section:has(#inside-heading)",
    "gradient": "section:has(#inside-heading)",
    "sum": ".stage",
    "place": ".stage",
    "judge": "section:has(#judge-heading)",
}
"""What each step of the tour speaks of."""
OUTLINED = """
selector => {
  const card = document.querySelector(".tour").getBoundingClientRect();
  const place = document.querySelector(selector), { top } = place.getBoundingClientRect();
  const others = [...document.querySelectorAll("main section, main .stage")];
  others.splice(others.indexOf(place), 1);
  const isOutlined = (each) => getComputedStyle(each).outlineStyle === "solid";
  return isOutlined(place) && !others.some(isOutlined)
    && card.top >= 0 && card.bottom < innerHeight && top >= 0 && top < innerHeight - 40
    && (top >= card.bottom || place.getBoundingClientRect().left >= card.right);
}
"""
"""Whether the place alone is marked, and stands in the window with the tour's card."""


@pytest.mark.parametrize(("width", "height"), [(390, 844), (1280, 800)])
def test_the_tour_shows_what_it_speaks_of_and_leaves_the_focus(
    page: Page, cat: bytes, width: int, height: int
) -> None:
    page.set_viewport_size({"width": width, "height": height})
    page.emulate_media(reduced_motion="reduce")
    take(page, cat)
    explained(page)
    page.locator("#tour").focus()
    page.keyboard.press("Enter")
    for number, (title, selector) in enumerate(PLACES.items()):
        expect(page.locator(".tour")).to_contain_text(f"{number + 1} of 5: {title}")
        page.wait_for_function(OUTLINED, arg=selector)
        expect(page.locator("#next" if number else "#tour")).to_be_focused()
        page.locator("#next").focus()
        if number < 4:
            page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    expect(page.locator(".tour")).to_have_count(0)
    expect(page.locator("#tour")).to_be_focused()
    page.keyboard.press("Enter")
    page.locator("#next").click()
    page.get_by_role("button", name="Back", exact=True).press("Enter")
    expect(page.locator("#next")).to_be_focused()
    page.get_by_role("button", name="End the tour").click()
    assert page.locator("main[data-tour]").count() == 0
