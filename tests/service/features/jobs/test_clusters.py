"""The clusters of a job's maps, as JSON and as a table."""

from __future__ import annotations

import base64
import csv
import io
import json
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from cam.drawing.placement import Float
from service.features.jobs import clusters
from service.features.jobs import routes as job_routes
from service.features.jobs.clusters import Clusterings, spread
from service.features.jobs.errors import NoMaps, UnknownJob
from service.features.jobs.job_files import Folder
from service.features.jobs.records import Finished, Job
from service.features.jobs.results import ResultStore
from service.settings import Settings
from tests.cam.clusters.synthetic import blobs
from tests.service.conftest import encoded, noise
from tests.service.features.jobs.conftest import SLOW, TINY, app_with
from tests.service.features.jobs.forms import accepted, check, ended, form_of

COUNT, MARKED = 300, 12


def heatmap_of(values: Float, encoding: str) -> dict[str, Any]:
    data = values.astype("<f4").tobytes()
    if encoding == "png":
        data = encoded(Image.fromarray(np.rint(255 * values).astype(np.uint8)))
    return {
        "shape": list(values.shape),
        "encoding": encoding,
        "data": base64.b64encode(data).decode(),
    }


class Shelf:
    """Results as version 1 stored them. Each is a list of (class, map)."""

    def __init__(self, *results: list[tuple[str, Float]] | None, encoding: str = "float32") -> None:
        self._results = results
        self._encoding = encoding
        self.read: list[int] = []

    def in_order(self, job: Job, after: int, most: int) -> list[Finished]:
        numbers = range(after + 1, min(after + 1 + most, len(self._results)))
        failed = {"type": "urn:gradcam-service:undecodable-image", "detail": "no", "title": "No"}
        return [
            Finished(each + 1, each, f"{each}.png", None if self._results[each] else failed)
            for each in numbers
        ]

    def read_result(self, job: str, number: int) -> bytes:
        self.read.append(number)
        explanations = [
            {
                "instance": number,
                "target": {"index": ord(name[0]), "label": name, "score": 1.0},
                "method": "gradcam",
                "layer": "relu2",
                "region": {"left": 0, "top": 0, "width": values.shape[1], "height": len(values)},
                "heatmap": heatmap_of(values, self._encoding),
            }
            for name, values in self._results[number] or ()
        ]
        line = {"index": number, "item": f"{number}.png", "explanations": explanations}
        return json.dumps(line).encode()

    def read_last_line(self, job: str, number: int) -> bytes:
        return b""  # as of before version 2

    def clusterings(self) -> Clusterings:
        return Clusterings(cast(ResultStore, self), cast(Folder, self))

    def job(self) -> Job:
        done = sum(each is not None for each in self._results)
        return Job(
            *("id", "done", "", "tiny", "", "{}", ()),
            total=len(self._results),
            done=done,
            failed=len(self._results) - done,
            created=0,
            started=0,
            finished=0,
        )


def planted() -> list[list[tuple[str, Float]] | None]:
    """Cats, of which the last ones are hot in one corner; a few dogs; and an item that failed."""
    random = np.random.default_rng(0)
    values = blobs(COUNT + MARKED, 0)
    for each in values[COUNT:]:
        each *= 0.3
        each[-3:, -3:] = 0.9 + 0.1 * random.random((3, 3))
    cats: list[list[tuple[str, Float]] | None] = [[("cat", each)] for each in values]
    return [*cats, *([("dog", each)] for each in blobs(3, 1)), None]


@pytest.mark.parametrize("encoding", ["float32", "png"])
def test_a_planted_corner_is_one_suspect_cluster(encoding: str) -> None:
    shelf = Shelf(*planted(), encoding=encoding)
    clusterings, job = shelf.clusterings(), shelf.job()
    found = json.loads(clusterings.document(job).model_dump_json(exclude_none=True))
    assert list(found) == ["explained", "read", "classes"]
    assert found["explained"] == found["read"] == COUNT + MARKED + 3
    cats, dogs = found["classes"]
    assert cats["class"] == {"index": ord("c"), "label": "cat"}
    assert cats["maps"] == COUNT + MARKED
    assert "note" not in cats
    assert [each["suspect"] for each in cats["clusters"]].count(True) == 1
    assert [each["cluster"] for each in cats["clusters"]] == list(range(len(cats["clusters"])))
    suspect = cats["clusters"][0]
    assert suspect["items"] == [f"{each}.png" for each in range(COUNT, COUNT + MARKED)]
    assert suspect["numbers"] == [0] * MARKED
    assert suspect["reasons"] == ["same pattern", "own place", "border", "isolated"]
    assert suspect["sentences"][0] == "the heat has one pattern at one fixed place"
    mean = np.array(suspect["mean"])
    assert mean.shape == (14, 14)
    assert mean[-3:, -3:].min() > 0.8 > 0.5 > mean[:-3, :-3].max()
    assert suspect["place"]["x"] > 0.6
    assert suspect["border"] > cats["clusters"][1]["border"]
    assert sum(len(each["items"]) for each in cats["clusters"]) == COUNT + MARKED
    assert dogs == {
        "class": {"index": ord("d"), "label": "dog"},
        "maps": 3,
        "note": "3 maps are too few to be split into clusters; 30 are needed",
        "clusters": [],
    }
    rows = list(csv.DictReader(io.StringIO(clusterings.table(job), newline="")))
    assert [each["id"] for each in rows] == [f"{each}.png" for each in range(COUNT + MARKED)]
    assert [each["id"] for each in rows if each["suspect"] == "true"] == suspect["items"]
    assert len(shelf.read) == COUNT + MARKED + 3  # once: they are kept for the table


def test_a_mark_on_all_photos_of_a_class_is_told() -> None:
    """Each class is one cluster then, and no cluster is suspect."""
    cats, dogs = blobs(40, 0), blobs(40, 1)
    for each in dogs:
        each *= 0.2
        each[-4:, :4] = 0.9
    shelf = Shelf(*([("cat", each)] for each in cats), *([("dog", each)] for each in dogs))
    found = json.loads(shelf.clusterings().document(shelf.job()).model_dump_json(exclude_none=True))
    first, second = found["classes"]
    assert first["class"]["label"] == "dog"
    place = first["own_place"]
    assert place["sentence"] == (
        "all 40 maps of 'dog' look at the bottom left, where no other class looks"
    )
    assert place["where"] == "at the bottom left"
    assert place["items"] == [f"{each}.png" for each in range(40, 80)]
    assert place["numbers"] == [0] * 40
    assert place["place"]["x"] < 0.3 < 0.7 < place["place"]["y"]
    assert "own_place" not in second


def test_of_one_item_one_map_of_a_class_counts() -> None:
    results = [[("cat", each), ("dog", each), ("cat", each.T)] for each in blobs(30, 2)]
    shelf = Shelf(*results)
    found = shelf.clusterings().document(shelf.job()).classes
    assert [(each.class_.label, each.maps) for each in found] == [("cat", 30), ("dog", 30)]
    assert {number for each in found[1].clusters for number in each.numbers} == {1}


@pytest.mark.parametrize("limit", ["MOST", "MOST_PIXELS"])
def test_of_many_items_some_are_read(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    """7 items of which one failed, and room for 2 or 3 maps, of two classes each time."""
    most = {"MOST": 3, "MOST_PIXELS": 3 * 14 * 14}[limit]
    monkeypatch.setattr(clusters, limit, most)
    results: list[list[tuple[str, Float]] | None] = [
        [("cat", each), ("dog", each)] for each in blobs(6, 3)
    ]
    results.insert(1, None)
    shelf = Shelf(*results)
    found = shelf.clusterings().document(shelf.job())
    assert [each.maps for each in found.classes] == [2, 2]
    assert (found.explained, found.read) == (6, 2)
    assert found.note is not None
    assert found.note.startswith("2 of 6 items were read, evenly spaced")
    assert shelf.read == [0, 5]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 8, 1000])
def test_every_beginning_is_evenly_spaced(count: int) -> None:
    order = spread(count)
    assert sorted(order) == list(range(count))
    if count == 8:
        assert order == [0, 4, 2, 6, 1, 5, 3, 7]
    if count == 1000:
        gaps = np.diff(sorted(order[:100]))
        assert gaps.min() >= 5
        assert gaps.max() <= 16


def test_a_job_without_maps_says_why() -> None:
    shelf = Shelf(None, None)
    with pytest.raises(NoMaps, match="2 of its 2 items failed"):
        shelf.clusterings().document(shelf.job())
    few = Shelf([("cat", blobs(1, 0)[0])])
    assert few.clusterings().document(few.job()).classes[0].maps == 1
    with pytest.raises(
        NoMaps, match="has the 30 maps that clusters need; the largest, 'cat', has 1"
    ):
        few.clusterings().table(few.job())


def test_a_job_that_is_removed_meanwhile_is_unknown() -> None:
    shelf = Shelf([("cat", blobs(1, 4)[0])])
    job = shelf.job()
    gone = Job(**{**{name: getattr(job, name) for name in job.__dataclass_fields__}, "done": 5})
    with pytest.raises(UnknownJob, match="was removed while"):
        shelf.clusterings().document(gone)


def test_a_job_has_clusters(jobs: TestClient) -> None:
    images = {f"a,{each}.png": encoded(noise(12, 10, each)) for each in range(36)}
    form = form_of("json", images)
    form["json"] |= {"model": "tiny", "parameters": {"target": 0}}
    job = accepted(jobs.post("/v1/jobs", **form))["id"]
    ended(jobs, job)
    answer = jobs.get(f"/v1/jobs/{job}/clusters")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["vary"] == "Accept"
    [found] = answer.json()["classes"]
    assert found["class"] == {"index": 0, "label": "class 0"}
    assert found["maps"] == 36
    items = [each for cluster in found["clusters"] for each in cluster["items"]]
    assert len(items) == len({*items}) >= 30
    assert {*items} <= {*images}
    table = jobs.get(f"/v1/jobs/{job}/clusters", headers={"Accept": "text/csv"})
    assert table.headers["content-type"] == "text/csv; charset=utf-8"
    rows = list(csv.DictReader(io.StringIO(table.text, newline="")))
    assert {each["id"] for each in rows} == {*images}
    assert {each["id"] for each in rows if each["cluster"]} == {*items}
    refused = jobs.get(f"/v1/jobs/{job}/clusters", headers={"Accept": "image/png"})
    check(refused, 406, "not-acceptable", "application/json, text/csv")
    check(jobs.get("/v1/jobs/none/clusters"), 404, "unknown-job")


def test_more_requests_than_may_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_routes, "CLUSTERS_AT_ONCE", 0)
    with app_with((TINY,), Settings(jobs=tmp_path)) as client:
        form = form_of("json", {"a.png": encoded(noise(12, 10))})
        form["json"] |= {"model": "tiny"}
        job = accepted(client.post("/v1/jobs", **form))["id"]
        ended(client, job)
        answer = client.get(f"/v1/jobs/{job}/clusters")
        check(answer, 429, "queue-full", "which is the maximum")
        assert answer.headers["Retry-After"] == "60"


def test_a_job_that_runs_has_no_clusters_yet(jobs: TestClient) -> None:
    images = {f"{each}.png": encoded(noise(12, 10)) for each in range(20)}
    form = form_of("json", images)
    form["json"] |= {"model": SLOW.name}
    job = accepted(jobs.post("/v1/jobs", **form))["id"]
    answer = jobs.get(f"/v1/jobs/{job}/clusters")
    check(answer, 409, "not-finished", "of 20 are done", f"/v1/jobs/{job}/results")
    assert int(answer.headers["Retry-After"]) >= 1
    jobs.delete(f"/v1/jobs/{job}?purge=true")
