"""`gradcam batch` on twenty photos, and what the service answers for each of them."""

from __future__ import annotations

import base64
import json
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from tests.service.conftest import MODEL, encoded, noise
from tests.service.features.batch.batches import rows, start, upright_size

pytestmark = pytest.mark.contract

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")


@dataclass(frozen=True)
class Finished:
    folder: Path
    output: Path
    code: int
    out: str
    err: str


@pytest.fixture(scope="module")
def finished(
    photos: dict[int, Image.Image], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Finished]:
    """Twenty photos of all kinds and two that are none, explained once for all these tests."""
    folder = tmp_path_factory.mktemp("photos")
    for turn in range(20):
        image = [*photos.values()][turn % 4]
        left, top = 7 * turn, 5 * turn
        image = image.crop((left, top, left + 200 + 9 * turn, top + 180 + 3 * (turn % 7)))
        kind = FORMATS[turn % len(FORMATS)]
        mode = {2: "L", 9: "RGBA", 14: "CMYK"}.get(turn)
        image = image.convert(mode) if mode and kind in ("TIFF", "WEBP", "GIF") else image
        options = {"quality": 90} if kind == "JPEG" else {}
        if turn in (0, 6):
            exif = Image.Exif()
            exif[0x0112] = 6
            options["exif"] = exif  # type: ignore[assignment]
        file = folder / f"{'deep/er/' if turn % 3 else ''}photo {turn:02}.{kind.lower()}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(encoded(image, kind, **options))
    (folder / "corrupt.jpg").write_bytes(encoded(noise(300, 300), "JPEG")[:3000])
    (folder / "fake.png").write_text("I am a cat")
    output = folder.parent / "output"
    process = start(str(folder), "--output", str(output))
    out, err = process.communicate(timeout=180)
    yield Finished(folder, output, process.returncode, out, err)
    shutil.rmtree(output)


@pytest.mark.slow
def test_it_says_how_many_and_where(finished: Finished) -> None:
    manifest = finished.output / "manifest.parquet"
    assert finished.err == f"20 of 22 images explained, 2 failed: {manifest}\n"
    assert finished.out == ""
    assert finished.code == 1
    assert sorted(each.name for each in finished.output.iterdir()) == [
        *("manifest.parquet", "pictures", "run.json")
    ]
    record = json.loads((finished.output / "run.json").read_text())
    assert record["model"] == "efficientnet-lite0"
    assert record["parameters"] == {"fit": "squash"}
    assert record["source"] == str(finished.folder)


@pytest.mark.slow
def test_each_row_is_what_the_service_answers(finished: Finished, client: TestClient) -> None:
    found = [row for row in rows(finished.output) if row["error"] is None]
    assert len(found) == 20
    assert len({row["target_index"] for row in found}) > 4
    for row in found:
        data = (finished.folder / row["id"]).read_bytes()

        def ask(data: bytes = data, **parameters: str) -> dict[str, Any]:
            instance = {"image": {"b64": base64.b64encode(data).decode()}}
            response = client.post(
                f"{MODEL}:explain", json={"instances": [instance], "parameters": parameters}
            )
            (explanation,) = response.json()["explanations"]
            return {**explanation, **response.json()["predictions"][0]["classes"][0]}

        served = ask()
        target = served["target"]
        assert (row["target_index"], row["target_label"]) == (target["index"], target["label"])
        assert row["target_probability"] == pytest.approx(target["probability"], rel=1e-4)
        assert row["target_score"] == pytest.approx(target["score"], rel=1e-4)
        assert (row["method"], row["layer"]) == (served["method"], served["layer"])
        assert [row["height"], row["width"]] == served["heatmap"]["shape"]
        assert {"x": row["peak_x"], "y": row["peak_y"]} == served["peak"]
        assert (row["predicted_index"], row["predicted_label"]) == (
            served["index"],
            served["label"],
        )
        assert row["predicted_probability"] == pytest.approx(served["probability"], rel=1e-4)
        assert row["correct"] is None  # nobody has named a class
        for name in ("mass", "concentration", "border"):
            assert row[name] == pytest.approx(served[name], rel=1e-3)
        small = ask(output="values", size="layer")["heatmap"]
        covers = [row[f"covers_{edge}"] for edge in ("left", "top", "right", "bottom")]
        assert covers == pytest.approx(list(ask(size="model")["covers"].values()), rel=1e-6)
        assert [row["map_height"], row["map_width"]] == small["shape"]
        expected = np.frombuffer(base64.b64decode(small["data"]), "<f4")
        given = np.frombuffer(row["map"], "<f4")
        assert np.abs(given - expected).max() <= 1e-5 * np.abs(expected).max()
        large = ask(output="values")
        scaled = np.frombuffer(base64.b64decode(large["heatmap"]["data"]), "<f4")
        inside = large["region"]["width"] * large["region"]["height"]
        assert row["mass"] == pytest.approx(scaled.sum(dtype=np.float64) / inside, rel=1e-3)


@pytest.mark.slow
def test_each_picture_is_the_services_own_at_the_photos_size(
    finished: Finished, client: TestClient
) -> None:
    found = [row for row in rows(finished.output) if row["error"] is None]
    assert len({row["picture"] for row in found}) == 20
    on_disk = [file for file in (finished.output / "pictures").rglob("*") if file.is_file()]
    assert len(on_disk) == 20
    for row in found:
        photo = finished.folder / row["id"]
        with Image.open(finished.output / row["picture"]) as picture:
            picture.load()
            assert picture.format == "JPEG"
            assert picture.size == upright_size(photo) == (row["width"], row["height"])
            drawn = np.asarray(picture, np.float32)
        response = client.post(
            f"{MODEL}:explain",
            content=photo.read_bytes(),
            headers={"Content-Type": "image/png", "Accept": "image/jpeg"},
        )
        served = np.frombuffer(response.content, np.uint8)
        assert served.size > 1000
        (finished.folder.parent / "served.jpg").write_bytes(response.content)
        with Image.open(finished.folder.parent / "served.jpg") as expected:
            assert np.abs(drawn - np.asarray(expected, np.float32)).mean() < 0.5


@pytest.mark.slow
def test_what_is_no_image_has_a_row_that_says_why(finished: Finished) -> None:
    failed = {row["id"]: row for row in rows(finished.output) if row["error"] is not None}
    assert {*failed} == {"corrupt.jpg", "fake.png"}
    assert "the image is truncated or corrupt" in failed["corrupt.jpg"]["error"]
    assert failed["fake.png"]["error"].startswith("the 10 bytes are not a JPEG")
    for row in failed.values():
        assert row["problem"] == "urn:gradcam-service:undecodable-image"
        given = {name for name, value in row.items() if value is not None}
        assert given == {"id", "number", "error", "problem"}
    assert {*Counter(row["id"] for row in rows(finished.output)).values()} == {1}


@pytest.mark.slow
def test_what_is_said_in_a_pipe_has_no_control_characters(finished: Finished) -> None:
    assert finished.err.isascii()
    assert finished.err.replace("\n", "").isprintable()
    assert finished.err.count("\n") == 1
