"""Questions on the page: the answer, its words and their maps."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from io import BytesIO
from typing import Any, Literal

import httpx2
import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, Route, expect

from cam.answers.methods import METHODS
from tests.service.conftest import encoded
from tests.service.features.studio.browsing import (
    READY,
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
from tests.service.live import ROOT

pytestmark = [browses, pytest.mark.slow]

MODELS = """
[[models]]
name = "shapes"
source = "embedded:shapes"

[[models]]
name = "efficientnet-lite0"
source = "embedded:efficientnet-lite0"
"""
PHOTO = (ROOT / "docs" / "shapes.png").read_bytes()
QUESTION = "What is in the picture?"

SLOW_LINES = """
() => {
  const plain = window.fetch;
  window.fetch = async (path, init) => {
    const answer = await plain(path, init);
    if (!String(path).includes(":answer")) return answer;
    let rest = "";
    const slow = new TransformStream({
      async transform(text, controller) {
        const lines = (rest + text).split("\\n");
        rest = lines.pop();
        for (const line of lines) {
          controller.enqueue(line + "\\n");
          await new Promise((resolve) => setTimeout(resolve, 300));
        }
      },
    });
    init.signal.addEventListener("abort", () => { window.aborted = true; });
    const body = answer.body.pipeThrough(new TextDecoderStream()).pipeThrough(slow);
    return new Response(body.pipeThrough(new TextEncoderStream()), answer);
  };
}
"""
"""Lets each line of an answer arrive 300 ms after the one before it."""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a service with a model that answers questions, and a classifier."""
    with serving_models(tmp_path_factory.mktemp("models"), MODELS) as address:
        yield address


@pytest.fixture
def asking(page: Page) -> Page:
    """The page with a photo and the model that answers."""
    take(page, PHOTO, name="shapes")
    page.locator("#model").select_option("shapes")
    expect(page.locator("#question")).to_be_visible()
    return page


def ask(page: Page, question: str = QUESTION) -> None:
    page.locator("#question").fill(question)
    page.keyboard.press("Enter")
    expect(page.locator("#words button").first).to_be_visible()


def word(page: Page, text: str) -> Any:
    return page.locator("#words button", has=page.get_by_text(text, exact=True))


def answered(address: str, **parameters: str) -> dict[str, Any]:
    response = httpx2.post(
        f"{address}/v1/models/shapes:answer",
        params={"question": QUESTION, **parameters},
        content=PHOTO,
        headers={"Content-Type": "image/png"},
        timeout=60,
    )
    (answer,) = response.json()["answers"]
    return dict(answer)


def theirs(address: str, **parameters: str) -> Any:
    """The picture of a word, as the service draws it."""
    return served(address, PHOTO, "shapes", "answer", **{"question": QUESTION, **parameters})


def test_the_answer_is_the_service_s_word_by_word(asking: Page, address: str) -> None:
    ask(asking)
    answer = answered(address)
    expect(asking.locator("#answer")).to_have_text(answer["text"])
    assert asking.locator("#words .said").all_inner_texts() == [
        each["text"] for each in answer["words"]
    ]
    for each, button in zip(answer["words"], asking.locator("#words button").all(), strict=True):
        told = button.get_attribute("aria-label") or ""
        assert told.startswith(f"{each['text']}, probability {each['probability']:.3f}, evidence ")
        nats = re.search(r"evidence (\S+) nats", told)
        assert nats
        assert abs(float(nats[1]) - each["evidence"]) <= 0.051
        assert ("said from language, not from the photo" in told) == each["from_language"]
        assert ("from language" in button.inner_text()) == each["from_language"]
    word(asking, "table").click()
    expect(asking.locator("#evidence")).to_contain_text("Said from language, not from the photo.")
    word(asking, "red").click()
    expect(asking.locator("#evidence")).not_to_contain_text("Said from language")
    others = [each["text"].strip() for each in answer["tokens"][1]["alternatives"]]
    assert asking.locator("#alternatives .label").all_inner_texts() == others
    expect(asking.locator("#time")).to_contain_text("tam")


def test_the_map_of_a_word_is_the_service_s(asking: Page, address: str) -> None:
    ask(asking)
    asked: list[str] = []
    asking.on("request", lambda request: asked.append(request.url))
    most = max(answered(address)["words"], key=lambda each: each["evidence"])["text"]
    assert is_alike(drawn(asking), theirs(address, word=most))
    word(asking, "circle").click()
    assert is_alike(drawn(asking), theirs(address, word="circle"))
    word(asking, "red").click(modifiers=["Shift"])
    expect(asking.locator("#word")).to_have_text("“red circle”")
    assert is_alike(drawn(asking), theirs(address, word="red circle"))
    phrase = answered(address, word="red circle")["words"][0]
    expect(asking.locator("#evidence")).to_contain_text(f"{phrase['probability']:.3f}")
    expect(asking.locator("#evidence")).to_contain_text(f"{phrase['evidence']:.1f} nats")
    word(asking, "blue").click()
    asking.locator("#opacity").fill("0.9")
    asking.locator("#colours").select_option("viridis")
    look = {"word": "blue", "opacity": "0.9", "colormap": "viridis"}
    assert is_alike(drawn(asking), theirs(address, **look))
    assert [url for url in asked if not url.startswith(("data:", "blob:"))] == []


def test_arrow_keys_choose_words(asking: Page) -> None:
    ask(asking)
    word(asking, "red").click()
    asking.keyboard.press("ArrowRight")
    expect(word(asking, "circle")).to_be_focused()
    expect(asking.locator("#word")).to_have_text("“circle”")
    asking.keyboard.press("Shift+ArrowLeft")
    expect(asking.locator("#word")).to_have_text("“red circle”")
    asking.keyboard.press("End")
    expect(asking.locator("#word")).to_have_text("“table”")
    expect(asking.locator("#words button[tabindex='0']")).to_have_count(1)


def test_every_method_is_there_and_asks_again(asking: Page, address: str) -> None:
    options = asking.locator("#word-method option")
    told = {one.get_attribute("value"): one.get_attribute("title") for one in options.all()}
    # The page asks for all words.
    assert told == {name: each.summary for name, each in METHODS.items() if each.of != "word"}
    ask(asking)
    word(asking, "square").click()
    for method in ("occlusion", "attention"):
        asking.locator("#word-method").select_option(method)
        expect(asking.locator("#time")).to_contain_text(method)
        expect(asking.locator("#word")).to_have_text("“square”")
        assert is_alike(drawn(asking), theirs(address, word="square", method=method))
    expect(asking.locator(".warnings")).to_contain_text("attention does not depend on the word")


def test_a_given_answer_is_explained_as_it_is(asking: Page, address: str) -> None:
    asking.locator("#given").fill("a green cross")
    ask(asking)
    expect(asking.locator("#answer")).to_have_text("a green cross")
    word(asking, "green").click()
    assert is_alike(drawn(asking), theirs(address, word="green", answer="a green cross"))


def test_tokens_appear_as_they_are_said_until_one_stops(asking: Page) -> None:
    asking.evaluate(SLOW_LINES)
    asking.locator("#question").fill(QUESTION)
    asking.locator("#ask").click()
    expect(asking.locator("#answer")).to_have_text(re.compile("^a red"))
    expect(asking.locator("#answer")).to_have_attribute("aria-busy", "true")
    asking.locator("#stop").click()
    expect(asking.locator("#stop")).to_be_disabled()
    expect(asking.locator("#question")).to_be_focused()
    assert asking.evaluate("window.aborted")
    until = asking.locator("#answer").inner_text()
    asking.wait_for_timeout(700)
    expect(asking.locator("#answer")).to_have_text(until)
    expect(asking.locator("#words")).to_have_count(0)
    asking.locator("#ask").click()
    expect(asking.locator("#words")).to_be_visible()


def test_another_photo_ends_the_answer_and_is_asked_the_same(asking: Page) -> None:
    asking.evaluate(SLOW_LINES)
    asking.locator("#question").fill(QUESTION)
    asking.keyboard.press("Enter")
    expect(asking.locator("#answer")).to_have_text(re.compile("^a red"))
    with Image.open(BytesIO(PHOTO)) as photo:
        mirrored = encoded(photo.transpose(Image.Transpose.FLIP_LEFT_RIGHT))
    take(asking, mirrored, name="mirrored")
    expect(asking.locator("#words")).to_be_visible()
    assert asking.evaluate("window.aborted")
    expect(asking.locator("#answer")).to_have_text(
        re.compile("^a blue square left of a red circle")
    )


def test_what_was_not_answered_is_said_as_the_service_says_it(asking: Page) -> None:
    asking.locator("#ask").click()
    expect(asking.locator("#problem")).to_have_text(
        "question is empty; ask one, as in 'what is in the picture?'"
    )
    asking.locator("#question").fill("What is a dragon?")
    asking.keyboard.press("Enter")
    expect(asking.locator("#problem")).to_contain_text("does not know 'dragon?'")
    expect(asking.locator(".thumbnail")).to_have_count(1)
    ask(asking)
    expect(asking.locator("#problem")).to_be_hidden()


def test_what_a_model_says_is_text_and_nothing_else(asking: Page, address: str) -> None:
    answer, markup = answered(address, output="values", normalize="none"), "<img src=x onerror=a()>"
    answer["text"] = markup
    answer["words"] = [{**answer["words"][1], "text": markup, "first_token": 0}]
    answer["tokens"] = [{**answer["tokens"][1], "text": markup}]
    for other in answer["tokens"][0]["alternatives"]:
        other["text"] = markup

    def say(route: Route) -> None:
        token = {"instance": 0, "number": 0, "token": answer["tokens"][0]}
        body = f"{json.dumps(token)}\n{json.dumps(answer)}\n"
        route.fulfill(body=body, content_type="application/x-ndjson")

    asking.route("**/v1/models/*:answer**", say)
    ask(asking)
    expect(asking.locator("#answer")).to_have_text(markup)
    expect(asking.locator("#word")).to_have_text(f"“{markup}”")
    expect(asking.locator("#alternatives .label").first).to_have_text(markup)
    assert asking.locator(".right img").count() == 0


def test_a_link_brings_question_and_word_back(asking: Page, address: str) -> None:
    ask(asking)
    word(asking, "square").click()
    asking.locator("#word-method").select_option("logits")
    expect(asking.locator("#time")).to_contain_text("logits")
    link, before = asking.url, drawn(asking)
    assert state(asking)["question"] == QUESTION
    asking.goto("about:blank")
    asking.goto(link)
    expect(asking.locator("#word")).to_have_text("“square”")
    expect(asking.locator("#question")).to_have_value(QUESTION)
    assert is_alike(drawn(asking), before)


def test_what_is_taken_along_draws_the_same(asking: Page) -> None:
    ask(asking)
    word(asking, "circle").click()
    address = (re.search("'(http[^']+)'", asking.locator("#code").inner_text()) or [""])[1]
    headers = {"Content-Type": "image/png", "Accept": "image/png"}
    picture = httpx2.post(address, content=PHOTO, headers=headers, timeout=60)
    assert is_alike(drawn(asking), pixels_of(picture.content))
    asking.get_by_role("button", name="Python").click()
    code = asking.locator("#code").inner_text()
    for said in ("client.answer(", f'question="{QUESTION}"', 'word="circle"', 'method="tam"'):
        assert said in code
    asking.locator("#words button").nth(5).click()
    expect(asking.get_by_text("The answer has “a” more than once")).to_be_visible()


def test_a_classifier_brings_the_usual_page_back(asking: Page, cat: bytes) -> None:
    expect(asking.locator("#compare")).to_have_count(0)
    expect(asking.locator("#classes")).to_have_count(0)
    ask(asking)
    asking.locator("#model").select_option("efficientnet-lite0")
    explained(asking)
    expect(asking.locator("#question")).to_have_count(0)
    for name in ("#compare", "#judge", "#method", "#tour"):
        expect(asking.locator(name)).to_be_visible()
    asking.locator("#model").select_option("shapes")
    expect(asking.locator("#words")).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_nothing_stands_in_the_way_of_a_question(
    browser: Browser, address: str, scheme: Literal["light", "dark"], width: int
) -> None:
    with browser.new_page(
        viewport={"width": width, "height": 800}, color_scheme=scheme, bypass_csp=True
    ) as page:
        page.set_default_timeout(READY)
        page.goto(f"{address}/#model=shapes")
        expect(page.locator("#question")).to_be_visible()
        assert violations(page) == []
        take(page, PHOTO)
        ask(page)
        word(page, "table").click()
        assert violations(page) == []
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= width
