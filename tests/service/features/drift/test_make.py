"""`gradcam reference`, and the drift of a served model whose entry names it."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from cam.drift.comparison import needed_photos
from cam.drift.map_statistics import STATISTICS
from cam.drift.origin import Origin
from cam.drift.reference import read_reference
from cam.drift.shift import LEAST
from service.app import create_app
from service.cli.main import main
from service.core.errors import ConfigError
from service.features.drift.of_entry import reference_of
from service.loading.served_model import load
from service.models.catalog import ModelEntry, read_catalog
from service.settings import Settings
from tests.service.conftest import wait_until_ready
from tests.service.features.audit.photos import catalog, photo, photos

pytestmark = pytest.mark.contract

COUNT = 120
PHOTO = {"Content-Type": "image/png"}


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr("sys.argv", ["gradcam", "reference", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a catalog, photos, and the reference of the model `corner`."""
    folder = tmp_path_factory.mktemp("reference")
    catalog(folder)
    photos(folder / "photos", COUNT)
    with pytest.MonkeyPatch.context() as patch:
        words = (str(folder / "photos"), "--models", str(folder / "models.toml"))
        output = folder / "reference.parquet"
        assert run(patch, *words, "--model", "corner", "--output", str(output)) == 0
    return folder


def entry(folder: Path, **more: Any) -> ModelEntry:
    corner, *_ = read_catalog(folder / "models.toml")
    given = {
        "reference": str(folder / "reference.parquet"),
        "runtime": os.environ["GRADCAM_RUNTIME"],
        **more,
    }
    return ModelEntry.model_validate({**corner.model_dump(exclude_defaults=True), **given})


def checked(entry: ModelEntry) -> None:
    reference_of(entry, load(entry))


@pytest.fixture
def client(folder: Path, tmp_path: Path) -> Iterator[TestClient]:
    app = create_app(Settings(jobs=tmp_path), [entry(folder)])
    with TestClient(app) as client:
        wait_until_ready(client)
        yield client


def bright(number: int) -> bytes:
    """A photo as those of the reference, whose right half is white: the map has more heat there."""
    with Image.open(io.BytesIO(photo(number))) as opened:
        pixels = np.asarray(opened).copy()
    pixels[:, 16:] = (255, 0, 0)
    pixels[16:] = (255, 255, 255)
    written = io.BytesIO()
    Image.fromarray(pixels).save(written, "PNG")
    return written.getvalue()


def explain(client: TestClient, photo: bytes, query: str = "") -> None:
    answer = client.post(f"/v1/models/corner:explain?{query}", content=photo, headers=PHOTO)
    assert answer.status_code == 200, answer.text


def drift(client: TestClient) -> dict[str, Any]:
    found: dict[str, Any] = client.get("/v1/models/corner/drift").json()
    return found


@pytest.mark.slow
def test_a_reference_has_a_row_for_each_photo(folder: Path) -> None:
    found = read_reference(folder / "reference.parquet")
    assert found.rows.shape == (COUNT, len(STATISTICS))
    assert set(found.classes.tolist()) == set(range(6))
    weights = load(entry(folder)).weights
    assert found.origin == Origin("corner", weights, "gradcam", "features", "crop")


@pytest.mark.slow
def test_a_reference_is_written_to_the_standard_output(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    words = (str(folder / "photos" / "0[0-5]*.png"), "--models", str(folder / "models.toml"))
    assert run(monkeypatch, *words, "--method", "xgradcam", "--fit", "pad") == 0
    written = capfdbinary.readouterr().out
    file = folder / "printed.parquet"
    file.write_bytes(written)
    origin = read_reference(file).origin
    assert (origin.method, origin.fit) == ("xgradcam", "pad")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pattern", "again", "sentences"),
    [
        (
            "0[0-5]*.png",
            3,
            [
                "60 photos of 6 classes, 0 failed, 3 repeated ones left out",
                "warning: 6 classes with fewer than 50 photos will be compared only together with",
                " all others: class 0, class 1, class 2, class 3, class 4, class 5\n",
            ],
        ),
    ],
)
def test_what_a_reference_lacks_is_told(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    pattern: str,
    again: int,
    sentences: list[str],
) -> None:
    for file in (folder / "photos").glob(pattern):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    for number in range(again):
        (tmp_path / f"again{number}.png").write_bytes(photo(7))
    words = (str(tmp_path), "--models", str(folder / "models.toml"))
    assert run(monkeypatch, *words, "--output", str(tmp_path / "made.parquet")) == 0
    told = capsys.readouterr().err
    assert all(each in told for each in sentences), told


@pytest.mark.slow
@pytest.mark.parametrize(
    ("different", "repeated", "sentence"),
    [
        (LEAST - 1, 0, "has 49\n"),
        (LEAST - 1, 3, "has 49, without 3 repeated and 0 failed ones\n"),
    ],
)
def test_a_reference_that_can_never_be_compared_is_refused(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    different: int,
    repeated: int,
    sentence: str,
) -> None:
    """The command refuses too few photos before it explains any."""
    source = photos(tmp_path / "photos", different)
    for number in range(repeated):
        (source / f"again{number}.png").write_bytes(photo(7))
    output = tmp_path / "made.parquet"
    words = (str(source), "--models", str(folder / "models.toml"), "--output", str(output))
    assert run(monkeypatch, *words) == 2
    told = capsys.readouterr().err
    assert "of fewer than 50 different photos can never be compared" in told
    assert sentence in told
    assert not output.exists()


@pytest.mark.slow
def test_a_reference_that_is_hardly_ever_compared_says_how_many_photos_it_needs(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The warning counts 50 photos of 6 classes as 50 ÷ (1 + 6/50 + 6/500) = 44."""
    source = photos(tmp_path / "photos", LEAST)
    output = tmp_path / "made.parquet"
    words = (str(source), "--models", str(folder / "models.toml"), "--output", str(output))
    assert run(monkeypatch, *words) == 0
    told = capsys.readouterr().err
    assert "warning: all classes together can rarely be compared: the photos of 6 classes" in told
    assert (
        f"count as about 44 photos, and a comparison needs 50; collect {needed_photos(6)}" in told
    )
    assert output.exists()


@pytest.mark.slow
def test_ordinary_photos_move_nothing_and_others_are_found(client: TestClient) -> None:
    """The change is told by the answer and by the metrics, with the class and the statistic."""
    before = drift(client)
    assert (before["recorded"], before["moved"], before["photos"]) == (0, None, COUNT)
    assert before["missing"] == (
        "all classes: nothing was compared, because 50 different photos are needed on each side "
        "and the reference has 0, weighted to the live mix of classes and the window of live maps "
        "has 0"
    )
    assert before["unknown"] is None
    assert [each["live"] for each in before["too_few"]] == [0]
    assert "gradcam_drift_moved{" not in client.get("/metrics").text
    # In no order: classes that take turns would look like scenes that take turns.
    order = np.random.default_rng(0)
    for number in order.permutation(range(1000, 1120)).tolist():
        explain(client, photo(number))
    explain(client, photo(1000))  # from the cache, which does not count
    explain(client, photo(1000), "method=layercam")  # nor does another method
    explain(client, photo(1000), "target=3")  # nor a class that was named
    ordinary = drift(client)
    assert ordinary["recorded"] == 120
    assert (ordinary["moved"], ordinary["missing"]) == (False, None)
    assert {each["statistic"] for each in ordinary["shifts"]} > {"entropy", "border", "confidence"}
    text = client.get("/metrics").text
    assert 'gradcam_drift_moved{model="corner"} 0.0' in text
    assert 'gradcam_map_count{label="other",model="corner",statistic="entropy"}' in text
    for number in order.permutation(range(2000, 2400)).tolist():
        explain(client, bright(number))
    found = drift(client)
    assert found["moved"] is True
    moved = [each for each in found["shifts"] if each["moved"]]
    assert found["shifts"][: len(moved)] == moved
    (spread,) = (each for each in moved if each["statistic"] == "spread")
    between = r"between 0\.\d\d and 0\.\d\d"
    assert re.fullmatch(
        "all classes: the spread of the heat is distributed differently: the middle half of the "
        f"photos was {between} and is now {between}",
        spread["sentence"],
    )
    rest = [each for each in found["shifts"] if not each["moved"]]
    assert all(
        each["sentence"].endswith(
            ", by less than what counts as moved" if each["unsure"] else " is as before"
        )
        for each in rest
    )
    text = client.get("/metrics").text
    assert f'gradcam_drift_moved{{model="corner"}} {len(moved)}.0' in text
    assert 'gradcam_drift_psi{label="all",model="corner",statistic="border"}' in text


@pytest.mark.slow
def test_a_sample_of_predictions_is_explained(folder: Path, tmp_path: Path) -> None:
    app = create_app(Settings(jobs=tmp_path), [entry(folder, explain_sample=1.0)])
    with TestClient(app) as client:
        wait_until_ready(client)
        for number in range(10):
            way = "/v1/models/corner:predict"
            assert client.post(way, content=photo(number), headers=PHOTO).status_code == 200
        for _ in range(100):
            if drift(client)["recorded"] > 5:
                break
        assert drift(client)["recorded"] > 5


@pytest.mark.slow
def test_without_a_reference_maps_are_counted(folder: Path, tmp_path: Path) -> None:
    corner, *_ = read_catalog(folder / "models.toml")
    app = create_app(Settings(jobs=tmp_path), [corner])
    with TestClient(app) as client:
        wait_until_ready(client)
        explain(client, photo(1))
        found = drift(client)
    assert (found["recorded"], found["made"], found["shifts"]) == (1, None, [])
    assert found["moved"] is None
    assert found["missing"].startswith("the model has no reference to compare its maps with; ")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"dtype": "float16"}, "was made with other weights or settings"),
        ({"reference": "none.parquet"}, "cannot be read as a reference"),
        ({"reference": "models.toml"}, "cannot be read as a reference"),
    ],
)
def test_a_reference_that_does_not_fit_stops_the_start(
    folder: Path, change: dict[str, Any], sentence: str
) -> None:
    if "reference" in change:
        change = {"reference": str(folder / change["reference"])}
    with pytest.raises(ConfigError) as raised:
        checked(entry(folder, **change))
    assert "key 'reference'" in str(raised.value)
    assert sentence in str(raised.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"method": "scorecam"}, "has maps of scorecam, which are not watched: it needs passes of"),
        ({"method": "rise"}, "has maps of rise, which are not watched: its maps are at the input"),
        ({"method": "odam"}, "has maps of odam, which are not watched: "),
        ({"method": "magic"}, "has maps of 'magic', which is not a method; it can be gradcam, "),
        ({"fit": "stretch"}, "has maps of fit 'stretch'; it can be crop, squash, pad"),
        ({"layer": "nowhere"}, "the model has no layer 'nowhere'"),
    ],
)
def test_a_reference_of_what_cannot_be_watched_stops_the_start(
    folder: Path, change: dict[str, str], sentence: str
) -> None:
    good = read_reference(folder / "reference.parquet")
    file = folder / "strange.parquet"
    replace(good, origin=replace(good.origin, **change)).write(file)
    with pytest.raises(ConfigError) as raised:
        checked(entry(folder, reference=str(file)))
    assert sentence in str(raised.value)


@pytest.mark.slow
def test_the_reference_that_the_catalog_names_can_be_made_and_remade(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entry names a file that is not there yet, or is none."""
    file, models = tmp_path / "reference.parquet", tmp_path / "models.toml"
    first = (folder / "models.toml").read_text().replace("[[models]]", "", 1)
    models.write_text(f'[[models]]\nreference = "{file}"\n{first}')
    words = (str(folder / "photos" / "0[0-5]*.png"), "--models", str(models), "--output", str(file))
    for before in (None, b"no reference"):
        if before:
            file.write_bytes(before)
        assert run(monkeypatch, *words) == 0
        assert len(read_reference(file).rows) == 60


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ("--method", "scorecam"),
            "cannot have maps of scorecam: it needs passes of its own; it can have those of",
        ),
        (
            ("--method", "gradient"),
            "cannot have maps of gradient: its maps are at the input and not at a layer; it can",
        ),
        (("--method", "nothing"), "there is no method 'nothing'"),
        (("--layer", "nowhere"), "has no layer 'nowhere'"),
    ],
)
def test_mistakes_are_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    sentence: str,
) -> None:
    source = photos(tmp_path / "photos", LEAST)
    given = (str(source), "--models", catalog(tmp_path), "--output", str(tmp_path / "r.parquet"))
    assert run(monkeypatch, *given, *words) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "r.parquet").exists()
