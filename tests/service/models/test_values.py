"""A regression is served as values: no class, no probability, wherever its answers are shown."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from PIL import Image
from starlette.testclient import TestClient

from service.core.errors import ConfigError
from service.loading.served_model import load
from service.models.catalog import ModelEntry, read_catalog
from service.settings import Settings
from tests.service.conftest import encoded, noise
from tests.service.features.batch.batches import Shell, rows
from tests.service.features.explain.test_files import explain
from tests.service.features.jobs.conftest import app_with
from tests.service.features.jobs.forms import accepted, ended, results
from tests.service.models.test_reading import FACTORIES, KEYS, PLAIN

WHITE = encoded(Image.new("RGB", (8, 8), "white"))
VALUES = (130.0, -80.0, 70.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("values")
    (folder / "pose.txt").write_text("left\nright\nabove\n")
    (folder / "models.toml").write_text(
        "".join(
            f'[[models]]\nname = "{name}"\nsource = "{FACTORIES}{name}"\n{KEYS}{more}\n'
            for name, more in (
                ("age", 'activation = "none"'),
                ("pose", 'activation = "none"\nlabels = "pose.txt"'),
            )
        )
    )
    return folder


@pytest.fixture(scope="module")
def served(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    settings = Settings(jobs=tmp_path_factory.mktemp("jobs"))
    with app_with(read_catalog(folder / "models.toml"), settings) as client:
        yield client


def ask(client: TestClient, model: str, **parameters: Any) -> Any:
    instance = {"image": {"b64": base64.b64encode(WHITE).decode()}}
    body = {"instances": [instance], "parameters": parameters}
    return client.post(f"/v1/models/{model}:explain", json=body)


def test_the_model_says_that_it_has_values(served: TestClient) -> None:
    age, pose = (served.get(f"/v1/models/{name}").json() for name in ("age", "pose"))
    assert [each["kind"] for each in (age, pose)] == ["value", "value"]
    assert (age["classes"], age["labels"]) == (1, ["value"])
    assert (pose["classes"], pose["labels"]) == (3, ["left", "right", "above"])
    assert age["activation_reason"] == "it is set in the model's entry"
    reasons = {each["name"]: each.get("reason") for each in age["methods"]}
    assert "probability" in reasons["rise"]
    assert reasons["finercam"] == "it compares a class with others: it needs a classifier"


def test_a_prediction_is_the_values(served: TestClient) -> None:
    response = served.post(
        "/v1/models/pose:predict?top_k=1", content=WHITE, headers={"Content-Type": "image/png"}
    )
    (found,) = response.json()["predictions"]
    assert found == {
        "instance": 0,
        "values": [
            {"index": index, "label": label, "value": pytest.approx(value, rel=1e-5)}
            for index, (label, value) in enumerate(
                zip(("left", "right", "above"), VALUES, strict=True)
            )
        ],
    }


def test_a_map_explains_a_value_or_minus_the_value(served: TestClient) -> None:
    body = ask(served, "age", target=[0, {"class": 0, "against": True}]).json()
    assert body["predictions"][0]["values"][0]["value"] == pytest.approx(130, rel=1e-5)
    value, against = (each["target"] for each in body["explanations"])
    assert value == {
        "index": 0,
        "label": "value",
        "score": pytest.approx(130, rel=1e-5),
        "of": "value",
    }
    assert (against["score"], against["against"]) == (pytest.approx(-130, rel=1e-5), True)
    assert all("correct" not in each for each in body["explanations"])
    chosen = ask(served, "pose", target="right").json()["explanations"][0]["target"]
    assert (chosen["index"], chosen["score"]) == (1, pytest.approx(-80, rel=1e-5))
    default = ask(served, "pose", method="occlusion", budget=9).json()["explanations"][0]["target"]
    assert (default["index"], "probability" in default) == (0, False)
    less = ask(served, "pose", target={"class": 0, "minus": "right"})
    assert less.json()["explanations"][0]["target"]["score"] == pytest.approx(210, rel=1e-5)


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (3, "output 3 is out of range; model 'pose' has outputs 0 to 2"),
        ({"class": 0, "of": "probability"}, "are values, which have no probability"),
        ({"class": 0, "box": [0, 0, 4, 4]}, "computes values of whole photos"),
    ],
)
def test_what_a_value_does_not_have(served: TestClient, target: Any, words: str) -> None:
    response = ask(served, "pose", target=target)
    assert response.status_code in (400, 422)
    assert words in response.json()["detail"]


def test_what_needs_a_probability_says_so(served: TestClient) -> None:
    photo: dict[str, Any] = {"content": WHITE, "headers": {"Content-Type": "image/png"}}
    scored = served.post("/v1/models/age:evaluate", **photo)
    assert scored.status_code == 422
    assert "values, and metrics compare probabilities" in scored.json()["detail"]
    for method, words in (("rise", "probability"), ("finercam", "compares a class with others")):
        refused = served.post(f"/v1/models/age:explain?method={method}", **photo)
        assert refused.status_code == 422
        assert words in refused.json()["detail"]


@pytest.mark.parametrize("output", ["panel", "contour", "overlay"])
def test_pictures_need_no_probability(served: TestClient, output: str) -> None:
    response = served.post(
        f"/v1/models/age:explain?output={output}",
        content=WHITE,
        headers={"Content-Type": "image/png", "Accept": "image/png"},
    )
    assert response.status_code == 200, response.text
    Image.open(io.BytesIO(response.content)).verify()


def test_what_hooks_see(served: TestClient) -> None:
    response = served.post(
        "/v1/models/pose:activations?layer=layer&concepts=2&target=1",
        content=encoded(noise(8, 8)),
        headers={"Content-Type": "image/png"},
    )
    assert response.status_code == 200, response.text
    (found,) = response.json()["activations"]
    assert "classes" not in found["concepts"][0]


def test_a_job_has_values_and_no_probabilities(served: TestClient) -> None:
    instance = {"id": "white", "image": {"b64": base64.b64encode(WHITE).decode()}}
    body = {"model": "pose", "instances": [instance], "parameters": {"target": "above"}}
    job = accepted(served.post("/v1/jobs", json=body))["id"]
    assert ended(served, job)["state"] == "done"
    (line,) = results(served, job).values()
    assert [each["value"] for each in line["prediction"]["values"]] == pytest.approx(VALUES)
    archive = served.get(f"/v1/jobs/{job}/archive?format=parquet")
    (row,) = pq.read_table(io.BytesIO(archive.content)).to_pylist()
    check_row(row)


def check_row(row: dict[str, Any]) -> None:
    assert (row["target"], row["target_index"]) == ("above", 2)
    assert row["target_score"] == pytest.approx(70, rel=1e-5)
    for name in ("target_probability", "predicted_probability", "predicted_index", "correct"):
        assert row[name] is None


def test_the_commands_show_values(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "white.png").write_bytes(WHITE)
    models = ("--models", str(folder / "models.toml"), "--model", "pose", "--target", "above")
    code, told = explain(
        str(tmp_path / "photos" / "white.png"), *models, "--output", str(tmp_path / "maps")
    )
    assert code == 0
    assert "value" in told
    assert "probability" not in told
    assert "70" in told
    report = tmp_path / "report.html"
    out = tmp_path / "out"
    code, said = Shell(monkeypatch, capsys)(
        tmp_path / "photos", "--output", out, *models, "--report", report
    )
    assert code == 0, said
    (row,) = rows(out)
    check_row(row)
    assert "above" in report.read_text()


def test_a_models_own_probabilities_are_served_as_they_are() -> None:
    """A hierarchy: 0.2, and the children's 0.8 · 0.7 and 0.8 · 0.3."""
    served = load(ModelEntry(name="m", source=f"{FACTORIES}hierarchical", **PLAIN))
    assert (served.kind, served.activation) == ("classes", "none")
    assert served.activation_reason == "its outputs are in 0 … 1 and add up to 1 over the classes"


def test_a_model_without_a_head_is_refused_with_the_remedy() -> None:
    entry = ModelEntry(name="m", source=f"{FACTORIES}headless", weights="none", input_size=64)
    words = "key 'source': the model has no head .* its head is an identity; take a source with"
    with pytest.raises(ConfigError, match=words):
        load(entry)
