"""What one sees on the page, asks it and takes along."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
from io import BytesIO
from pathlib import Path

import httpx2
import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, Locator, Page, Route, expect

from cam import METHODS
from cam.drawing.overlay import colorize
from cam.drawing.placement import Box, place
from service.features.keys.keys import new_key
from tests.service.conftest import encoded, noise
from tests.service.features.studio.browsing import (
    READY,
    Pixels,
    browses,
    drawn,
    explained,
    first_of,
    holding,
    is_alike,
    judged,
    pixels_of,
    served,
    state,
    take,
)
from tests.service.live import serving
from tests.waiting import until

pytestmark = [browses, pytest.mark.slow]
PLACE = "/v1/models/{model}"


def test_a_sample_is_explained_by_one_click(page: Page) -> None:
    page.get_by_role("button", name="a cat").click()
    explained(page)
    expect(page.locator("#classes button").first).to_contain_text("Egyptian cat")


def test_what_a_method_works_with_and_its_paper_are_named(page: Page) -> None:
    page.get_by_role("button", name="a cat").click()
    explained(page)
    told = page.locator("#method-from")
    expect(told).to_have_text(
        'It works with gradients at a layer. Paper: Selvaraju et al., "Grad-CAM: Visual '
        'Explanations from Deep Networks via Gradient-based Localization", ICCV 2017, '
        "equations 1 and 2."
    )
    for method, family in {
        "eigencam": "the components of a layer's activations",
        "occlusion": "changes of the photo or of a layer",
        "gradient": "gradients at the photo's pixels",
    }.items():
        page.locator("#method").select_option(method)
        expect(told).to_contain_text(f"It works with {family}. Paper: {METHODS[method].paper}.")


def test_a_ready_view_of_an_example_is_one_click(page: Page, address: str) -> None:
    page.get_by_role("button", name="Why drilling platform and not missile?").click()
    explained(page)
    expect(page.locator("#told")).to_contain_text("Why “drilling platform” and not “missile”")
    assert (state(page)["target"], state(page)["minus"]) == ("540", "657")
    example = page.locator("#example")
    expect(example).to_contain_text("Look what it takes for a platform")
    expect(example.locator("button[aria-pressed=true]")).to_contain_text(
        "drilling platform and not"
    )
    example.get_by_role("button", name="What speaks against missile?").click()
    expect(page.locator("#told")).to_contain_text("What speaks against “missile”")
    explained(page)
    assert "minus" not in state(page)
    assert np.ptp(drawn(page)) > 0
    expect(page.locator(".stage .warning")).to_have_count(0)  # something does speak against it


def test_every_example_has_a_sentence_and_views(page: Page) -> None:
    expect(page.locator("#runs")).to_contain_text("efficientnet-lite0")
    examples = page.locator(".samples > li")
    expect(examples).to_have_count(3)
    for number in range(3):
        expect(examples.nth(number).locator("p")).to_contain_text("Look ")
        expect(examples.nth(number).locator(".views button")).to_have_count(3)
    page.get_by_role("button", name="All methods compared").click()
    expect(page.locator(".grid canvas").nth(14)).to_be_visible()
    expect(page.locator("#compare-heading")).to_be_in_viewport()


def test_a_view_that_the_model_cannot_show_is_not_offered(page: Page, address: str) -> None:
    def without(route: Route) -> None:
        answer = route.fetch()
        told = answer.json()
        told["labels"][281] = "another cat"
        route.fulfill(response=answer, json=told)

    page.route("**/v1/models/efficientnet-lite0", without)
    page.goto("about:blank")
    page.goto(address)
    expect(page.get_by_role("button", name="Why espresso and not cup?")).to_be_visible()
    assert page.get_by_role("button", name="Why Egyptian cat and not tabby?").count() == 0
    assert page.get_by_role("button", name="A finer map").count() == 1


@pytest.mark.parametrize("opacity", ["heat", "0.5"])
@pytest.mark.parametrize("fit", ["squash", "crop"])
def test_the_picture_is_the_service_s(
    page: Page, address: str, cat: bytes, fit: str, opacity: str
) -> None:
    page.goto("about:blank")  # a page that is open would write its own opacity into the address
    page.goto(f"{address}#opacity={opacity}")
    take(page, cat)
    explained(page)
    page.locator("#fit").select_option(fit)
    explained(page)
    page.wait_for_function(f"() => location.hash.includes('fit={fit}')")
    theirs = served(address, cat, fit=fit, output="overlay", opacity=opacity)
    page.wait_for_timeout(300)
    assert is_alike(drawn(page), theirs)
    page.get_by_label("Evidence for and against").check()
    page.wait_for_timeout(300)
    explained(page)
    page.wait_for_timeout(300)
    theirs = served(address, cat, fit=fit, output="overlay", opacity=opacity, signed="true")
    assert is_alike(drawn(page), theirs)


def test_the_opacity_follows_the_heat_until_the_slider_is_moved(page: Page, cat: bytes) -> None:
    take(page, cat)
    explained(page)
    follows = page.get_by_label("follows the heat")
    expect(follows).to_be_checked()
    assert state(page)["opacity"] == "heat"
    page.locator("#opacity").fill("0.5")
    expect(follows).not_to_be_checked()
    assert state(page)["opacity"] == "0.5"
    constant = drawn(page)
    follows.check()
    followed = drawn(page)
    changed, less = (np.abs(each - pixels_of(cat)).max(2) for each in (constant, followed))
    assert (less <= 1).sum() > 2 * (changed <= 1).sum()
    assert less.mean() < changed.mean()
    follows.uncheck()
    assert (drawn(page) == constant).all()


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


def test_any_class_is_found_by_its_name_and_explained(page: Page, cat: bytes) -> None:
    take(page, cat)
    explained(page)
    page.locator("#search").fill("espresso")
    page.get_by_role("button", name="espresso", exact=True).click()
    page.wait_for_function("() => location.hash.includes('target=967')")
    page.locator("#search").fill("no such thing")
    expect(
        page.get_by_text("No class has “no such thing” in its name or in its synonyms.")
    ).to_be_visible()


def test_a_class_is_contrasted_with_another(page: Page, address: str, cat: bytes) -> None:
    take(page, cat)
    explained(page)
    page.locator("#minus").select_option("282")
    page.wait_for_function("() => location.hash.includes('minus=282')")
    explained(page)
    page.wait_for_timeout(300)
    target = json.dumps({"index": 285, "minus": 282})
    theirs = served(address, cat, fit="squash", output="overlay", target=target)
    assert is_alike(drawn(page), theirs)


def test_a_class_that_is_not_predicted_is_searched_for_a_contrast(page: Page, cat: bytes) -> None:
    take(page, cat)
    explained(page)
    orca = page.locator("#minus option", has_text="killer whale")
    expect(orca).to_have_count(0)
    page.locator("#search").fill("orca")
    page.locator("#minus").select_option("killer whale (orca)")
    expect(page.locator("#told")).to_contain_text("Why “Egyptian cat” and not “killer whale”")
    expect(orca).to_have_text("killer whale")
    assert (state(page)["target"], state(page)["minus"]) == ("285", "148")
    page.locator("#search").fill("")
    expect(page.locator("#minus")).to_have_value("148")


def test_what_is_shown_is_said_in_one_sentence(page: Page, cat: bytes) -> None:
    take(page, cat)
    explained(page)
    told = page.locator("#told")
    sentence = "Why “Egyptian cat” gradcam at bn2, the whole photo, squashed."
    expect(told).to_have_text(f"{sentence} No warning, not judged yet")
    page.locator("#minus").select_option("282")
    expect(told).to_contain_text("Why “Egyptian cat” and not “tiger cat”")
    page.get_by_label("What speaks against it").check()
    expect(told).to_contain_text("What speaks against “Egyptian cat” and not “tiger cat”")
    page.locator("#fit").select_option("crop")
    expect(told).to_contain_text("a centre crop")


def test_no_photo_stands_under_the_map_of_another_one(
    page: Page, cat: bytes, espresso: bytes
) -> None:
    take(page, cat, espresso)
    expect(page.locator(".thumbnail")).to_have_count(2)
    explained(page)
    with holding(page, "**/v1/models/*:explain**") as held:
        page.keyboard.press("n")
        expect(page.locator(".right")).to_have_attribute("aria-busy", "true")
        expect(page.locator("#told")).to_have_count(0)
        expect(page.locator("#classes button")).to_have_count(0)
        photo = pixels_of(espresso)
        until(lambda: drawn(page).shape == photo.shape)  # once it is decoded
        assert is_alike(drawn(page), photo)
        first_of(page, held).fulfill(status=500, body="{}")
        expect(page.locator(".right")).to_have_attribute("aria-busy", "false")
        expect(page.locator("#told")).to_have_count(0)


def test_the_model_that_is_chosen_last_is_the_pages(page: Page, cat: bytes) -> None:
    """Also if the service describes the one before it later."""
    take(page, cat)
    explained(page)
    first = page.evaluate("() => fetch('v1/models').then((all) => all.json())")["models"][0]
    page.route("**/v1/models", lambda route: route.fulfill(json={"models": [first, "slow"]}))
    page.reload()
    explained(page)
    with holding(page, "**/v1/models/slow**") as held:
        with page.expect_request("**/v1/models/slow"):
            page.locator("#model").select_option("slow")
        page.locator("#model").select_option(first)
        explained(page)
        description = page.evaluate(f"() => fetch('v1/models/{first}').then((it) => it.json())")
        first_of(page, held).fulfill(json=description | {"name": "slow", "layers": []})
    expect(page.locator("#runs")).to_contain_text(first)
    page.locator("#classes button").nth(1).click()
    explained(page)
    expect(page.locator("#told")).to_contain_text("tiger cat")


def test_the_map_is_judged_only_where_the_service_can(page: Page, cat: bytes) -> None:
    take(page, cat)
    explained(page)
    expect(page.locator("#judge")).to_be_visible()
    page.get_by_label("What speaks against it").check()
    explained(page)
    expect(page.locator("#judge")).to_have_count(0)
    expect(page.locator("#judge-it")).to_have_count(0)


def test_what_changes_nothing_keeps_the_scores(page: Page, cat: bytes) -> None:
    take(page, cat)
    explained(page)
    page.locator("#classes button").first.click()
    explained(page)
    judged(page)
    page.locator("#classes button").first.click()
    expect(page.locator("#scores")).to_be_visible()


@pytest.mark.parametrize("key", ["Enter", " ", "o"])
def test_the_photo_is_shown_as_long_as_a_key_is_held(page: Page, cat: bytes, key: str) -> None:
    take(page, cat)
    explained(page)
    overlay, photo = drawn(page), pixels_of(cat)
    button = page.get_by_role("button", name="Hold to see the photo")
    button.focus()
    page.keyboard.down(key)
    assert is_alike(drawn(page), photo)
    page.keyboard.up(key)
    assert is_alike(drawn(page), overlay)
    page.keyboard.down(key)
    page.locator("#search").focus()  # the key is let go elsewhere
    page.keyboard.up(key)
    assert is_alike(drawn(page), overlay)


def test_what_is_chosen_stands_above_the_fold(page: Page, cat: bytes) -> None:
    page.set_viewport_size({"width": 1280, "height": 800})
    take(page, cat)
    explained(page)
    for name in ("#told", "#verdict", "#picture", "#classes", "#model", "#method", "#layer"):
        box = page.locator(name).bounding_box()
        assert box
        assert box["y"] + box["height"] <= 800, name


def test_the_verdict_stands_above_the_map(page: Page, cat: bytes) -> None:
    take(page, cat)
    explained(page)
    expect(page.locator("#verdict")).to_have_text("No warning, not judged yet")
    page.locator("#verdict").click()
    expect(page.locator("#warnings-heading")).to_be_focused()
    expect(page.locator("#warnings-heading")).to_be_in_viewport()
    page.locator("#method").select_option("eigencam")
    explained(page)
    expect(page.locator("#verdict")).to_have_text("1 warning, not judged yet")
    judged(page)
    verdicts = page.locator("#scores small").filter(has_text=re.compile("chance"))
    expect(page.locator("#verdict")).to_contain_text(verdicts.first.inner_text())


def test_the_comparison_stands_beside_the_map_on_a_wide_screen(page: Page, cat: bytes) -> None:
    page.set_viewport_size({"width": 1920, "height": 1080})
    take(page, cat)
    explained(page)
    picture, compared, classes = (
        page.locator(name).bounding_box() for name in ("#picture", "#compare-heading", "#classes")
    )
    assert picture
    assert compared
    assert classes
    assert compared["y"] < 1080
    assert picture["x"] + picture["width"] <= compared["x"] < classes["x"]
    assert picture["x"] < 100
    assert classes["x"] + classes["width"] > 1820


def test_improbable_classes_are_folded_away(page: Page, cat: bytes) -> None:
    take(page, cat)
    explained(page)
    rows, more = page.locator("#classes button"), page.locator("#more")
    shares = [float(text) for text in rows.locator(".number").all_inner_texts()]
    assert 0 < len(shares) < 10
    assert min(shares) >= 0.005
    expect(more).to_have_text(f"Show {10 - len(shares)} more, below 0.5 %")
    page.locator("h1").click()
    page.keyboard.press("9")  # it is explained, and so it is shown
    expect(rows.nth(len(shares))).to_have_attribute("aria-pressed", "true")
    expect(rows.nth(len(shares)).locator(".key")).to_have_text("9")
    more.click()
    expect(rows).to_have_count(10)
    more.click()
    expect(rows).to_have_count(len(shares) + 1)


def test_a_class_is_found_by_its_synonyms(page: Page, address: str, cat: bytes) -> None:
    synonyms = httpx2.get(f"{address}{PLACE.format(model='efficientnet-lite0')}").json()["synonyms"]
    assert synonyms["orca"] == [148]
    take(page, cat)
    explained(page)
    page.locator("#search").fill("Orca")
    page.get_by_role("button", name="killer whale (orca)", exact=True).click()
    page.wait_for_function("() => location.hash.includes('target=148')")
    page.locator("#search").fill("t-shirt")  # a synonym is matched without its hyphen
    expect(page.locator("#classes button").first).to_contain_text("t shirt")
    page.locator("#search").fill("Crane")  # the label of a machine, and a synonym of a bird
    expect(page.locator("#classes .label")).to_have_text(["crane bird", "crane"])


def test_what_is_known_of_a_map_is_said(page: Page, cat: bytes) -> None:
    take(page, cat)
    explained(page)
    warnings = page.locator("section", has=page.get_by_role("heading", name="Before you believe"))
    expect(warnings).to_contain_text("Known: no check of the service")
    expect(warnings).to_contain_text("Not known: whether the hot places matter to the model.")
    expect(warnings).to_contain_text("The map is not judged yet.")
    expect(warnings).not_to_contain_text(" ms")
    expect(page.locator("#time")).to_contain_text(" ms")
    page.locator("#judge-it").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#judge-heading")).to_be_focused()
    expect(page.locator("#judged li")).to_have_count(3, timeout=4 * READY)
    verdict = page.locator("#scores tr", has_text="insertion").locator("small").last.inner_text()
    expect(page.locator("#judged")).to_contain_text(f"insertion: {verdict}")
    expect(warnings).not_to_contain_text("not judged")
    page.locator("#classes button").nth(1).click()
    expect(warnings).to_contain_text("The map is not judged yet.")  # the verdict was another map's
    page.get_by_role("button", name="Remove photo").click()
    take(page, encoded(noise(300, 200)), name="noise")
    explained(page)
    first = page.locator("#classes .label").first.inner_text()
    expect(warnings).to_contain_text(
        f"The model is unsure: its first class, {first}, has the probability 0."
    )


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


def test_a_class_that_is_chosen_keeps_the_focus(page: Page, cat: bytes) -> None:
    take(page, cat)
    explained(page)
    page.locator("#classes button").nth(1).focus()
    page.keyboard.press("Enter")
    chosen = page.locator("#classes button[aria-pressed=true]")
    expect(page.locator("#classes button").nth(1)).to_have_attribute("aria-pressed", "true")
    expect(chosen).to_be_focused()


def test_back_and_forward_go_from_place_to_place(page: Page, address: str, espresso: bytes) -> None:
    page.get_by_role("button", name="a cat").click()
    explained(page)
    take(page, espresso)
    expect(page.locator(".thumbnail")).to_have_count(2)
    explained(page)
    page.locator("#classes button").nth(1).click()
    explained(page)
    second, places = state(page), page.evaluate("history.length")
    page.locator("#opacity").fill("0.3")
    page.locator("#threshold").fill("0.4")
    assert page.evaluate("history.length") == places, "a look is no place"
    page.get_by_role("button", name="Work").click()
    expect(page.locator("#drift")).to_be_visible()
    page.keyboard.press("?")
    keys = page.locator("dialog[open]")
    expect(keys).to_have_count(1)
    page.go_back()
    expect(keys).to_have_count(0)
    assert state(page)["room"] == "work"
    page.go_back()
    explained(page)
    assert state(page) == {**second, "opacity": "0.3", "threshold": "0.4"}
    shown = page.locator("#picture")
    page.go_back()
    expect(shown).to_have_attribute("aria-label", re.compile("^cat.jpg: "))
    explained(page)
    assert state(page)["photo"] == "cat"
    assert "target" not in state(page)
    page.go_forward()
    expect(shown).to_have_attribute("aria-label", re.compile("^photo.png: "))
    explained(page)
    assert state(page)["target"] == second["target"]
    page.reload()
    expect(shown).to_have_attribute("aria-label", re.compile("^photo.png: "))
    explained(page)
    assert state(page)["target"] == second["target"]
    page.go_back()  # the strip does not have that photo any more
    expect(shown).to_have_attribute("aria-label", re.compile("^cat.jpg: "))
    page.go_back()
    expect(page.locator(".samples")).to_be_visible()
    assert page.url.startswith(address)


def test_what_stands_over_the_page_is_closed_to_where_one_was(page: Page) -> None:
    page.get_by_role("button", name="a cat").click()
    explained(page)
    page.locator("#tour").click()
    heading = page.locator("#tour-heading")
    expect(heading).to_contain_text("1 of 5")
    page.locator("#next").click()
    expect(heading).to_contain_text("2 of 5")
    page.go_back()
    expect(heading).to_contain_text("1 of 5")
    page.go_back()
    expect(heading).to_have_count(0)
    page.get_by_role("button", name="Keyboard shortcuts").click()
    keys = page.locator("dialog[open]")
    with page.expect_event("framenavigated"):
        keys.get_by_role("button", name="Close").click()
    expect(keys).to_have_count(0)
    page.go_back()
    expect(page.locator(".samples")).to_be_visible()


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


def test_a_link_to_an_example_opens_in_a_browser_that_never_saw_it(
    browser: Browser, page: Page
) -> None:
    page.get_by_role("button", name="a cup of coffee").click()
    explained(page)
    page.locator("#classes button").nth(1).click()
    page.wait_for_function("() => location.hash.includes('target=')")
    explained(page)
    before = drawn(page)
    assert state(page)["photo"] == "coffee"
    with browser.new_context().new_page() as other:  # with a storage of its own
        other.set_default_timeout(READY)
        other.goto(page.url)
        explained(other)
        expect(other.locator("#classes button").nth(1)).to_have_attribute("aria-pressed", "true")
        expect(other.locator("#note")).to_be_hidden()
        assert np.abs(drawn(other) - before).max() <= 1
        assert state(other) == state(page)


def test_an_example_that_cannot_be_fetched_is_told(page: Page) -> None:
    page.route("**/studio/cat.jpg", lambda route: route.abort())
    page.get_by_role("button", name="a cat").click()
    expect(page.locator("#problem")).to_have_text("The service does not answer.")


@pytest.mark.parametrize("page_says", ["<html>", "", "{"])
def test_what_is_no_answer_is_told_in_a_sentence(page: Page, cat: bytes, page_says: str) -> None:
    """As from a proxy in between: no message of JavaScript reaches the reader."""
    page.route("**/v1/models/*:explain**", lambda route: route.fulfill(body=page_says))
    take(page, cat)
    expect(page.locator("#problem")).to_have_text(
        "photo.png: The page could not read what the service answered."
    )
    page.unroute("**/v1/models/*:explain**")
    page.route("**/v1/models/*:explain**", lambda route: route.fulfill(status=500, body=page_says))
    page.locator("#method").select_option("layercam")
    expect(page.locator("#problem")).to_have_text(
        "photo.png: The service answered with status 500, and gave no reason."
    )
    expect(page.locator(".thumbnail")).to_have_count(1)


@pytest.mark.parametrize("word", ["__proto__", "constructor", "unheard-of"])
def test_a_link_may_say_anything(page: Page, address: str, cat: bytes, word: str) -> None:
    """What is not known is the default, names that every object of JavaScript has included."""
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto("about:blank")
    page.goto(f"{address}/#photo={word}&colours={word}&view={word}&word_method={word}")
    take(page, cat)
    explained(page)
    assert np.ptp(drawn(page)) > 0
    assert errors == []
    assert state(page)["view"] == "overlay"
    assert "colours" not in state(page)


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


def test_a_method_of_many_passes_counts_them(page: Page, cat: bytes) -> None:
    take(page, cat)
    explained(page)
    page.locator("#method").select_option("occlusion")
    expect(page.locator("figure progress")).to_be_visible()
    expect(page.locator("#time")).to_contain_text("occlusion at")


def test_a_channel_is_explained_from_the_layer_s_gallery(page: Page, cat: bytes) -> None:
    take(page, cat)
    explained(page)
    page.get_by_role("button", name="by activation").click()
    channel = page.locator(".channels button").first
    expect(channel).to_be_visible(timeout=READY)
    number = channel.locator(".number").inner_text()
    channel.click()
    expect(page.get_by_text(f"Explained is channel {number} of bn2.")).to_be_visible()
    assert state(page)["unit"] == f"{number}@bn2"
    page.get_by_role("button", name="Back to the classes").click()
    assert "unit" not in state(page)


def test_feature_maps_are_the_layer_s_output_on_their_own_scale(
    page: Page, address: str, cat: bytes
) -> None:
    take(page, cat)
    explained(page)
    page.get_by_role("button", name="by activation").click()
    expect(page.locator(".channels canvas")).to_have_count(25)
    answer = httpx2.post(
        f"{address}/v1/models/efficientnet-lite0:activations",
        params={"fit": "squash"},
        content=cat,
        headers={"Content-Type": "image/png", "Accept": "application/x-npz"},
    )
    output = np.load(BytesIO(answer.content))["bn2.output"]
    assert page.get_by_text("Each map is scaled from its own least number").is_visible()
    height, width = pixels_of(cat).shape[:2]
    for number in (0, 24):
        channel = page.locator(".channels button").nth(number)
        values = output[int(channel.locator(".number").inner_text())]
        expect(channel.locator("small")).to_have_text(f"at most {values.max():.1f}")
        shown = shot(channel)
        scale = shown.shape[1] / width
        heat, _ = place(values, Box(0, 0, shown.shape[1], height * scale), *shown.shape[:2])
        scaled = (heat - heat.min()) / (heat.max() - heat.min())
        assert is_alike(shown, colorize(scaled, "viridis").astype(np.int16))
    page.locator("#over").check()
    page.wait_for_timeout(300)
    over = shot(channel)
    photo = Image.open(BytesIO(cat)).convert("RGB").resize(over.shape[1::-1])
    cold = scaled < 0.01
    assert cold.mean() > 0.1
    assert np.abs(over - np.asarray(photo)).max(2)[cold].mean() < 12, "cold places are the photo's"


def shot(channel: Locator) -> Pixels:
    """What the canvas of a feature map holds."""
    address = channel.locator("canvas").evaluate("canvas => canvas.toDataURL('image/png')")
    return pixels_of(base64.b64decode(address.partition(",")[2]))


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


def test_the_legend_says_what_the_numbers_mean(page: Page, cat: bytes) -> None:
    take(page, cat)
    explained(page)
    legend, ticks = page.locator("#legend"), page.locator(".ticks span")
    expect(ticks).to_have_text(["0", "0.5", "1"])
    expect(legend).to_have_text(
        "0 is the map's minimum, 1 its maximum: the higher, the more a place speaks for "
        "“Egyptian cat”."
    )
    page.locator("#bright").check()
    expect(legend).to_contain_text("1 its 99th percentile")
    page.locator("#bright").uncheck()
    page.get_by_label("Evidence for and against").check()
    expect(ticks).to_have_text(["−1", "0", "1"])
    expect(legend).to_contain_text("1 speaks most for “Egyptian cat”, −1 most against it")
    page.get_by_role("button", name="Contour").click()
    expect(legend).to_contain_text("what speaks for “Egyptian cat” by at least 0.5")
    page.get_by_role("button", name="Overlay").click()
    page.get_by_label("What speaks against it").check()
    expect(legend).to_contain_text("1 speaks most against “Egyptian cat”, −1 most for it")
    page.get_by_label("Evidence for and against").uncheck()
    expect(legend).to_contain_text("speaks against “Egyptian cat”")
    page.get_by_role("button", name="Contour").click()
    expect(legend).to_contain_text("The lines enclose what is at least 0.5")
    expect(ticks).to_have_count(0)
    page.get_by_role("button", name="Photo", exact=True).click()
    expect(legend).to_have_count(0)


def test_the_legend_s_colours_are_as_on_the_photo(page: Page, cat: bytes) -> None:
    """The grey ground shows where the photo would: with the same opacity."""
    take(page, cat)
    explained(page)
    bar = page.locator(".legend .bar canvas")

    def colours() -> Pixels:
        address = bar.evaluate("canvas => canvas.toDataURL('image/png')")
        return pixels_of(base64.b64decode(address.partition(",")[2]))

    ground = colours()[[0, 8], 0]
    assert ground.tolist() == [[160] * 3, [96] * 3], "what is cold is transparent, and not black"
    inferno = colorize(np.array([[1.0]], np.float32), "inferno")[0, 0].astype(np.float64)
    assert np.abs(colours()[0, -1] - (0.85 * inferno + 0.15 * 96)).max() <= 2
    expect(page.locator("#ground")).to_contain_text("where they show, the photo shows through")
    page.locator("#opacity").fill("0.5")
    assert np.abs(colours()[[0, 8], 0] - ground / 2).max() <= 2  # black, half transparent
    page.locator("#threshold").fill("0.5")
    assert colours()[[0, 8], 0].tolist() == ground.tolist()
    page.get_by_role("button", name="Heat").click()
    page.locator("#threshold").fill("0")
    assert np.abs(colours()[0, -1] - inferno).max() <= 1
    expect(page.locator("#ground")).to_have_count(0)


def test_a_layer_is_told_in_words(page: Page, cat: bytes) -> None:
    take(page, cat)
    explained(page)
    told = page.locator("#layer-told")
    expect(told).to_have_text(
        "bn2 is the last layer of the network with places, before they are pooled into one answer. "
        "It has 7 × 7 places, one for each 32 × 32 pixels of the 224 × 224 that the model gets."
    )
    page.locator("#layer").select_option("blocks.4")
    expect(told).to_contain_text("blocks.4 is the end of stage 4 of 5 of the network.")
    expect(told).to_contain_text("14 × 14 places, one for each 16 × 16 pixels")
    page.locator("#layer").select_option("blocks.4.0")
    expect(told).to_contain_text(
        re.compile(r"blocks\.4\.0 is number \d+ of the \d+ layers that have places")
    )
    page.locator("#layer").select_option("auto")
    page.locator("#method").select_option("refinecam")
    expect(told).to_contain_text("joins the maps of 4 layers: ")
    page.locator("#method").select_option("guidedbackprop")
    expect(told).to_contain_text("each pixel has a number of its own")


def test_the_link_s_button_says_that_the_photo_is_not_in_it(page: Page, cat: bytes) -> None:
    take(page, cat)
    explained(page)
    link = page.get_by_role("button", name="Copy a link to this view")
    expect(link).to_have_accessible_description(re.compile("^The photo is not in the link"))
    page.get_by_label("Remove photo.png").click()
    page.get_by_role("button", name="a cat").click()
    explained(page)
    expect(link).to_have_accessible_description(
        "The link opens this example, with this view, wherever the service can be reached."
    )


def test_neutral_places_of_a_signed_map_are_as_the_photo_is(
    page: Page, address: str, cat: bytes
) -> None:
    take(page, cat)
    explained(page)
    page.get_by_label("Evidence for and against").check()
    page.locator("#search").fill("espresso")  # the photo speaks for it, against it, and neither
    page.get_by_role("button", name="espresso", exact=True).click()
    expect(page.locator("#told")).to_contain_text("espresso")
    explained(page)
    asked = {"fit": "squash", "output": "mask", "signed": "true", "target": "967"}
    gray = served(address, cat, **asked)[..., 0]
    changed = np.abs(drawn(page) - pixels_of(cat)).max(2)
    neutral, strong = np.abs(gray - 127.5) < 2, np.abs(gray - 127.5) > 100
    assert neutral.sum() > 1000
    assert changed[neutral].max() <= 4
    assert np.median(changed[strong]) > 30


@pytest.mark.parametrize("view", ["overlay", "heat", "contour"])
def test_the_code_names_the_colours_where_the_service_has_others(
    page: Page, address: str, cat: bytes, view: str
) -> None:
    page.goto("about:blank")
    page.goto(f"{address}/#view={view}")
    take(page, cat)
    explained(page)
    code = page.locator("#code").inner_text()
    assert ("colormap=inferno" in code) == (view != "contour")
    sent = httpx2.post(
        (re.search("'(http[^']+)'", code) or [""])[1],
        content=cat,
        headers={"Content-Type": "image/png", "Accept": "image/png"},
    )
    if view != "contour":  # the service's lines have other pixels
        assert is_alike(drawn(page), pixels_of(sent.content))
    page.locator("#colours").select_option("turbo")
    expect(page.locator("#code")).not_to_contain_text("colormap")


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


def test_a_bad_file_among_good_ones_says_so_and_leaves(page: Page, cat: bytes) -> None:
    take(page, cat)
    explained(page)
    take(page, b"no photo", name="bad")
    expect(page.locator("#problem p")).to_have_text(
        [re.compile("^Left out: bad.png: the 8 bytes are not"), "The other photo is kept."]
    )
    expect(page.locator(".thumbnail")).to_have_count(1)
    page.locator("#fit").select_option("pad")
    explained(page)
    expect(page.locator("#problem")).to_be_hidden()


def test_a_bad_file_before_good_ones_says_so_and_they_are_shown(
    page: Page, cat: bytes, espresso: bytes
) -> None:
    """Chosen together: it is refused while the others are still read, here for two seconds."""
    page.evaluate(
        """() => {
            const digest = crypto.subtle.digest.bind(crypto.subtle);
            crypto.subtle.digest = async (kind, bytes) => {
                if (bytes.byteLength > 100) await new Promise((done) => setTimeout(done, 2000));
                return digest(kind, bytes);
            };
        }"""
    )
    take(page, b"no photo", cat, espresso)
    expect(page.locator(".thumbnail")).to_have_count(2)
    explained(page)
    expect(page.locator("#classes button").first).to_contain_text("Egyptian cat")
    expect(page.locator("#problem")).to_contain_text("photo.png: ")


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


def test_a_photo_that_the_browser_cannot_read_is_drawn_by_the_service(page: Page) -> None:
    tiff = encoded(noise(64, 48), "TIFF")
    take(page, tiff, kind="image/tiff")
    explained(page)
    expect(page.locator("#picture")).to_be_visible(timeout=READY)
    expect(page.locator("#note")).to_contain_text("cannot read")


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


def test_what_the_contract_lacks_is_not_offered(page: Page, address: str, cat: bytes) -> None:
    """As in a service whose features were deleted."""

    def fewer(route: Route) -> None:
        paths = route.fetch().json()
        gone = "/v1/jobs", "/v1/audits", f"{PLACE}:evaluate", f"{PLACE}:activations"
        route.fulfill(status=200, json=[path for path in paths if not path.startswith(gone)])

    work = page.get_by_role("button", name="Work", exact=True)
    headings = (f"#{name}-heading" for name in ("judge", "inside"))
    parts = [work, page.locator("#tour"), *map(page.locator, headings)]
    take(page, cat)
    explained(page)
    for part in parts:
        expect(part).to_be_visible()
    page.route("**/addresses.json", fewer)
    page.goto("about:blank")
    page.goto(address)
    take(page, cat)
    explained(page)
    for part in parts:
        expect(part).to_have_count(0)
    page.goto("about:blank")
    page.goto(f"{address}#room=work")
    expect(page.locator("#jobs-heading")).to_have_count(0)
    page.unroute("**/addresses.json")
    page.goto("about:blank")
    page.goto(f"{address}#room=work")
    expect(page.locator("#audit")).to_be_visible()


def test_methods_that_the_model_cannot_do_are_not_offered(page: Page) -> None:
    expect(page.locator("#runs")).to_contain_text("efficientnet-lite0")
    expect(page.locator("#method option[value=odam]")).to_be_disabled()
    expect(page.locator("#method option[value=gradcam]")).to_be_enabled()
    assert "detector" in (page.locator("#method option[value=odam]").get_attribute("title") or "")


def test_a_service_with_keys_is_asked_with_the_key_that_is_typed(
    browser: Browser, tmp_path: Path, cat: bytes
) -> None:
    key, entry = new_key("someone", ["explain"], None)
    (tmp_path / "keys.toml").write_text(entry)
    with (
        serving(GRADCAM_KEYS=str(tmp_path / "keys.toml")) as (_, http),
        browser.new_page() as page,
    ):
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


@pytest.mark.parametrize("width", [360, 390, 430, 480])
def test_the_title_stands_above_the_navigation_on_a_phone(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    title, navigation = (page.locator(each).bounding_box() for each in ("h1", "nav"))
    assert title
    assert navigation
    assert title["height"] < 70  # two lines
    assert title["y"] < navigation["y"]
    assert title["x"] + title["width"] <= width


@pytest.mark.parametrize(("width", "height"), [(320, 640), (360, 640), (1920, 1080)])
def test_nothing_is_wider_than_the_screen(page: Page, cat: bytes, width: int, height: int) -> None:
    page.set_viewport_size({"width": width, "height": height})
    take(page, cat)
    explained(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
