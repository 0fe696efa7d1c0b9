"""Words of one's own on the page, for models that take them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from playwright.sync_api import Page, expect

from tests.service.features.studio.browsing import (
    browses,
    drawn,
    explained,
    is_alike,
    pixels_of,
    served,
    serving_models,
    state,
    take,
    violations,
)
from tests.zoo.image_text import image_processor, image_text_model, tokenizer

pytestmark = [browses, pytest.mark.slow]

MODELS = """
[[models]]
name = "clip"
source = "hf:clip"
prompts = ["a cat", "the remote control"]

[[models]]
name = "words"
source = "embedded:efficientnet-lite0-prompts"
prompts = ["a cat", "something to drink from"]

[[models]]
name = "efficientnet-lite0"
source = "embedded:efficientnet-lite0"
"""
CONTRAST = json.dumps({"text": 'a "dog"', "minus": "the true photo"})


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a service with a small CLIP, the embedded model of prompts, and a classifier."""
    folder = tmp_path_factory.mktemp("models")
    for part in (image_text_model("CLIP"), image_processor(), tokenizer()):
        part.save_pretrained(folder / "clip")
    with serving_models(folder, MODELS) as address:
        yield address


def ask(page: Page, text: str, minus: str = "") -> None:
    page.locator("#prompt").fill(text)
    page.locator("#minus-prompt").fill(minus)
    page.keyboard.press("Enter")
    page.wait_for_function(
        "minus => minus ? location.hash.includes('minus_text=') : location.hash.includes('&text=')",
        arg=minus,
    )
    expect(page.locator(".right")).to_have_attribute("aria-busy", "false")


def test_the_map_follows_the_words_and_the_code_makes_it(
    page: Page, address: str, cat: bytes, tmp_path: Path
) -> None:
    take(page, cat)
    explained(page)
    ask(page, "a dog")
    expect(page.locator("#told")).to_contain_text("Why “a dog”")
    theirs = served(address, cat, "clip", output="overlay", target='{"text": "a dog"}')
    assert is_alike(drawn(page), theirs)
    ask(page, 'a "dog"', "the true photo")
    expect(page.locator("#told")).to_contain_text('Why “a "dog"” and not “the true photo”')
    assert is_alike(drawn(page), served(address, cat, "clip", output="overlay", target=CONTRAST))
    (tmp_path / "photo.png").write_bytes(cat)
    for language in ("curl", "Python"):
        page.get_by_role("button", name=language, exact=True).click()
        code = page.locator("#code").inner_text()
        command = ["bash", "-c", code] if language == "curl" else [sys.executable, "-c", code]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
        assert is_alike(drawn(page), pixels_of((tmp_path / "overlay.png").read_bytes()))


def test_words_are_in_the_link_and_are_asked_of_the_next_photo(
    page: Page, cat: bytes, espresso: bytes
) -> None:
    take(page, cat)
    explained(page)
    ask(page, "a dog", "a cat")
    link, before = page.url, drawn(page)
    assert (state(page)["text"], state(page)["minus_text"]) == ("a dog", "a cat")
    page.goto("about:blank")
    page.goto(link)
    expect(page.locator("#prompt")).to_have_value("a dog")
    expect(page.locator("#minus-prompt")).to_have_value("a cat")
    expect(page.locator("#told")).to_contain_text("Why “a dog” and not “a cat”")
    assert is_alike(drawn(page), before)
    page.locator("#prompt").fill("not asked yet")
    page.locator("#method").select_option("gradcam++")
    expect(page.locator("#time")).to_contain_text("gradcam++ at")
    expect(page.locator("#prompt")).to_have_value("not asked yet")
    take(page, espresso, name="espresso")
    expect(page.locator("#picture")).to_have_attribute(
        "aria-label", "espresso.png: gradcam++, a dog and not a cat"
    )
    page.get_by_role("button", name="Back to the classes").click()
    explained(page)
    assert "text" not in state(page)
    expect(page.locator("#prompt")).to_have_value("")
    expect(page.locator("#told")).not_to_contain_text("dog")


def test_words_that_the_model_does_not_know_are_told_beside_them(page: Page, cat: bytes) -> None:
    take(page, cat)
    explained(page)
    said, problem = page.locator("#prompt-problem"), page.locator("#problem")
    ask(page, "xylophone")
    expect(said).to_contain_text("knows no word of 'xylophone'")
    expect(problem).to_be_hidden()
    expect(page.locator(".thumbnail")).to_have_count(1)
    expect(page.locator("#told")).to_have_count(0)  # no map of other words stays
    ask(page, "a dog")
    expect(page.locator("#told")).to_contain_text("Why “a dog”")
    expect(said).to_be_hidden()
    page.locator("#model").select_option("words")
    expect(page.locator("#runs")).to_contain_text("words on")
    ask(page, "qwertyuiop thing")
    expect(said).to_contain_text("names nothing that the model knows")


def test_only_models_that_take_words_are_asked_with_words(
    page: Page, address: str, cat: bytes
) -> None:
    take(page, cat)
    explained(page)
    ask(page, "a dog")
    assert httpx2.get(f"{address}/v1/models/clip").json()["takes_text"]
    listed = httpx2.get(f"{address}/v1/models").json()
    assert listed["models"] == ["clip", "words", "efficientnet-lite0"]
    assert listed["takes_text"] == ["clip", "words"]
    page.locator("#model").select_option("efficientnet-lite0")
    explained(page)
    expect(page.locator("#prompt")).to_have_count(0)
    assert "text" not in state(page)
    expect(page.locator("#problem")).to_be_hidden()
    takers = page.locator("#takers button")  # where words can be asked
    expect(takers).to_have_text(["clip", "words"])
    takers.first.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#prompt")).to_be_visible()
    expect(takers).to_have_count(0)
    assert state(page)["model"] == "clip"
    assert page.evaluate("document.activeElement !== document.body")


@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_stands_in_the_way_of_words(page: Page, cat: bytes, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    take(page, cat)
    explained(page)
    ask(page, "xylophone")
    expect(page.locator("#prompt-problem")).to_be_visible()
    assert violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
