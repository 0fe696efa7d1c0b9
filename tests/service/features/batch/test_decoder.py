"""A batch's photos on Ray, from where they lie to pixels; without Ray."""

from __future__ import annotations

import zipfile
from io import BytesIO
from pathlib import Path

import pyarrow as pa
import pytest
from PIL import Image

from service.features.batch.decoder import DECODED, MOST_PIXELS, Decoder
from tests.service.conftest import encoded, noise
from tests.service.features.batch.batches import small_photos
from tests.service.features.batch.laid import lay

MANY = 10**9


def asked(*names: str, target: str | None = None) -> pa.Table:
    columns = {"id": list(names), "target": pa.array([target] * len(names), pa.string())}
    return pa.table(columns)


def test_pixels_or_why_there_are_none(tmp_path: Path) -> None:
    folder = small_photos(tmp_path / "photos", 1)
    (folder / "fake.png").write_text("I am a cat")
    found = Decoder(str(folder), tmp_path / "out", MANY)(asked("000.png", "fake.png", target="7"))
    assert found.schema.equals(DECODED)
    photo, fake = found.to_pylist()
    assert photo["target"] == fake["target"] == "7"
    assert photo["error"] is None
    assert fake["image"] is None
    assert fake["problem"] == "urn:gradcam-service:undecodable-image"
    with Image.open(BytesIO(photo["image"])) as decoded, Image.open(folder / "000.png") as original:
        assert decoded.format == "BMP"
        assert decoded.tobytes() == original.tobytes()


def test_a_large_photo_travels_as_it_is(tmp_path: Path) -> None:
    photo = encoded(Image.new("RGB", (2001, MOST_PIXELS // 2000)), "PNG")
    (tmp_path / "large.png").write_bytes(photo)
    (found,) = Decoder(str(tmp_path), tmp_path / "out", MANY)(asked("large.png")).to_pylist()
    assert found["image"] == photo


@pytest.mark.parametrize("kind", ["folder", "zip", "table"])
def test_what_has_gone_since_somebody_else_saw_it_fails_alone(tmp_path: Path, kind: str) -> None:
    photo = encoded(noise(8, 8, 0), "PNG")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.png").write_bytes(photo)
    with zipfile.ZipFile(tmp_path / "photos.zip", "w") as archive:
        archive.writestr("a.png", photo)
    (tmp_path / "table.csv").write_text("id,path\na.png,photos/a.png\n")
    source = tmp_path / {"folder": "photos", "zip": "photos.zip", "table": "table.csv"}[kind]
    decoder = Decoder(str(source), tmp_path / "out", MANY)
    there, gone = decoder(asked("a.png", "gone.png")).to_pylist()
    assert there["error"] is None
    assert gone["error"] == "gone.png is not there any more"
    assert gone["problem"] == "urn:gradcam-service:undecodable-image"


def test_what_the_batch_draws_is_none_of_its_images(tmp_path: Path) -> None:
    lay(tmp_path, "a.png", "out/a.png")
    decoder = Decoder(str(tmp_path), tmp_path / "out", MANY)
    (found,) = decoder(asked("out/a.png")).to_pylist()
    assert found["error"] == "out/a.png is not there any more"
