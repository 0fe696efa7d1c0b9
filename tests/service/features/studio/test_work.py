"""Jobs, audits and drift on the page."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
import skimage.data
from PIL import Image, ImageEnhance, ImageOps
from playwright.sync_api import Browser, Page, Request, Route, expect

from service.features.studio.routes import BUILT
from tests.service.conftest import encoded, noise
from tests.service.features.studio.browsing import (
    READY,
    browses,
    explained,
    first_of,
    holding,
    state,
    take,
)
from tests.service.live import serving

pytestmark = [browses, pytest.mark.slow]


@pytest.fixture(scope="module")
def cats() -> list[bytes]:
    """Thirty photos of one cat, enough for clusters and an audit."""
    cat = Image.fromarray(skimage.data.chelsea()).resize((160, 106))
    return [encoded(ImageEnhance.Brightness(cat).enhance(0.7 + n / 50), "PNG") for n in range(30)]


@pytest.fixture
def work(browser: Browser, tmp_path: Path) -> Iterator[Page]:
    """The page of a service with jobs of its own."""
    jobs = {"GRADCAM_JOBS": str(tmp_path / "jobs"), "GRADCAM_DEADLINE_SECONDS": "300"}
    with (
        serving(**jobs) as (_, http),
        browser.new_page(viewport={"width": 1280, "height": 900}) as page,
    ):
        page.set_default_timeout(READY)
        page.goto(str(http.base_url))
        yield page


def test_a_strip_becomes_a_job_with_results_and_clusters(work: Page, cats: list[bytes]) -> None:
    take(work, *cats)
    expect(work.locator(".thumbnail")).to_have_count(30)
    explained(work)
    work.get_by_role("button", name="Work").click()
    expect(work.locator("#drift")).to_contain_text("There is no reference to compare")
    work.locator("#job").click()
    job = work.locator(".jobs > li").first
    expect(job).to_contain_text("done: 30 finished", timeout=4 * READY)
    expect(job.locator(".grid").first.locator("li")).to_have_count(24)
    expect(job.locator(".grid li").first).to_contain_text("Egyptian cat")
    (document,) = work.request.get(f"{work.url.partition('#')[0]}v1/jobs").json()["jobs"]
    drawn = {"output": "overlay", "opacity": "heat", "colormap": "inferno"}
    assert drawn.items() <= document["parameters"].items(), "as the page draws"
    width = "image => image.complete && image.naturalWidth"
    work.wait_for_function(
        "() => [...document.querySelectorAll('.jobs img')].some((image) => image.naturalWidth)"
    )
    assert work.locator(".jobs .grid img").first.evaluate(width) == 160
    expect(job).to_contain_text(re.compile(r"Egyptian cat: \d+ maps"))
    job.locator(".grid button.map").first.click()  # to where one looks at it
    explained(work)
    assert "room" not in state(work)
    # Of a photo that is not the page's own there is the picture alone: the heat is painted on it.
    shown = work.locator(".thumbnail button[aria-pressed=true]")
    name = shown.get_attribute("title")
    work.get_by_label(f"Remove {name}").click()
    work.get_by_role("button", name="Work").click()
    job.locator("button.map", has_text=name).first.click()
    picture = work.locator("dialog.pictured")
    expect(picture).to_be_visible()  # once the picture has come
    expect(picture).to_contain_text(f"{name} is not on this page")
    assert picture.locator("img").evaluate("image => image.decode().then(() => image.naturalWidth)")
    picture.get_by_role("button", name="Close").click()
    expect(picture).to_have_count(0)
    assert state(work)["room"] == "work"
    work.get_by_role("button", name="Look").click()
    expect(work.locator(".thumbnail")).to_have_count(29)


def test_all_results_are_shown_filtered_sorted_and_downloaded(
    work: Page, cats: list[bytes], espresso: bytes
) -> None:
    take(work, *cats, espresso)
    take(work, encoded(noise(64, 64)), name="noise")
    expect(work.locator(".thumbnail")).to_have_count(32)
    explained(work)
    work.get_by_role("button", name="Work").click()
    work.locator("#job").click()
    job = work.locator(".jobs > li").first
    expect(job.locator("#read")).to_have_text("32 of 32 results.", timeout=4 * READY)
    results = job.locator("ul.grid").first.locator("li")
    expect(results).to_have_count(24)
    job.get_by_role("button", name="Show more (8 left)").click()
    expect(results).to_have_count(32)
    shares = re.compile(r" (\d\.\d{3})")
    job.locator("#order").select_option("unsure")
    rising = [float(shares.findall(each)[-1]) for each in results.all_inner_texts()]
    assert rising == sorted(rising)
    job.locator("#order").select_option("class")
    names = [each.split("\n")[1] for each in results.all_inner_texts()]
    assert names == sorted(names, key=lambda name: shares.sub("", name).lower())
    job.locator("#label").select_option("espresso")
    expect(results).to_have_count(1)
    expect(results).to_contain_text("photo30.png")
    job.locator("#label").select_option("")
    job.locator("#greatest").fill(str(rising[3]))
    expect(results).to_have_count(sum(share <= rising[3] for share in rising))
    job.locator("#greatest").fill("1")
    job.locator("#which").select_option("warned")
    for each in results.all_inner_texts():
        assert "warning" in each
    warned = results.count()
    assert 0 < warned < 32
    job.locator("#which").select_option("unwarned")
    expect(results).to_have_count(32 - warned)
    starts = {
        "ZIP with pictures": b"PK",
        "table (Parquet)": b"PAR1",
        "clusters (CSV)": b"id,number,",
    }
    for name, start in {**starts, "lines (NDJSON)": b'{"cursor"'}.items():
        with work.expect_download() as waiting:
            job.get_by_role("button", name=name).click()
        assert Path(waiting.value.path()).read_bytes().startswith(start)
    assert Path(waiting.value.path()).read_bytes().count(b"\n") == 32
    assert waiting.value.suggested_filename.endswith(".ndjson")


def offers(work: Page, total: int, failed: int = 0) -> list[int]:
    """Offer a job of so many results, of which the one of this cursor failed.

    Returns:
        How many lines were asked for at a time.
    """
    told = {"kind": "explain", "state": "done", "model": "efficientnet-lite0", "id": "1"}
    counts = {"total": total, "done": total, "failed": 0, "left": 0}
    job = {**told, "created": "2026-11-24T03:33:14+00:00", "counts": counts}
    asked: list[int] = []

    def line(n: int) -> str:
        error = {"error": "the image is broken"} if n == failed else {}
        return json.dumps({"cursor": n, "item": f"{n}.png", **error})

    def lines(route: Route) -> None:
        query = parse_qs(urlsplit(route.request.url).query)
        after, limit = int(query["after"][0]), int(query["limit"][0])
        asked.append(limit)
        body = "\n".join(map(line, range(after + 1, min(after + limit, total) + 1)))
        route.fulfill(body=body, content_type="application/x-ndjson")

    work.route("**/v1/jobs?**", lambda route: route.fulfill(json={"jobs": [job]}))
    work.route("**/v1/jobs/1/results?**", lines)
    return asked


def test_a_large_job_s_results_are_read_when_they_are_wanted(work: Page, cat: bytes) -> None:
    expect(work.locator("#runs")).to_contain_text("efficientnet-lite0")
    asked = offers(work, 630)
    work.get_by_role("button", name="Work").click()
    work.locator(".jobs button").first.click()
    said = work.locator("#read")
    expect(said).to_contain_text("200 of 200 results; 200 of 630 are read.")
    work.locator("#read-more").click()
    expect(said).to_contain_text("400 of 400 results; 400 of 630 are read.")
    assert work.locator("#read-more").inner_text() == "Read 200 more"
    work.locator("#read-all").click()
    expect(said).to_have_text("630 of 630 results.")
    assert work.evaluate("document.activeElement !== document.body")  # the button has gone
    assert max(asked) == 25
    results, names = work.locator(".jobs ul.grid > li"), set[str]()
    for page, last in enumerate((192, 384, 576, 630)):  # few stand on the page at once
        first = 192 * page + 1
        expect(results).to_have_count(24)
        expect(work.locator(".jobs")).to_contain_text(f"Results {first} to {first + 23} of 630")
        while (more := work.get_by_role("button", name="Show more")).count():
            more.click()
        expect(results).to_have_count(last - first + 1)
        names.update(results.locator("span").all_inner_texts())
        assert page == 3 or work.locator(".jobs .after").is_enabled()
        if page < 3:
            work.locator(".jobs .after").click()
    assert {name.split("\n")[0] for name in names} == {f"{n}.png" for n in range(1, 631)}
    expect(work.locator(".jobs .after")).to_be_disabled()
    assert work.evaluate("document.activeElement !== document.body")
    work.locator(".jobs .before").click()
    expect(work.locator(".jobs")).to_contain_text("Results 385 to 408 of 630")
    work.locator("#order").select_option("class")
    work.locator("#which").select_option("failed")
    expect(results).to_have_count(0)
    expect(work.locator(".jobs .after")).to_have_count(0)


def test_a_job_that_is_opened_again_while_it_is_read_has_all_its_results(work: Page) -> None:
    offers(work, 60, failed=3)
    work.get_by_role("button", name="Work").click()
    job = work.locator(".jobs button").first
    seen: list[Route] = []
    held: list[Route] = []

    def hold_the_first(route: Route) -> None:
        if seen:
            route.fallback()
        else:
            seen.append(route)
            held.append(route)

    work.route("**/results?after=25&**", hold_the_first)
    job.click()
    expect(work.locator("#read")).to_contain_text("25 of 25 results")
    second = first_of(work, held)
    job.click()
    job.click()
    second.fallback()
    expect(work.locator("#read")).to_contain_text("60 of 60 results")
    expect(work.locator(".jobs ul.grid > li").first).to_contain_text("1.png")


def test_of_a_failed_item_no_picture_is_asked_and_no_probability_is_known(work: Page) -> None:
    offers(work, 10, failed=3)
    pictures: list[str] = []
    work.on("request", lambda one: pictures.append(one.url) if "?width=" in one.url else None)
    work.get_by_role("button", name="Work").click()
    work.locator(".jobs button").first.click()
    results = work.locator(".jobs ul.grid > li")
    expect(results).to_have_count(10)
    expect(results.nth(2)).to_contain_text("the image is broken")
    expect(results.locator("img")).to_have_count(9)
    work.locator("#least").fill("0.5")
    expect(results).to_have_count(9)
    expect(work.locator(".jobs")).not_to_contain_text("the image is broken")
    work.get_by_role("button", name="Look").click()
    work.get_by_role("button", name="Work").click()
    expect(work.locator("#least")).to_have_value("0.5")  # one comes back to what one has found
    expect(results).to_have_count(9)
    names = {urlsplit(url).path.rpartition("/")[2] for url in pictures}
    assert names == {f"{n}.png" for n in range(1, 11) if n != 3}


def test_what_is_left_is_not_read_and_does_not_come_up_later(work: Page) -> None:
    offers(work, 2)
    given_up: list[str] = []
    work.on("requestfailed", lambda one: given_up.append(urlsplit(one.url).query))
    work.get_by_role("button", name="Work").click()
    with holding(work, "**/results/*width=320") as small, holding(work, "**/*width=1280") as large:
        work.locator(".jobs button").first.click()
        first_of(work, small)
        work.locator(".jobs ul.grid button").first.click()
        opened = first_of(work, large)
        work.get_by_role("button", name="Look").click()
        opened.fulfill(path=BUILT / "cat.jpg")
        work.get_by_role("button", name="Work").click()
        expect(work.locator(".jobs ul.grid > li")).to_have_count(2)
        expect(work.locator("dialog.pictured")).to_have_count(0)
    assert "width=320" in given_up


def test_an_audit_s_answer_that_is_late_is_not_shown_as_that_of_another(work: Page) -> None:
    counts = {"total": 20, "done": 20, "failed": 0, "left": 0}
    told = {"kind": "audit", "state": "done", "created": "2026-11-24T03:33:14+00:00"}
    audits = [{**told, "id": name, "model": name, "counts": counts} for name in ("one", "other")]

    def answer(name: str) -> dict[str, object]:
        findings = [{"kind": "any", "sentence": f"found of {name}"}]
        return {"audit": {"photos": 20, "recommendation": None, "findings": findings}}

    work.route("**/v1/jobs?**", lambda route: route.fulfill(json={"jobs": audits}))
    work.get_by_role("button", name="Work").click()
    jobs = work.locator(".jobs > li")
    with holding(work, "**/v1/audits/one") as one, holding(work, "**/v1/audits/other") as other:
        jobs.first.get_by_role("button").click()
        late = first_of(work, one)
        jobs.last.get_by_role("button").click()
        first_of(work, other).fulfill(json=answer("other"))
        expect(jobs.last).to_contain_text("found of other")
        with work.expect_event("requestfinished", lambda it: it.url.endswith("/audits/one")):
            late.fulfill(json=answer("one"))
        expect(jobs.last).to_contain_text("found of other")
        assert "found of one" not in jobs.last.inner_text()


def test_a_job_has_nothing_that_is_of_one_photo_or_of_the_drawing_alone(work: Page) -> None:
    """A box is of one photo, and below the page's threshold the service's pictures hide nothing."""
    address = work.url.partition("#")[0]
    work.goto("about:blank")
    work.goto(f"{address}#photo=cat&target=285&box=10,10,60,60&threshold=0.3")
    expect(work.locator(".thumbnail")).to_have_count(1)
    work.get_by_role("button", name="Work").click()
    work.locator("#job").click()
    expect(work.locator(".jobs > li").first).to_contain_text("done: 1 finished", timeout=2 * READY)
    (document,) = work.request.get(f"{work.url.partition('#')[0]}v1/jobs").json()["jobs"]
    assert document["parameters"]["target"] in (285, "285")
    assert "threshold" not in document["parameters"]


def test_photos_of_one_name_are_items_of_one_job(work: Page, cat: bytes, espresso: bytes) -> None:
    take(work, cat)
    take(work, espresso)
    expect(work.locator(".thumbnail")).to_have_count(2)
    explained(work)
    second = state(work)["photo"]
    work.keyboard.press("n")
    assert state(work)["photo"] != second
    work.get_by_role("button", name="Work").click()
    work.locator("#job").click()
    job = work.locator(".jobs > li").first
    expect(job).to_contain_text("done: 2 finished", timeout=2 * READY)
    job.locator("button.map", has_text="espresso").first.click()
    explained(work)
    assert state(work)["photo"] == second


def test_a_result_opens_its_own_photo_and_no_other_of_its_name(
    work: Page, cat: bytes, espresso: bytes
) -> None:
    take(work, cat)
    take(work, espresso)
    expect(work.locator(".thumbnail")).to_have_count(2)
    explained(work)
    work.get_by_role("button", name="Work").click()
    work.locator("#job").click()
    job = work.locator(".jobs > li").first
    expect(job).to_contain_text("done: 2 finished", timeout=2 * READY)
    work.get_by_role("button", name="Look").click()
    work.get_by_label("Remove photo.png").first.click()
    expect(work.locator(".thumbnail")).to_have_count(1)
    second = state(work)["photo"]
    work.get_by_role("button", name="Work").click()
    job.locator("button.map", has_text="Egyptian cat").first.click()
    picture = work.locator("dialog.pictured")
    expect(picture).to_contain_text("photo.png on this page is another one")
    work.go_back()
    expect(picture).to_have_count(0)
    work.go_forward()
    expect(picture).to_be_visible()
    picture.get_by_role("button", name="Close").click()
    expect(picture).to_have_count(0)
    work.reload()
    work.get_by_role("button", name="Look").click()
    explained(work)
    work.get_by_role("button", name="Work").click()
    job.locator("button.map", has_text="espresso").first.click()
    explained(work)
    assert state(work)["photo"] == second
    work.go_back()
    expect(job.locator(".grid").first.locator("li")).to_have_count(2)


def test_one_comes_back_to_the_place_in_a_long_list(work: Page) -> None:
    offers(work, 400)
    work.get_by_role("button", name="Work").click()
    work.locator(".jobs button").first.click()
    work.locator("#read-more").click()
    expect(work.locator("#read")).to_have_text("400 of 400 results.")
    work.locator(".jobs .after").click()
    work.get_by_role("button", name="Show more").click()
    results = work.locator(".jobs ul.grid > li")
    expect(results).to_have_count(48)
    results.nth(40).scroll_into_view_if_needed()
    scrolled = work.evaluate("scrollY")
    assert scrolled > 300
    press = "button => button.click()"  # without scrolling to it
    for comes_back in (
        lambda: work.get_by_role("button", name="Work").evaluate(press),
        work.go_back,
    ):
        work.get_by_role("button", name="Look").evaluate(press)
        expect(work.locator(".samples")).to_be_visible()
        comes_back()
        expect(results).to_have_count(48)
        expect(results.nth(40)).to_be_in_viewport()
        assert abs(work.evaluate("scrollY") - scrolled) <= 1
        expect(work.locator(".jobs")).to_contain_text("Results 193 to 240 of 400")
    work.locator("#order").select_option("class")
    expect(work.locator(".jobs")).to_contain_text("Results 1 to 48 of 400")


def test_of_large_photos_a_job_s_small_pictures_are_read(work: Page) -> None:
    large = Image.fromarray(skimage.data.chelsea()).resize((1804, 1200))
    take(work, *(encoded(each, "PNG") for each in (large, ImageOps.mirror(large))))
    expect(work.locator(".thumbnail")).to_have_count(2)
    explained(work)
    work.get_by_role("button", name="Work").click()
    read: list[Request] = []
    work.on("requestfinished", lambda one: read.append(one) if "/results" in one.url else None)
    work.locator("#job").click()
    pictures = work.locator(".jobs .grid img")
    expect(pictures).to_have_count(2, timeout=4 * READY)
    for picture in pictures.all():
        expect(picture).to_have_js_property("naturalWidth", 320)
    assert any("maps=false" in one.url for one in read)
    taken = sum(one.sizes()["responseBodySize"] for one in read)
    address = read[0].url.partition("?")[0]
    whole = work.request.get(address).body()
    assert b"Egyptian cat" in whole
    assert 10_000 < taken < len(whole) / 50


def test_an_audit_of_the_strip_says_what_it_finds(work: Page, cats: list[bytes]) -> None:
    take(work, *cats[:20])
    expect(work.locator(".thumbnail")).to_have_count(20)
    explained(work)
    work.get_by_role("button", name="Work").click()
    work.locator("#audit").click()
    audit = work.locator(".jobs > li").first
    expect(audit).to_contain_text("Audit of efficientnet-lite0")
    expect(audit).to_contain_text("photos are measured", timeout=4 * READY)
    audit.get_by_role("button", name="Cancel").click()
    expect(audit).to_contain_text("cancelled")


def test_a_job_that_is_refused_says_why(work: Page, cat: bytes) -> None:
    take(work, cat)
    explained(work)
    work.get_by_role("button", name="Work").click()
    work.locator("#audit").click()
    refusal = work.get_by_role("alert").last
    expect(refusal).to_contain_text("20")
    work.wait_for_timeout(3000)  # it stays while the page asks for what is new
    expect(refusal).to_contain_text("20")
    work.locator("#job").click()
    expect(work.locator(".jobs > li").first).to_contain_text("done: 1 finished", timeout=2 * READY)


def test_one_is_counted_as_one(page: Page) -> None:
    told: dict[str, object] = {"made": None, "photos": 0, "recorded": 1, "moved": None}
    told |= {"missing": None, "shifts": []}
    page.route("**/drift", lambda route: route.fulfill(json=told))
    expect(page.locator("#runs")).to_contain_text("efficientnet-lite0")
    page.get_by_role("button", name="Work").click()
    expect(page.locator("#drift")).to_contain_text(
        "1 map was counted. There is no reference to compare it"
    )


def test_drift_is_drawn_beside_the_reference(page: Page) -> None:
    shift = {
        "index": None,
        "label": None,
        "statistic": "border",
        "psi": 1.2,
        "before": [0.08, 0.12, 0.17],
        "after": [0.31, 0.41, 0.5],
        "sentence": "all classes: the share of the heat on the border rose",
    }
    told = {"made": "2026-11-24T03:33:14+00:00", "photos": 1000, "recorded": 5210, "moved": True}
    looks = 0

    def answer(route: Route) -> None:
        nonlocal looks
        looks += 1
        shifts = [{**shift, "psi": 0.4 * looks}]
        route.fulfill(json={**told, "missing": None, "shifts": shifts})

    page.route("**/drift", answer)
    expect(page.locator("#runs")).to_contain_text("efficientnet-lite0")
    page.get_by_role("button", name="Work").click()
    expect(page.locator("#drift")).to_contain_text("5210 maps were compared")
    expect(page.locator("#drift")).to_contain_text("They have moved.")
    drawn = page.locator(".shifts .quartiles rect:first-child")
    assert [float(drawn.nth(n).get_attribute("x") or "nan") for n in (0, 1)] == [16, 62]
    page.wait_for_function(
        "() => document.querySelector('.shifts polyline').points.numberOfItems > 2"
    )
    line = page.locator(".shifts polyline").get_attribute("points") or ""
    heights = [float(point.split(",")[1]) for point in line.split()]
    assert heights == sorted(heights, reverse=True), "it rises"
