"""What a job stores of its maps, and what is made of it: the table is that of a folder."""

from __future__ import annotations

import io
import json
import zipfile
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from starlette.testclient import TestClient

from service.features.jobs.job_files import BLOCK_BYTES, Folder
from service.features.jobs.records import Finished
from service.features.jobs.results import maps_of
from tests.service.conftest import encoded, noise
from tests.service.features.batch.batches import Shell, catalog, rows
from tests.service.features.jobs.forms import accepted, ended, form_of, results

OLDER = Path(__file__).parent / "data" / "results_of_version_1.ndjson"
"""Results as they were stored before there were records: a picture of a part of the photo, two
overlays, a signed map, and numbers."""
ALIKE = ("picture", "overlay", "used")
"""Columns in which a folder and a job differ by design: a job does not keep what the model used."""


def table(client: TestClient, job: str) -> list[dict[str, Any]]:
    answer = client.get(f"/v1/jobs/{job}/archive?format=parquet")
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = pq.read_table(io.BytesIO(answer.content)).to_pylist()
    return found


def as_text(value: Any) -> str:
    return ",".join(value) if isinstance(value, list) else str(value).lower()


@pytest.mark.parametrize(
    "asked",
    [
        {"fit": "crop", "target": 1, "evaluate": ["deletion", "complexity"]},
        {"fit": "squash", "method": ["gradcam", "layercam"], "output": "overlay"},
        {"signed": True, "normalize": "none", "size": "layer"},
    ],
)
def test_a_job_and_a_folder_have_the_same_table(
    jobs: TestClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    asked: dict[str, Any],
) -> None:
    images = {f"{each}.png": encoded(noise(20, 12, each)) for each in range(3)}
    images["flat.png"] = encoded(noise(1, 1))
    photos = tmp_path / "photos"
    photos.mkdir()
    for name, data in images.items():
        (photos / name).write_bytes(data)
    form = form_of("json", images)
    form["json"] |= {"model": "tiny", "parameters": asked}
    job = accepted(jobs.post("/v1/jobs", **form))["id"]
    ended(jobs, job)
    line = ["--models", catalog(tmp_path)]
    for name, value in asked.items():
        if name == "method":
            line += chain(*(("--method", each) for each in value))
        else:
            line += ["--set", f"{name}={as_text(value)}"]
    code, said = Shell(monkeypatch, capfd)(photos, "--output", tmp_path / "out", *line)
    assert code == 0, said
    folder = rows(tmp_path / "out")
    of_job = {(row["id"], row["number"]): row for row in table(jobs, job)}
    assert of_job.keys() == {(row["id"], row["number"]) for row in folder}
    for row in folder:
        other = of_job[row["id"], row["number"]]
        for name in row.keys() - set(ALIKE):
            if isinstance(row[name], bytes):
                one, two = (np.frombuffer(each[name], "<f4") for each in (row, other))
                np.testing.assert_allclose(one, two, atol=1e-5)
            elif isinstance(row[name], float):
                assert other[name] == pytest.approx(row[name], abs=1e-5), name
            elif isinstance(row[name], list):
                assert dict(other[name]) == pytest.approx(dict(row[name]), abs=1e-5), name
            else:
                assert other[name] == row[name], name
    if "evaluate" in asked:
        assert [name for name, _ in folder[0]["scores"]] == asked["evaluate"]


def test_results_of_version_1_are_read(jobs: TestClient, place: Path) -> None:
    lines = OLDER.read_bytes().splitlines()
    images = {json.loads(line)["item"]: encoded(noise(12, 10)) for line in lines}
    form = form_of("json", images)
    form["json"] |= {"model": "tiny", "parameters": {"target": 1}}
    job = accepted(jobs.post("/v1/jobs", **form))["id"]
    ended(jobs, job)
    folder = Folder(place)
    for number, line in enumerate(lines):
        document = json.loads(line) | {"index": number}
        folder.write_result(job, number, json.dumps(document).encode())

    found = results(jobs, job)
    for line in lines:
        right = json.loads(line)
        assert found[right["item"]]["explanations"] == right["explanations"]
    facts = [
        json.loads(line)
        for line in jobs.get(f"/v1/jobs/{job}/results?maps=false").text.splitlines()
    ]
    assert len(facts) == len(lines)
    for line in facts:
        whole = found[line["item"]]
        assert line["prediction"] == whole["prediction"]
        for mine, other in zip(line["explanations"], whole["explanations"], strict=True):
            assert mine == {name: other[name] for name in other.keys() - {"heatmap", "overlay"}}
    with zipfile.ZipFile(
        io.BytesIO(jobs.get(f"/v1/jobs/{job}/archive?format=zip").content)
    ) as archive:
        assert len(archive.namelist()) == 6
    picture, first, second, signed, numbers = table(jobs, job)
    assert [row["id"] for row in (picture, first, second, signed, numbers)] == [
        "picture", "overlay", "overlay", "signed", "numbers",
    ]  # fmt: skip
    assert [first["number"], second["number"], second["target_index"]] == [0, 1, 1]
    assert first["overlay"].startswith(b"\x89PNG")
    for row in (picture, first, second, signed, numbers):
        assert row["method"] == "gradcam"
        assert row["predicted_index"] == 1
        values = np.frombuffer(row["map"], "<f4").reshape(row["map_height"], row["map_width"])
        assert values.max() == pytest.approx(1)
        assert values.min() == (pytest.approx(-0.25, abs=0.76) if row is signed else 0)
        edges = [row[f"covers_{edge}"] for edge in ("left", "top", "right", "bottom")]
        if row is picture:  # the part of the picture that the model saw
            assert values.shape == (7, 8)
            assert edges == [4, 0, 12, 7]
    assert numbers["map_height"] == numbers["map_width"] == 4
    document = jobs.get(f"/v1/jobs/{job}/clusters").json()
    assert sum(each["maps"] for each in document["classes"]) == 5


def test_a_stored_map_is_the_layers(jobs: TestClient, place: Path) -> None:
    """Whatever is drawn: clusters need no picture."""
    form = form_of("json", {"a": encoded(noise(200, 100))})
    form["json"] |= {"model": "tiny", "parameters": {"output": "overlay"}}
    job = accepted(jobs.post("/v1/jobs", **form))["id"]
    ended(jobs, job)

    class Known:
        id = job

    (record,) = maps_of(Folder(place), Known, Finished(1, 0, "a", None))  # type: ignore[arg-type]
    assert record.map.shape == (4, 4)
    assert record.map.dtype == np.float32
    assert record.picture_shape == (100, 200)
    assert record.facts.method == "gradcam"


def test_results_of_version_2_without_a_prediction_are_read(jobs: TestClient, place: Path) -> None:
    form = form_of("json", {"a": encoded(noise(12, 10))})
    form["json"] |= {"model": "tiny"}
    job = accepted(jobs.post("/v1/jobs", **form))["id"]
    ended(jobs, job)
    address, folder = f"/v1/jobs/{job}/results?maps=false", Folder(place)
    right = jobs.get(address).json()
    document, kept = folder.read_result(job, 0).splitlines()
    older = {name: each for name, each in json.loads(kept).items() if name != "prediction"}
    folder.write_result(job, 0, document + b"\n" + json.dumps(older).encode())
    assert jobs.get(address).json() == right
    assert right["prediction"]


@pytest.mark.parametrize("size", [1, 2, BLOCK_BYTES, 9 * BLOCK_BYTES + 1])
def test_the_last_line_of_a_file_is_read_alone(tmp_path: Path, size: int) -> None:
    folder = Folder(tmp_path)
    last = bytes(range(11, 211)) * (size // 200) + b"x" * (size % 200)
    folder.write_result("job", 0, b"first" * size + b"\n" + last)
    assert folder.read_last_line("job", 0) == last
    folder.write_result("job", 1, last)
    assert folder.read_last_line("job", 1) == b"", "there is no other line"
