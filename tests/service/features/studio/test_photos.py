"""Photos that are chosen together: bad files leave, and good ones stay."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Page, expect

from tests.service.features.studio.browsing import browses, explained, state, take

pytestmark = [browses, pytest.mark.slow]

BAD = [b"no photo", b"no photo either"]
ORDERS = ["bgg", "gbg", "ggb", "bbg", "bgb", "gbb", "bb"]
"""Orders in which bad files and good ones are chosen together."""

LATE = """
() => {
  const plain = window.fetch, held = new Promise((done) => { window.release = done; });
  window.fetch = async (path, init) => {
    if (init?.body instanceof Blob && init.body.size < 100) await held;
    return plain(path, init);
  };
}
"""
"""Holds what is asked about bad files until all files are in the strip."""
EARLY = """
() => {
  let begun = 0, refused = 0, wake = [];
  const plain = window.fetch, digest = crypto.subtle.digest.bind(crypto.subtle);
  window.fetch = async (path, init) => {
    const answer = await plain(path, init);
    if (answer.status === 422) {
      refused++;
      setTimeout(() => { for (const each of wake.splice(0)) each(); });
    }
    return answer;
  };
  crypto.subtle.digest = async (kind, bytes) => {
    if (bytes.byteLength < 100) begun++;
    else while (refused < begun) await new Promise((done) => wake.push(done));
    return digest(kind, bytes);
  };
}
"""
"""Holds each good file until the bad files before it are refused."""


def mixed(order: str, good: list[bytes]) -> tuple[list[bytes], list[str], list[str]]:
    """Files in an order, and the names of the bad and of the good ones."""
    left = {"b": list(BAD), "g": list(good)}
    names = [f"photo{number or ''}.png" for number in range(len(order))]
    bad, fine = (
        [name for name, each in zip(names, order, strict=True) if each == kind] for kind in "bg"
    )
    return [left[each].pop(0) for each in order], bad, fine


@pytest.mark.parametrize("script", [None, EARLY, LATE], ids=["free", "early", "late"])
@pytest.mark.parametrize("order", ORDERS)
def test_bad_files_are_named_and_good_ones_stay(
    page: Page, cat: bytes, espresso: bytes, order: str, script: str | None
) -> None:
    expect(page.locator("#runs")).to_contain_text("efficientnet-lite0")
    files, bad, good = mixed(order, [cat, espresso])
    if script:
        page.evaluate(script)
    take(page, *files)
    if script == LATE:
        expect(page.locator(".thumbnail")).to_have_count(len(files))
        page.evaluate("() => window.release()")
    problem = page.locator("#problem")
    for name in bad:
        expect(problem).to_contain_text(f"{name}: ")
    for name in good:
        expect(problem).not_to_contain_text(f"{name}: ")
    expect(page.locator(".thumbnail")).to_have_count(len(good))
    if not good:
        expect(page.locator(".invitation")).to_be_visible()
        return
    explained(page)
    shown = page.locator(".thumbnail button[aria-pressed=true]")
    expect(shown).to_have_attribute("aria-label", good[0])
    expect(page.locator("#classes button").first).to_contain_text("Egyptian cat")
    for name in bad:  # its sentence outlives the map that comes in its place
        expect(problem).to_contain_text(f"{name}: ")


@pytest.mark.parametrize("script", [EARLY, LATE], ids=["early", "late"])
def test_the_first_good_one_is_shown_beside_photos_that_were_there(
    page: Page, cat: bytes, espresso: bytes, script: str
) -> None:
    take(page, espresso, name="before")
    explained(page)
    page.evaluate(script)
    take(page, BAD[0], cat)
    if script == LATE:
        expect(page.locator(".thumbnail")).to_have_count(3)
        page.evaluate("() => window.release()")
    expect(page.locator(".thumbnail")).to_have_count(2)
    expect(page.locator("#classes button").first).to_contain_text("Egyptian cat")
    expect(page.locator("#problem")).to_contain_text("photo.png: ")


def test_a_file_that_the_browser_cannot_read_leaves_the_others(
    page: Page, cat: bytes, espresso: bytes
) -> None:
    """Such as one that has gone."""
    page.evaluate(
        """() => {
            const plain = Blob.prototype.arrayBuffer;
            Blob.prototype.arrayBuffer = function () {
                return this.size < 100 ? Promise.reject(new DOMException("gone", "NotFoundError"))
                    : plain.call(this);
            };
        }"""
    )
    take(page, BAD[0], cat, espresso)
    expect(page.locator(".thumbnail")).to_have_count(2)
    explained(page)
    expect(page.locator("#problem p")).to_have_text(
        ["Left out: photo.png: the browser cannot read this file.", "The other 2 photos are kept."]
    )


def test_a_folder_that_is_dropped_gives_its_photos(
    page: Page, tmp_path: Path, cat: bytes, espresso: bytes
) -> None:
    (tmp_path / "photos" / "cups").mkdir(parents=True)
    (tmp_path / "photos" / "cat.png").write_bytes(cat)
    (tmp_path / "photos" / "notes.txt").write_text("Not a photo.")
    (tmp_path / "photos" / "cups" / "cup.png").write_bytes(espresso)
    (tmp_path / "empty").mkdir()
    hand = page.context.new_cdp_session(page)

    def drop(folder: str) -> None:
        data = {"items": [], "files": [str(tmp_path / folder)], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            event = {"type": kind, "x": 400, "y": 300, "data": data}
            hand.send("Input.dispatchDragEvent", event)

    expect(page.locator("#runs")).to_contain_text("efficientnet-lite0")
    drop("empty")
    expect(page.locator("#problem")).to_have_text("There is no photo in the folder.")
    drop("photos")
    expect(page.locator(".thumbnail")).to_have_count(2)
    explained(page)
    expect(page.locator("#problem")).to_be_hidden()
    titles = [each.get_attribute("title") for each in page.locator(".thumbnail [title]").all()]
    assert {"cat.png", "cup.png"} <= set(titles)
    many = tmp_path / "many"
    many.mkdir()
    for number in (10, 2, 1, 9, 11, 3):
        Image.new("RGB", (32, 32), (number, 0, 0)).save(many / f"p{number}.png")
    drop("many")
    expect(page.locator(".thumbnail")).to_have_count(8)
    titles = [each.get_attribute("title") for each in page.locator(".thumbnail [title]").all()]
    numbers = [title for title in titles if title and title.startswith("p")]
    assert numbers == [f"p{number}.png" for number in (1, 2, 3, 9, 10, 11)]


def test_photos_stay_when_the_service_refuses_what_is_asked_of_them(
    page: Page, address: str, cat: bytes, espresso: bytes
) -> None:
    page.goto("about:blank")
    page.goto(f"{address}/#fit=diagonal")
    take(page, cat, espresso)
    expect(page.locator("#problem")).to_contain_text("fit is 'diagonal'")
    expect(page.locator(".thumbnail")).to_have_count(2)
    page.locator("#fit").select_option("pad")
    explained(page)
    expect(page.locator("#problem")).to_be_hidden()
    assert state(page)["fit"] == "pad"


def test_a_file_of_another_kind_is_left_out_as_no_photo(page: Page, cat: bytes) -> None:
    """Its media type is not sent: as JSON, for example, it would be read as a request."""
    take(page, b'{"x": 1}', cat, kind="application/json")
    expect(page.locator(".thumbnail")).to_have_count(1)
    expect(page.locator("#problem")).to_contain_text("photo.png: the 8 bytes are not a JPEG")
    take(page, b"", name="empty")
    expect(page.locator("#problem")).to_contain_text("empty.png: ")
    expect(page.locator(".thumbnail")).to_have_count(1)


def test_what_is_asked_of_a_photo_does_not_go_over_to_the_next(
    page: Page, cat: bytes, espresso: bytes
) -> None:
    take(page, cat, espresso)
    explained(page)
    page.locator("#classes button").nth(2).click()
    explained(page)
    assert "target" in state(page)
    page.locator(".thumbnail .remove").first.click()
    explained(page)
    expect(page.locator(".thumbnail")).to_have_count(1)
    assert "target" not in state(page)
    expect(page.locator("#told")).to_contain_text("espresso")
