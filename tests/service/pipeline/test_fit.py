"""Photos are fitted to a model's input in one way by default, whichever way they come in."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from service.loading.served_model import load
from service.loading.transforms import preprocessing_of
from service.models.catalog import ModelEntry
from service.models.preprocessing import Fit
from service.settings import Settings
from tests.service.conftest import encoded, noise, running_app
from tests.service.features.audit.test_run import audit

PNG = {"Content-Type": "image/png"}
PHOTO = encoded(noise(60, 24))


def entry(name: str = "m", **keys: Any) -> ModelEntry:
    return ModelEntry(
        name=name,
        source="factory:tests.zoo.factories:tiny",
        **{"input_size": 16, "mean": (0, 0, 0), "std": (1, 1, 1), "mode": "exact", **keys},
    )


@pytest.mark.parametrize(
    ("keys", "crop_fit", "shorter", "expected"),
    [
        ({}, "crop", 36, "squash"),
        ({}, "crop", 32, "squash"),
        ({}, "squash", 32, "squash"),
        ({}, "pad", 32, "pad"),
        ({}, "pad", 36, "squash"),  # its crop cuts the border and more away
        ({"resize": 40}, "crop", 36, "crop"),
        ({"crop_ratio": 1.0}, "pad", 36, "crop"),
        ({"fit": "pad"}, "crop", 36, "pad"),
        ({"fit": "squash", "resize": 40}, "crop", 36, "squash"),
        ({"input_size": 64}, "pad", 32, "pad"),
    ],
)
def test_what_auto_means(keys: dict[str, Any], crop_fit: Fit, shorter: int, expected: Fit) -> None:
    given = {"input_size": None, **keys}
    found = preprocessing_of(
        entry(**given),
        size=(32, 32),
        shorter_side=shorter,
        mean=(0.0, 0.0, 0.0),
        std=(1.0, 1.0, 1.0),
        interpolation="bilinear",
        crop_fit=crop_fit,
    )
    assert found.default_fit == expected
    seen = found.apply(noise(60, 24), "auto")
    assert seen.fit == expected
    assert seen.digest == found.apply(noise(60, 24), expected).digest


def test_the_fingerprint_stays_so_that_what_was_made_before_can_be_used() -> None:
    assert load(entry()).fingerprint == load(entry(fit="crop")).fingerprint


@pytest.fixture(scope="module", params=["squash", "crop"])
def fitted(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[Any]:
    """A service whose default fit is that."""
    place = tmp_path_factory.mktemp("jobs")
    model = entry(fit=request.param)
    with running_app(Settings(jobs=place), [model]) as client:
        yield request.param, client


def test_each_way_over_http_has_the_same_default(fitted: tuple[Fit, TestClient]) -> None:
    fit, client = fitted
    assert client.get("/v1/models/m").json()["input"]["default_fit"] == fit
    for operation in (
        "explain?output=values&size=layer", "predict?top_k=3", "evaluate?metrics=complexity",
        "activations?layer=conv1",
    ):  # fmt: skip
        address = f"/v1/models/m:{operation}"
        answers = {
            each: client.post(
                f"{address}{each and '&fit='}{each}", content=PHOTO, headers=PNG
            ).json()
            for each in ("", "auto", "crop", "squash")
        }
        assert not [answer for answer in answers.values() if "status" in answer]
        told = {each: without_fit(answer) for each, answer in answers.items()}
        assert told[""] == told["auto"] == told[fit], operation
        assert told["crop"] != told["squash"], operation
    assert client.get("/v1/models/m/drift").json()["fit"] == fit


def without_fit(answer: Any) -> str:
    for each in answer.get("explanations", []):
        each["warnings"] = []
    return json.dumps({**answer, "timings": None})


def test_a_tag_changes_with_the_default(tmp_path: Path) -> None:
    tags = {}
    for fit in ("squash", "crop", None):
        with running_app(Settings(), [entry(fit=fit)]) as client:
            for asked in ("auto", "squash"):
                address = f"/v1/models/m:explain?fit={asked}"
                answer = client.post(address, content=PHOTO, headers=PNG)
                tags[fit, asked] = answer.headers["etag"]
    assert tags["squash", "auto"] == tags["squash", "squash"] == tags[None, "auto"]
    assert tags["crop", "auto"] != tags["squash", "auto"]
    assert tags["crop", "squash"] == tags["squash", "squash"]


def test_a_job_keeps_the_fit_by_its_name(fitted: tuple[Fit, TestClient]) -> None:
    fit, client = fitted
    for asked in ("", "&fit=auto"):
        address = f"/v1/jobs?model=m{asked}"
        job = client.post(address, files=[("image", ("a.png", PHOTO))]).json()
        assert job["parameters"] == {"fit": fit}
    again = {"Idempotency-Key": "same"}
    sent: dict[str, Any] = {"files": [("image", ("a.png", PHOTO))], "headers": again}
    first, second = (client.post("/v1/jobs?model=m", **sent).json()["id"] for _ in range(2))
    assert first == second


@pytest.mark.slow
def test_an_audit_says_the_fit_by_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(20):
        noise(40, 20, number).save(folder / f"{number}.png")
    models = tmp_path / "models.toml"
    models.write_text(
        '[[models]]\nname = "m"\nsource = "factory:tests.zoo.factories:tiny"\n'
        'input_size = 16\nmean = [0, 0, 0]\nstd = [1, 1, 1]\nfit = "pad"\n'
    )
    asked = ("--method", "gradcam", "--evaluate", "deletion", "--models", str(models))
    code, text = audit(capsys, monkeypatch, str(folder), "--output", str(tmp_path / "out"), *asked)
    assert code == 0, text
    assert json.loads((tmp_path / "out" / "audit.json").read_text())["made_with"]["fit"] == "pad"


# Warnings


def warnings_of(client: TestClient, photo: Image.Image, **query: Any) -> str:
    query = {"method": "gradcam", **query}
    answer = client.post(
        "/v1/models/m:explain", params=query, content=encoded(photo), headers=PNG
    ).json()
    (found,) = answer["explanations"]
    return " ".join(found["warnings"])


@pytest.fixture(scope="module")
def plain() -> Iterator[TestClient]:
    with running_app(Settings(), [entry()]) as client:
        yield client


def test_a_crop_says_how_much_it_leaves_out(plain: TestClient) -> None:
    wide = noise(60, 24)
    # 60 × 24 → 45 × 18; of that the middle 16 × 16.
    assert "the model did not see 68 % of the photo" in warnings_of(plain, wide, fit="crop")
    assert "did not see" not in warnings_of(plain, noise(25, 24), fit="crop")  # 24 %
    for fit in ("squash", "pad"):
        assert "did not see" not in warnings_of(plain, wide, fit=fit)


def test_heat_at_an_edge_that_is_cut_is_told(plain: TestClient) -> None:
    """A channel's gradient map of a photo that is bright at one side of the crop alone."""
    pixels = np.zeros((24, 60, 3), np.uint8)
    pixels[:, 34:] = 255
    found = {
        fit: warnings_of(plain, Image.fromarray(pixels), fit=fit, method="occlusion", budget=16)
        for fit in ("crop", "squash")
    }
    assert "where fit=crop cuts the photo" in found["crop"]
    assert "cuts the photo" not in found["squash"]


@pytest.mark.parametrize(
    ("size", "fit", "told"),
    [
        ((60, 24), "squash", ""),  # 2.5
        ((62, 24), "squash", "one side 2.6 times as much as the other"),
        ((20, 200), "auto", "squashed to 16 × 16: one side 10.0 times"),
        ((20, 200), "pad", ""),
    ],
)
def test_squashing_out_of_all_proportion_is_told(
    plain: TestClient, size: tuple[int, int], fit: str, told: str
) -> None:
    said = warnings_of(plain, noise(*size), fit=fit)
    assert told in said
    assert ("squashed" in said) == bool(told)


@pytest.mark.parametrize(
    ("size", "fit", "told"),
    [
        ((8, 8), "squash", ""),  # twice
        ((7, 7), "squash", "7 × 7 pixels was enlarged 2.3 times to the model's 16 × 16; if the"),
        ((4, 16), "squash", ""),  # one side alone
        ((5, 40), "pad", ""),
        ((5, 6), "crop", "enlarged 3.5 times"),  # to 18 × 21, of which 16 × 16 are seen
    ],
)
def test_a_photo_that_is_much_smaller_than_the_input_is_told(
    plain: TestClient, size: tuple[int, int], fit: str, told: str
) -> None:
    said = warnings_of(plain, noise(*size), fit=fit)
    assert told in said
    assert ("enlarged" in said) == bool(told)
