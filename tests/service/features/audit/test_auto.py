"""`method=auto`: what the audit that a model's entry names recommends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from cam.evaluation.metrics import METRICS, MetricOptions
from service.app import create_app
from service.core.errors import ConfigError
from service.loading.served_model import load
from service.models.catalog import ModelEntry, read_catalog
from service.settings import Settings
from tests.service.conftest import values, wait_until_ready
from tests.service.features.audit.photos import catalog, photo

PHOTO = {"Content-Type": "image/png"}


def audited(folder: Path, method: str = "hirescam", layer: str = "features") -> ModelEntry:
    """The entry of `corner` with an audit beside it."""
    (entry, *_) = read_catalog(Path(catalog(folder)))
    entry = entry.model_copy(update={"runtime": Settings().runtime})
    document: dict[str, Any] = {
        "version": 1,
        "fingerprint": load(entry).weights,
        "recommendation": {"method": method, "layer": layer},
        "made_with": {"fit": "crop"},
        "metrics": {"deletion": METRICS["deletion"].convention(MetricOptions())},
        "quantiles": {"deletion": [0.9] * 101},
    }
    (folder / "audit.json").write_text(json.dumps(document))
    return ModelEntry.model_validate(
        {**entry.model_dump(exclude_defaults=True), "audit": str(folder / "audit.json")}
    )


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    folder = tmp_path_factory.mktemp("auto")
    (_, ignoring, *_) = read_catalog(Path(catalog(folder)))
    app = create_app(Settings(jobs=folder / "jobs"), [audited(folder), ignoring])
    with TestClient(app) as client:
        wait_until_ready(client)
        yield client


def explain(client: TestClient, query: str, model: str = "corner") -> Any:
    return client.post(f"/v1/models/{model}:explain?{query}", content=photo(1), headers=PHOTO)


def test_auto_is_the_method_of_the_audit(client: TestClient) -> None:
    (found,) = explain(client, "method=auto").json()["explanations"]
    assert (found["method"], found["layer"]) == ("hirescam", "features")
    (named,) = explain(client, "method=hirescam").json()["explanations"]
    np.testing.assert_array_equal(values(found), values(named))


def test_another_layer_can_be_named(client: TestClient) -> None:
    (found,) = explain(client, "method=auto&layer=relu").json()["explanations"]
    assert (found["method"], found["layer"]) == ("hirescam", "relu")


def test_auto_stands_beside_other_methods(client: TestClient) -> None:
    found = explain(client, "method=gradcam&method=auto").json()["explanations"]
    assert [each["method"] for each in found] == ["gradcam", "hirescam"]


def test_the_method_that_auto_means_can_be_named_beside_it(client: TestClient) -> None:
    (found,) = explain(client, "method=auto&method=hirescam").json()["explanations"]
    assert (found["method"], found["layer"]) == ("hirescam", "features")


def test_the_model_says_what_auto_is(client: TestClient) -> None:
    document = client.get("/v1/models/corner").json()
    assert document["audited"] == {"method": "hirescam", "layer": "features"}
    assert client.get("/v1/models/ignoring").json()["audited"] is None


def test_a_score_is_compared_with_the_audit(client: TestClient) -> None:
    """All values of the audit are 0.9, so that a better one beats all of them."""
    (found,) = explain(client, "method=auto&evaluate=deletion").json()["explanations"]
    score = found["scores"]["deletion"]
    assert score["value"] < 0.9
    assert score["verdict"].endswith("; 100th percentile of the audit")
    (other,) = explain(client, "method=auto&evaluate=deletion&fit=pad").json()["explanations"]
    assert "of the audit" not in other["scores"]["deletion"]["verdict"]


def test_without_an_audit_auto_is_refused(client: TestClient) -> None:
    answer = explain(client, "method=auto", "ignoring")
    assert answer.status_code == 422
    problem = answer.json()
    assert problem["detail"].startswith("model 'ignoring' has no audit, so method 'auto' means")
    assert problem["pointer"] == "/query/method"


def test_another_audit_is_another_entity_tag(tmp_path: Path) -> None:
    first = load(audited(tmp_path))
    other = load(audited(tmp_path, "layercam"))
    assert first.weights == other.weights
    assert first.fingerprint != other.fingerprint


@pytest.mark.parametrize(
    ("method", "layer", "sentence"),
    [
        ("hirescam", "gone", "the model has no layer 'gone'"),
        ("nothing", "features", "recommends 'nothing'; there is no such method"),
    ],
)
def test_an_audit_that_does_not_fit_stops_the_start(
    tmp_path: Path, method: str, layer: str, sentence: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        load(audited(tmp_path, method, layer))
    assert "key 'audit'" in str(raised.value)
    assert sentence in str(raised.value)


def test_an_audit_of_other_weights_stops_the_start(tmp_path: Path) -> None:
    entry = audited(tmp_path).model_copy(update={"dtype": "float16"})
    with pytest.raises(ConfigError, match="is the audit of other weights or settings"):
        load(entry)
