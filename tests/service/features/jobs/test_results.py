"""What comes of a job: as lines, item by item, as events, in one file; and how it ends."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import re
import threading
import zipfile
from collections.abc import MutableMapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image
from starlette.testclient import TestClient

from service.app import create_app
from service.features.jobs.janitor import BEAT_SECONDS
from service.features.jobs.job_files import Folder
from service.settings import Settings
from tests.service.conftest import encoded, noise, pixels, values
from tests.service.features.jobs.conftest import SLOW, TINY, app_with
from tests.service.features.jobs.forms import (
    accepted,
    check,
    ended,
    files_of,
    form_of,
    inline,
    instances,
    results,
    until_settled,
)
from tests.waiting import stays, until
from tests.zoo.factories import STEADY_SECONDS

DOT = encoded(noise(12, 10))
TOO_LATE = 4 * BEAT_SECONDS
NAMES = (
    "plain.png",
    "cats/a.png",
    "with space.png",
    "käse/猫.png",
    "../up.png",
    "100%.png",
    "a%2Fb.png",
    "?query#part&more=1.png",
    "trailing/",
    "..",
    "a\\b.png",
    '"quoted"\n.png',
    "Plain.PNG",
    "plain.PNG",
    "KÄSE/猫.png",
)


@pytest.fixture(scope="module")
def named(jobs: TestClient) -> dict[str, Any]:
    """A job of items with odd names, one of which is not a picture."""
    images = {name: encoded(noise(12, 10, at)) for at, name in enumerate(NAMES)}
    request = form_of("json", {**images, "broken": b"I am a cat"})
    job = accepted(jobs.post("/v1/jobs", params={"model": "tiny", "fit": "crop"}, **request))["id"]
    return ended(jobs, job)


@pytest.fixture(scope="module")
def several(jobs: TestClient) -> str:
    """A job with three maps an item, and colours."""
    asked = {"target": [0, 1, 2], "output": "overlay"}
    body = {"model": "tiny", "instances": instances({"x/a": DOT, "b": DOT}), "parameters": asked}
    job: str = accepted(jobs.post("/v1/jobs", json=body))["id"]
    ended(jobs, job)
    return job


def slow_job(client: TestClient, count: int) -> str:
    images = {f"{at}.png": DOT for at in range(count)}
    job: str = accepted(
        client.post("/v1/jobs", params={"model": "slow"}, **form_of("json", images))
    )["id"]
    return job


def passes(client: TestClient) -> int:
    """Forward passes of the slow model, each for one image."""
    said = client.get("/metrics").text
    return int(float(re.findall(r'gradcam_batch_size_count\{model="slow"\} (\S+)', said)[0]))


def moment(text: str) -> datetime:
    assert text.endswith("Z")
    return datetime.fromisoformat(text)


# The document


def test_the_document_of_a_job_that_is_done(jobs: TestClient, named: dict[str, Any]) -> None:
    assert named["state"] == "done"
    assert named["model"] == "tiny"
    assert named["parameters"] == {"fit": "crop"}
    total = len(NAMES) + 1
    assert named["counts"] == {"total": total, "done": total - 1, "failed": 1, "left": 0}
    created, started, finished = (
        moment(named[name]) for name in ("created", "started", "finished")
    )
    assert created <= started <= finished
    week = Settings().job_retention_seconds
    assert (moment(named["expires"]) - finished).total_seconds() == pytest.approx(week)
    seconds = (finished - started).total_seconds()
    assert named["rate"] == pytest.approx(total / max(seconds, 1e-3), rel=0.05)
    assert not {"eta_seconds", "stalled"} & named.keys()


def test_the_document_of_a_job_that_runs(jobs: TestClient) -> None:
    """One image at a time, each of which takes its time: the rate is no greater from the start."""
    most = 1.05 / STEADY_SECONDS
    job = slow_job(jobs, 6)
    first = jobs.get(f"/v1/jobs/{job}").json()
    assert not {"finished", "expires", "stalled"} & first.keys()
    for settled in (1, 3):
        document = until_settled(jobs, job, settled)
        counts = document["counts"]
        assert document["state"] == "running"
        assert counts["total"] == counts["done"] + counts["failed"] + counts["left"] == 6
        assert 0.05 < document["rate"] <= most
        left = counts["left"] / document["rate"]
        assert document["eta_seconds"] == pytest.approx(left, rel=0.02, abs=0.1)
        assert "expires" not in document
    final = ended(jobs, job)
    assert 0.05 < final["rate"] <= most


# Lines


def test_results_come_in_pages(jobs: TestClient, named: dict[str, Any]) -> None:
    job, total = named["id"], len(NAMES) + 1
    whole = jobs.get(f"/v1/jobs/{job}/results")
    assert whole.headers["Content-Type"] == "application/x-ndjson"
    every = [json.loads(line) for line in whole.text.splitlines()]
    assert [line["cursor"] for line in every] == list(range(1, total + 1))
    assert sorted(line["index"] for line in every) == list(range(total))
    assert {line["item"] for line in every} == {*NAMES, "broken"}

    after, pages = 0, []
    while True:
        page = jobs.get(f"/v1/jobs/{job}/results", params={"after": after, "limit": 4})
        if not page.content:
            assert page.headers["X-Next-Cursor"] == str(total)
            break
        pages.append([json.loads(line) for line in page.text.splitlines()])
        after = int(page.headers["X-Next-Cursor"])
        assert after == pages[-1][-1]["cursor"]
    assert [len(page) for page in pages] == [4, 4, 4, 4]
    assert [line for page in pages for line in page] == every

    beyond = jobs.get(f"/v1/jobs/{job}/results", params={"after": 10_000})
    assert beyond.status_code == 200
    assert beyond.content == b""
    assert beyond.headers["X-Next-Cursor"] == "10000"


def test_a_line_says_what_became_of_an_item(jobs: TestClient, named: dict[str, Any]) -> None:
    found = results(jobs, named["id"])
    broken = found.pop("broken")
    assert set(broken) == {"cursor", "index", "item", "error", "problem"}
    assert "the 10 bytes are not a JPEG, PNG" in broken["error"]
    assert broken["problem"]["detail"] == broken["problem"]["error"] == broken["error"]
    assert broken["problem"]["status"] == 422
    assert broken["problem"]["type"] == "urn:gradcam-service:undecodable-image"
    for name, line in found.items():
        assert set(line) == {"cursor", "index", "item", "prediction", "explanations"}
        assert line["index"] == NAMES.index(name)
        (explanation,) = line["explanations"]
        assert explanation["id"] == line["prediction"]["id"] == name
        assert explanation["heatmap"]["shape"] == [10, 12]
        with Image.open(io.BytesIO(base64.b64decode(explanation["heatmap"]["data"]))) as image:
            assert (image.size, image.mode) == ((12, 10), "L")


def without_maps(line: dict[str, Any]) -> dict[str, Any]:
    """A line as it should be if it is asked for without maps."""
    for explanation in line.get("explanations", ()):
        del explanation["heatmap"]
        explanation.pop("overlay", None)
    return line


def test_lines_without_maps_have_all_else(
    jobs: TestClient, named: dict[str, Any], several: str
) -> None:
    for job in (named["id"], several):
        plain = jobs.get(f"/v1/jobs/{job}/results?maps=false")
        read = {line["item"]: line for line in map(json.loads, plain.text.splitlines())}
        assert read == {item: without_maps(line) for item, line in results(jobs, job).items()}
        assert plain.headers["X-Next-Cursor"] == str(len(read))
    refused = jobs.get(f"/v1/jobs/{several}/results?maps=maybe")
    check(
        refused, 422, "invalid-parameter", "maps is 'maybe'", "true or false", pointer="/query/maps"
    )


def test_lines_without_maps_do_not_grow_with_the_photo(
    jobs: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos = {"small": DOT, "large": encoded(noise(300, 200))}
    asked = {"model": "tiny", "output": "overlay"}
    job = accepted(jobs.post("/v1/jobs", params=asked, **form_of("zip", photos)))["id"]
    ended(jobs, job)
    whole = len(jobs.get(f"/v1/jobs/{job}/results").content)
    assert whole > len(photos["large"]) // 2
    monkeypatch.setattr(Folder, "read_result", None)  # the pictures are not even read
    plain = jobs.get(f"/v1/jobs/{job}/results?maps=false").content.splitlines()
    small, large = sorted(map(len, plain))
    assert large < small + 100 < whole // 100
    assert "heatmap" not in json.loads(plain[0])["explanations"][0]


# What a caller has already


def test_a_caller_that_has_a_result_is_told_so(
    jobs: TestClient, named: dict[str, Any], several: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines, item = f"/v1/jobs/{named['id']}/results", f"/v1/jobs/{named['id']}/results/plain.png"
    jpeg = {"Accept": "image/jpeg"}
    asked: list[tuple[str, dict[str, str]]] = [
        (lines, {}),
        (f"{lines}?maps=false", {}),
        (f"{lines}?limit=3", {}),
        (f"{lines}?after=3&limit=3", {}),
        (f"/v1/jobs/{several}/results", {}),
        (item, {}),
        (f"{lines}/broken", {}),
        (item, jpeg),
        (f"{item}?width=5", jpeg),
        (f"{item}?width=6", jpeg),
    ]
    whole = [jobs.get(path, headers=headers) for path, headers in asked]
    tags = [answer.headers["ETag"] for answer in whole]
    assert len(set(tags)) == len(asked), "each is of another answer"
    monkeypatch.setattr(Folder, "read_result", None)  # no result is read
    monkeypatch.setattr(Folder, "read_last_line", None)
    for (path, headers), answer, tag in zip(asked, whole, tags, strict=True):
        assert answer.headers["Cache-Control"] == "private, no-cache"
        known = {**headers, "If-None-Match": f'"other", {tag}'}
        again = jobs.get(path, headers=known)
        assert (again.status_code, again.content) == (304, b"")
        for name in ("ETag", "Cache-Control", "Vary", "X-Next-Cursor"):
            assert again.headers.get(name) == answer.headers.get(name)
    gone = jobs.get(f"{lines}/nobody", headers={"If-None-Match": tags[0]})
    check(gone, 404, "unknown-item", "'nobody'")


@pytest.mark.slow
def test_lines_that_have_become_more_are_another_answer(jobs: TestClient) -> None:
    job = slow_job(jobs, 7)
    until_settled(jobs, job, 1)
    one = jobs.get(f"/v1/jobs/{job}/results?limit=1")
    some = jobs.get(f"/v1/jobs/{job}/results")
    assert 0 < len(some.text.splitlines()) < 7
    ended(jobs, job)
    known = {"If-None-Match": some.headers["ETag"]}
    more = jobs.get(f"/v1/jobs/{job}/results", headers=known)
    assert len(more.text.splitlines()) == 7
    known = {"If-None-Match": one.headers["ETag"]}
    assert jobs.get(f"/v1/jobs/{job}/results?limit=1", headers=known).status_code == 304


@pytest.mark.slow
def test_results_are_read_on_while_the_job_runs(jobs: TestClient) -> None:
    job = slow_job(jobs, 7)
    after, partial = 0, 0
    seen: list[int] = []

    def read_on() -> bool:
        nonlocal after, partial
        state = jobs.get(f"/v1/jobs/{job}").json()["state"]
        page = jobs.get(f"/v1/jobs/{job}/results", params={"after": after})
        cursors = [json.loads(line)["cursor"] for line in page.text.splitlines()]
        assert int(page.headers["X-Next-Cursor"]) == (cursors[-1] if cursors else after)
        seen.extend(cursors)
        partial += 0 < len(seen) < 7
        after = int(page.headers["X-Next-Cursor"])
        return bool(state == "done")

    until(read_on, 60)
    assert seen == [1, 2, 3, 4, 5, 6, 7]
    assert partial  # it was not all there at once


# Items


@pytest.mark.parametrize("name", NAMES)
def test_an_item_is_found_by_its_id(jobs: TestClient, named: dict[str, Any], name: str) -> None:
    address = f"/v1/jobs/{named['id']}/results/{quote(name, safe='')}"

    async def ask() -> httpx2.Response:
        # Starlette's client unescapes twice, which no server does.
        transport = httpx2.ASGITransport(jobs.app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as http:
            # Dots would be resolved by the client, unless they are escaped, too.
            return await http.get(address.replace("..", "%2E%2E"))

    assert jobs.portal is not None
    response = jobs.portal.call(ask)
    assert response.status_code == 200, response.text
    line = next(
        line
        for line in jobs.get(f"/v1/jobs/{named['id']}/results").content.splitlines()
        if json.loads(line)["item"] == name
    )
    assert response.content == line
    assert response.headers["Content-Type"] == "application/json"


def test_slashes_need_no_escape(jobs: TestClient, named: dict[str, Any]) -> None:
    response = jobs.get(f"/v1/jobs/{named['id']}/results/cats/a.png")
    assert response.json()["item"] == "cats/a.png"


@pytest.mark.parametrize("form", ["png", "jpeg", "webp"])
def test_an_item_s_only_map_is_a_picture(
    jobs: TestClient, named: dict[str, Any], form: str
) -> None:
    address = f"/v1/jobs/{named['id']}/results/plain.png"
    response = jobs.get(address, headers={"Accept": f"image/{form}"})
    assert response.headers["Content-Type"] == f"image/{form}"
    assert response.headers["Vary"] == "Accept"
    (explanation,) = jobs.get(address).json()["explanations"]
    with Image.open(io.BytesIO(response.content)) as image:
        assert image.format == form.upper()
        drawn = np.asarray(image.convert("L")).astype(int)
    assert np.abs(drawn - values(explanation)).mean() <= (0 if form == "png" else 25)


def test_a_coloured_picture_is_the_job_s_overlay(jobs: TestClient) -> None:
    asked = {"model": "tiny", "output": "overlay"}
    job = accepted(jobs.post("/v1/jobs", params=asked, **form_of("json", {"a": DOT})))["id"]
    ended(jobs, job)
    picture = jobs.get(f"/v1/jobs/{job}/results/a", headers={"Accept": "image/png"}).content
    (explanation,) = results(jobs, job)["a"]["explanations"]
    overlay = base64.b64decode(explanation["overlay"]["data"])
    np.testing.assert_array_equal(pixels(picture), pixels(overlay))
    direct = jobs.post(
        "/v1/models/tiny:explain",
        content=DOT,
        headers={"Content-Type": "image/png", "Accept": "image/png"},
    )
    with Image.open(io.BytesIO(picture)) as mine, Image.open(io.BytesIO(direct.content)) as other:
        assert mine.mode == "RGB"
        assert np.abs(np.asarray(mine).astype(int) - np.asarray(other)).max() <= 8


@pytest.mark.parametrize("form", ["png", "jpeg", "webp"])
def test_a_picture_is_reduced(jobs: TestClient, form: str) -> None:
    """A twentieth of the width of a picture with a bright left half; another is narrower."""
    halves = np.zeros((200, 400, 3), np.uint8)
    halves[:, :200] = 250
    photos = {"wide": encoded(Image.fromarray(halves)), "narrow": DOT}
    asked = {"model": "tiny", "output": "overlay", "opacity": "0"}
    job = accepted(jobs.post("/v1/jobs", params=asked, **form_of("json", photos)))["id"]
    ended(jobs, job)
    accept = {"Accept": f"image/{form}"}
    small = jobs.get(f"/v1/jobs/{job}/results/wide?width=20", headers=accept)
    assert small.headers["Content-Type"] == f"image/{form}"
    with Image.open(io.BytesIO(small.content)) as picture:
        assert (picture.format, picture.size) == (form.upper(), (20, 10))
        drawn = np.asarray(picture.convert("L")).astype(int)
    np.testing.assert_allclose(drawn[:, :8], 250, atol=12)
    np.testing.assert_allclose(drawn[:, 12:], 0, atol=12)
    address = f"/v1/jobs/{job}/results/narrow"
    whole = jobs.get(address, headers=accept).content
    assert jobs.get(f"{address}?width=13", headers=accept).content == whole


def test_a_job_that_is_removed_while_a_result_is_read_is_unknown(
    jobs: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = form_of("json", {"a": DOT})
    job = accepted(jobs.post("/v1/jobs", params={"model": "tiny"}, **request))["id"]
    ended(jobs, job)
    read = Folder.read_result

    def read_late(folder: Folder, job: str, number: int) -> bytes:
        assert jobs.delete(f"/v1/jobs/{job}?purge=true").status_code == 204
        folder.remove(job)  # as the service does soon after
        return read(folder, job, number)

    monkeypatch.setattr(Folder, "read_result", read_late)
    check(jobs.get(f"/v1/jobs/{job}/results/a"), 404, "unknown-job", job)


def test_what_no_width_can_be(jobs: TestClient, named: dict[str, Any]) -> None:
    address = f"/v1/jobs/{named['id']}/results/plain.png"
    wrong = {"0": "at least 1", "10001": "at most 10000", "wide": "a whole number"}
    for width, allowed in wrong.items():
        refused = jobs.get(address, params={"width": width}, headers={"Accept": "image/png"})
        words = f"width is '{width}'", f"it should be {allowed}"
        check(refused, 422, "invalid-parameter", *words, pointer="/query/width")
    refused = jobs.get(address, params={"width": 320})
    check(refused, 422, "invalid-parameter", "width is 320", "image/jpeg", pointer="/query/width")


def test_what_cannot_be_a_picture(jobs: TestClient, named: dict[str, Any], several: str) -> None:
    png = {"Accept": "image/png"}
    broken = jobs.get(f"/v1/jobs/{named['id']}/results/broken", headers=png)
    check(broken, 422, "item-failed", "'broken' failed", "not a JPEG")
    many = jobs.get(f"/v1/jobs/{several}/results/b", headers=png)
    check(many, 406, "not-acceptable", "exactly one map, and the item has 3")
    other = jobs.get(f"/v1/jobs/{several}/results/b", headers={"Accept": "image/gif"})
    check(other, 406, "not-acceptable", "image/gif", "image/webp")
    assert len(jobs.get(f"/v1/jobs/{several}/results/b").json()["explanations"]) == 3


# The archive


def test_the_zip_has_every_picture_and_every_line(jobs: TestClient, named: dict[str, Any]) -> None:
    response = jobs.get(f"/v1/jobs/{named['id']}/archive")
    assert response.headers["Content-Type"] == "application/zip"
    assert f'filename="{named["id"]}.zip"' in response.headers["Content-Disposition"]
    found = results(jobs, named["id"])
    with zipfile.ZipFile(io.BytesIO(response.content)) as archive:
        assert archive.testzip() is None
        names = archive.namelist()
        assert len(names) == len({name.casefold() for name in names})
        assert not any(name.startswith("/") or ".." in name.split("/") for name in names)
        lines = [json.loads(line) for line in archive.read("results.ndjson").splitlines()]
        assert [line["index"] for line in lines] == list(range(len(found)))
        files = set()
        for line in lines:
            right = found[line["item"]]
            assert line.get("error") == right.get("error")
            for mine, other in zip(
                line.get("explanations", []), right.get("explanations", []), strict=True
            ):
                files.add(mine["file"])
                with Image.open(archive.open(mine.pop("file"))) as image:
                    np.testing.assert_array_equal(np.asarray(image), values(other))
                    assert image.size == (12, 10)
                del other["heatmap"]["data"]
            assert line == right
        assert files == set(names) - {"results.ndjson"}
        assert len(files) == len(NAMES)


def test_several_targets_are_several_pictures(jobs: TestClient, several: str) -> None:
    data = jobs.get(f"/v1/jobs/{several}/archive?format=zip").content
    found = results(jobs, several)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        names = archive.namelist()
        assert len(names) == 2 * 3 + 1
        for line in map(json.loads, archive.read("results.ndjson").splitlines()):
            right = found[line["item"]]["explanations"]
            assert [each["target"]["index"] for each in line["explanations"]] == [0, 1, 2]
            for mine, other in zip(line["explanations"], right, strict=True):
                assert archive.read(mine["file"]) == base64.b64decode(other["overlay"]["data"])
                assert "overlay" not in mine


def test_numbers_are_npy_and_no_picture(jobs: TestClient) -> None:
    asked = {"model": "tiny", "output": "values", "size": "layer"}
    job = accepted(jobs.post("/v1/jobs", params=asked, **form_of("json", {"d/a": DOT})))["id"]
    ended(jobs, job)
    (explanation,) = results(jobs, job)["d/a"]["explanations"]
    right = np.frombuffer(base64.b64decode(explanation["heatmap"]["data"]), "<f4").reshape(4, 4)
    with zipfile.ZipFile(io.BytesIO(jobs.get(f"/v1/jobs/{job}/archive").content)) as archive:
        (name,) = [each for each in archive.namelist() if each != "results.ndjson"]
        assert name == "pictures/d/a.npy"
        read = np.load(io.BytesIO(archive.read(name)), allow_pickle=False)
    assert read.dtype == np.float32
    np.testing.assert_array_equal(read, right)
    picture = jobs.get(f"/v1/jobs/{job}/results/d/a", headers={"Accept": "image/png"})
    check(picture, 406, "not-acceptable", "numbers")
    table = table_of(jobs, job)
    assert table[0]["map_encoding"] == "float32"
    assert np.frombuffer(table[0]["map"], "<f4").tolist() == right.ravel().tolist()
    direct = jobs.post(
        "/v1/models/tiny:explain?output=values&size=layer",
        content=DOT,
        headers={"Content-Type": "image/png"},
    ).json()["explanations"][0]["heatmap"]
    np.testing.assert_allclose(
        np.frombuffer(base64.b64decode(direct["data"]), "<f4"), right.ravel(), atol=1e-5
    )


def table_of(client: TestClient, job: str) -> list[dict[str, Any]]:
    response = client.get(f"/v1/jobs/{job}/archive?format=parquet")
    assert response.status_code == 200, response.text
    assert response.headers["Content-Type"] == "application/vnd.apache.parquet"
    assert f'filename="{job}.parquet"' in response.headers["Content-Disposition"]
    rows: list[dict[str, Any]] = pq.read_table(io.BytesIO(response.content)).to_pylist()
    return rows


def test_the_table_has_a_row_for_each_map_and_failure(
    jobs: TestClient, named: dict[str, Any], several: str
) -> None:
    rows = table_of(jobs, named["id"])
    found = results(jobs, named["id"])
    assert len(rows) == len(found)
    ids = set(found)
    for row in rows:
        line = found.pop(row["id"])
        assert row["number"] == 0
        if "error" in line:
            assert (row["error"], row["problem"]) == (line["error"], line["problem"]["type"])
            assert row["map"] is None
            continue
        (right,) = line["explanations"]
        assert row["map_encoding"] == "float32"
        assert len(row["map"]) == 4 * row["map_height"] * row["map_width"] == 4 * 4 * 4
        assert right["heatmap"]["shape"] == [row["height"], row["width"]] == [10, 12]
        assert row["target_index"] == right["target"]["index"]
        assert row["target_probability"] == pytest.approx(right["target"]["probability"])
        assert row["target_score"] == pytest.approx(right["target"]["score"])
        (best, *_) = line["prediction"]["classes"]
        assert row["predicted_index"] == best["index"]
        assert row["predicted_probability"] == pytest.approx(best["probability"])
        assert row["correct"] is right.get("correct") is None  # no target was named
        for name in ("mass", "concentration", "border"):
            assert row[name] == (right.get(name) and pytest.approx(right[name]))
        # The table's map is the layer's, which covers what the model saw: seven eighths of 12 × 10.
        covers = [row[f"covers_{edge}"] for edge in ("left", "top", "right", "bottom")]
        assert covers == pytest.approx([1.2, 0, 10.8, 8.889], abs=1e-3)
        assert list(right["covers"].values()) == [0, 0, 12, 10]
        peak = right.get("peak", {})
        assert (row["peak_x"], row["peak_y"]) == (peak.get("x"), peak.get("y"))
        assert (row["method"], row["layer"]) == ("gradcam", "relu2")
        assert row["overlay"] is None
        assert row["error"] is None
    assert not found
    assert [row["id"] for row in rows] == [each for each in (*NAMES, "broken") if each in ids]
    rows = table_of(jobs, several)
    assert {row["correct"] for row in rows} == {True, False}  # three classes are named
    assert all(row["correct"] == (row["target_index"] == row["predicted_index"]) for row in rows)
    assert sorted((row["id"], row["number"], row["target_index"]) for row in rows) == sorted(
        (name, at, at) for name in ("x/a", "b") for at in range(3)
    )
    for row in rows:
        with Image.open(io.BytesIO(row["overlay"])) as image:
            assert image.mode == "RGB"


def test_there_is_no_archive_before_the_end(jobs: TestClient) -> None:
    job = slow_job(jobs, 3)
    for form in ("zip", "parquet"):
        response = jobs.get(f"/v1/jobs/{job}/archive?format={form}")
        check(response, 409, "not-finished", job, "of 3 are done", f"/v1/jobs/{job}/results")
        assert int(response.headers["Retry-After"]) >= 1
    item = jobs.get(f"/v1/jobs/{job}/results/2.png")
    check(item, 409, "not-finished", "'2.png' is not done yet")
    assert item.headers["Retry-After"] == "1"
    jobs.delete(f"/v1/jobs/{job}?purge=true")


# Events


def events(text: str) -> list[tuple[str, dict[str, Any]]]:
    found = []
    for block in text.split("\n\n"):
        if block and not block.startswith(":"):
            name, data = block.split("\n")
            assert name.startswith("event: ")
            assert data.startswith("data: ")
            found.append((name[7:], json.loads(data[6:])))
    return found


def test_events_tell_of_progress_until_the_end(jobs: TestClient) -> None:
    job = slow_job(jobs, 12)
    with jobs.stream("GET", f"/v1/jobs/{job}/events") as response:
        assert response.headers["Content-Type"].startswith("text/event-stream")
        assert response.headers["Cache-Control"] == "no-store"
        told = events("".join(response.iter_text()))
    assert [name for name, _ in told[:-1]] == ["progress"] * (len(told) - 1)
    assert told[-1][0] == "end"
    settled = [document["counts"]["done"] for _, document in told]
    assert settled == sorted(settled)
    assert settled[-1] == 12
    assert len(set(settled)) >= 3  # not only the beginning and the end
    assert told[-1][1] == jobs.get(f"/v1/jobs/{job}").json()


def test_events_of_a_job_that_has_ended(jobs: TestClient, named: dict[str, Any]) -> None:
    response = jobs.get(f"/v1/jobs/{named['id']}/events")
    assert events(response.text) == [("progress", named), ("end", named)]
    refused = jobs.get(f"/v1/jobs/{named['id']}/events", headers={"Accept": "application/json"})
    check(refused, 406, "not-acceptable", "text/event-stream")


@pytest.mark.slow
@pytest.mark.parametrize("purge", [False, True])
def test_events_end_when_the_job_is_cancelled_or_removed(jobs: TestClient, purge: bool) -> None:
    job = slow_job(jobs, 60)
    until_settled(jobs, job, 1)
    address = f"/v1/jobs/{job}" + ("?purge=true" if purge else "")

    def cancel_later() -> int:
        until_settled(jobs, job, 6)  # of which events tell
        return jobs.delete(address).status_code

    with ThreadPoolExecutor(1) as pool:
        later = pool.submit(cancel_later)
        told = events(jobs.get(f"/v1/jobs/{job}/events").text)
        assert later.result() == (204 if purge else 200)
    assert told[-1][0] == "end"
    assert told[-1][1]["state"] == "cancelled"
    assert "eta_seconds" not in told[-1][1]
    gone = jobs.get(f"/v1/jobs/{job}/events")
    if purge:
        check(gone, 404, "unknown-job", job)
    else:
        assert events(gone.text)[-1] == told[-1]


@pytest.mark.slow
def test_a_listener_who_leaves_leaves_nothing_behind(jobs: TestClient, place: Path) -> None:
    """And one who listens when the service drains is let go."""

    async def listen() -> None:
        app = create_app(Settings(jobs=place.parent / "listened"), (SLOW,))
        async with app.router.lifespan_context(app):
            await app.state.manager.loaded
            transport = httpx2.ASGITransport(app)
            async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as http:
                images = {str(at): DOT for at in range(50)}
                job = (await http.post("/v1/jobs", **form_of("json", images))).json()["id"]
                before = len(asyncio.all_tasks())
                sent: list[dict[str, Any]] = []
                leave, begun = asyncio.Event(), asyncio.Event()

                async def receive() -> dict[str, Any]:
                    await leave.wait()
                    return {"type": "http.disconnect"}

                async def send(message: MutableMapping[str, Any]) -> None:
                    sent.append(dict(message))
                    if len(sent) == 2:
                        begun.set()

                scope = {
                    "type": "http",
                    "asgi": {"version": "3.0", "spec_version": "2.3"},
                    "http_version": "1.1",
                    "method": "GET",
                    "path": f"/v1/jobs/{job}/events",
                    "raw_path": f"/v1/jobs/{job}/events".encode(),
                    "query_string": b"",
                    "headers": [],
                    "root_path": "",
                    "scheme": "http",
                }
                listening = asyncio.create_task(app(dict(scope), receive, send))
                await begun.wait()
                leave.set()
                await asyncio.wait_for(listening, 5)
                assert len(asyncio.all_tasks()) <= before

                sent.clear()
                leave.clear()
                begun.clear()
                listening = asyncio.create_task(app(dict(scope), receive, send))
                await begun.wait()
                app.state.manager.draining = True
                await asyncio.wait_for(listening, 5)
                assert sent[-1] == {
                    "type": "http.response.body",
                    "body": b"",
                    "more_body": False,
                }

    asyncio.run(listen())


# Cancelled, removed, expired


def test_a_job_is_cancelled_while_it_runs(jobs: TestClient) -> None:
    job = slow_job(jobs, 60)
    until_settled(jobs, job, 2)
    cancelled = jobs.delete(f"/v1/jobs/{job}")
    assert cancelled.status_code == 200
    document = cancelled.json()
    assert document["state"] == "cancelled"
    assert {"finished", "expires"} <= document.keys()
    assert "eta_seconds" not in document
    settled = document["counts"]["done"]
    assert 2 <= settled < 60
    assert document["counts"]["left"] == 60 - settled

    # What was under way is withdrawn: another job's turn comes at once, and nothing is added.
    before = passes(jobs)
    ended(jobs, slow_job(jobs, 1))
    assert passes(jobs) - before <= 4  # not the dozens of images that it had taken to itself
    assert jobs.get(f"/v1/jobs/{job}").json() == document
    found = results(jobs, job)
    assert len(found) == settled

    again = jobs.delete(f"/v1/jobs/{job}")
    assert (again.status_code, again.json()) == (200, document)
    kept = next(iter(found))
    assert jobs.get(f"/v1/jobs/{job}/results/{kept}").status_code == 200
    missing = jobs.get(f"/v1/jobs/{job}/results/59.png")
    check(missing, 409, "not-finished", "was cancelled before item '59.png' was done")
    assert "Retry-After" not in missing.headers
    with zipfile.ZipFile(io.BytesIO(jobs.get(f"/v1/jobs/{job}/archive").content)) as archive:
        assert len(archive.namelist()) == settled + 1
    assert len(table_of(jobs, job)) == settled


def test_a_job_without_a_single_result_has_an_archive(jobs: TestClient) -> None:
    first = slow_job(jobs, 30)
    job = slow_job(jobs, 2)
    jobs.delete(f"/v1/jobs/{job}")
    jobs.delete(f"/v1/jobs/{first}?purge=true")
    document = jobs.get(f"/v1/jobs/{job}").json()
    settled = document["counts"]["done"]
    assert len(table_of(jobs, job)) == settled
    with zipfile.ZipFile(io.BytesIO(jobs.get(f"/v1/jobs/{job}/archive").content)) as archive:
        assert len(archive.read("results.ndjson").splitlines()) == settled


def test_a_done_job_stays_done(jobs: TestClient, named: dict[str, Any]) -> None:
    response = jobs.delete(f"/v1/jobs/{named['id']}?purge=false")
    assert (response.status_code, response.json()) == (200, named)


@pytest.mark.slow
@pytest.mark.parametrize("running", [False, True])
def test_a_purged_job_is_gone_with_its_files(jobs: TestClient, place: Path, running: bool) -> None:
    if running:
        job = slow_job(jobs, 40)
        until_settled(jobs, job, 1)
    else:
        request = form_of("json", {"a": DOT, "b": DOT})
        job = accepted(jobs.post("/v1/jobs", params={"model": "tiny"}, **request))["id"]
        ended(jobs, job)
    assert files_of(place, job)
    response = jobs.delete(f"/v1/jobs/{job}?purge=true")
    assert (response.status_code, response.content) == (204, b"")
    for verb, path in (
        ("GET", ""),
        ("GET", "/results"),
        ("GET", "/results/a"),
        ("GET", "/events"),
        ("GET", "/archive"),
        ("DELETE", ""),
        ("DELETE", "?purge=true"),
    ):
        check(jobs.request(verb, f"/v1/jobs/{job}{path}"), 404, "unknown-job", job)
    listed = jobs.get("/v1/jobs?limit=200").json()["jobs"]
    assert job not in [each["id"] for each in listed]
    gone_from(jobs, place, job)


def gone_from(client: TestClient, place: Path, job: str) -> None:
    """Wait until neither a file nor a row of a job is left."""
    listing = client.app.state.jobs.place.listing  # type: ignore[attr-defined]
    until(lambda: not files_of(place, job), TOO_LATE)
    until(lambda: not (place / "results" / job).exists() and not rows_of(listing, job), TOO_LATE)


def rows_of(listing: Any, job: str) -> int:
    from sqlalchemy import text

    counted = [
        f"(select count(*) from {table} where {column} = :job)"
        for table, column in (("jobs", "id"), ("items", "job"), ("results", "job"))
    ]
    with listing._database.read() as connection:
        found = connection.execute(text(f"select {' + '.join(counted)}"), {"job": job})
        return int(found.scalar_one())


@pytest.mark.slow
def test_a_job_expires(tmp_path: Path) -> None:
    settings = Settings(jobs=tmp_path, job_retention_seconds=3)
    with app_with((TINY,), settings) as client:
        job = accepted(client.post("/v1/jobs", **form_of("json", {"a": DOT})))["id"]
        document = ended(client, job)
        kept = moment(document["expires"]) - moment(document["finished"])
        assert kept.total_seconds() == pytest.approx(3)
        assert client.get(f"/v1/jobs/{job}/results/a").status_code == 200
        gone_from(client, tmp_path, job)
        check(client.get(f"/v1/jobs/{job}"), 404, "unknown-job", job)
        assert client.get("/v1/jobs").json() == {"jobs": []}


@pytest.mark.slow
def test_a_job_that_has_not_ended_does_not_expire(tmp_path: Path) -> None:
    settings = Settings(jobs=tmp_path, job_retention_seconds=0.1)
    with app_with((SLOW,), settings) as client:
        images = {str(at): DOT for at in range(40)}  # more than can be done in the meantime
        job = accepted(client.post("/v1/jobs", **form_of("json", images)))["id"]
        document = partial(client.get, f"/v1/jobs/{job}")
        stays(lambda: document().json()["counts"]["total"] == 40, BEAT_SECONDS + 1)


@pytest.mark.slow
def test_a_slow_store_of_images_holds_nobody_up(jobs: TestClient) -> None:
    """While eight images are being waited for, whoever asks about jobs is answered."""
    import fsspec
    from fsspec.implementations.memory import MemoryFileSystem

    asked, may_open = 0, threading.Event()

    class Held(MemoryFileSystem):  # type: ignore[misc]
        protocol = "memory"

        def _open(self, *given: Any, **named: Any) -> Any:
            nonlocal asked
            asked += 1
            assert may_open.wait(60)
            return super()._open(*given, **named)

    fsspec.filesystem("memory").pipe("/shown/late.png", DOT)
    fsspec.register_implementation("memory", Held, clobber=True)
    try:
        sent = [{"id": str(at), "image": {"uri": "memory://shown/late.png"}} for at in range(8)]
        sent.append({"id": "here", "image": inline(DOT)})
        job = accepted(jobs.post("/v1/jobs", json={"model": "tiny", "instances": sent}))["id"]
        until(lambda: asked == 8)
        for _ in range(5):
            assert jobs.get(f"/v1/jobs/{job}").json()["state"] in ("waiting", "running")
        accepted(jobs.post("/v1/jobs", params={"model": "tiny"}, **form_of("json", {"a": DOT})))
        may_open.set()
        assert ended(jobs, job)["counts"]["done"] == 9
    finally:
        may_open.set()
        fsspec.register_implementation("memory", MemoryFileSystem, clobber=True)


# Large numbers of numbers


def test_the_maps_of_an_item_have_at_most_the_numbers_of_an_answer(
    jobs: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.pipeline.result.MOST_NUMBERS", 100)
    images = {"small": encoded(noise(10, 10)), "large": encoded(noise(10, 11))}
    query = {"model": "tiny", "output": "values", "size": "image"}
    job = accepted(jobs.post("/v1/jobs", params=query, **form_of("zip", images)))["id"]
    ended(jobs, job)
    found = results(jobs, job)
    assert "error" not in found["small"]
    assert "the maps of an image have 110 numbers" in found["large"]["error"]


def test_results_are_sent_line_by_line_where_the_lines_are_long(
    jobs: TestClient, named: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"/v1/jobs/{named['id']}/results"
    whole = jobs.get(address).content
    monkeypatch.setattr("service.features.jobs.routes.PIECE_BYTES", 1)
    pieces: list[bytes] = []

    async def read() -> None:
        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: MutableMapping[str, Any]) -> None:
            pieces.append(message.get("body", b""))

        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": "GET",
            "path": address,
            "raw_path": address.encode(),
            "query_string": b"",
            "headers": [],
            "root_path": "",
            "scheme": "http",
            "state": {},
        }
        await jobs.app(scope, receive, send)

    assert jobs.portal is not None
    jobs.portal.call(read)
    assert b"".join(pieces) == whole
    assert [piece for piece in pieces if piece] == whole.splitlines(keepends=True)


def test_few_large_maps_make_a_part_of_a_parquet_file(
    jobs: TestClient, several: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"/v1/jobs/{several}/archive?format=parquet"
    whole = pq.read_table(io.BytesIO(jobs.get(address).content))
    monkeypatch.setattr("service.features.jobs.export.PAGE_BYTES", 1)
    parts = pq.ParquetFile(io.BytesIO(jobs.get(address).content))
    assert parts.num_row_groups == len(whole) == 6
    assert parts.read().equals(whole)
