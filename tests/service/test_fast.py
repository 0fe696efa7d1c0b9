"""`mode = "fast"`: the same answers, how alike is told, and what happens where nothing compiles."""

from __future__ import annotations

import io
import logging
import shutil
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from cam.fast import FastPath
from service.app import create_app
from service.catalog import ModelEntry
from service.settings import Settings
from tests.service.conftest import encoded, noise, wait_until_ready

TINY = "factory:tests.service.factories:tiny"


def entries(**given: Any) -> list[ModelEntry]:
    common: dict[str, Any] = {"source": TINY, "weights": "none", "input_size": 32, "max_batch": 2}
    return [
        ModelEntry(name="exact", mode="exact", **common),
        ModelEntry(name="fast", mode="fast", **common, **given),
    ]


def heat(client: TestClient, model: str, **query: Any) -> np.ndarray:
    response = client.post(
        f"/v1/models/{model}:explain",
        params={"target": 1, "size": "layer", "normalize": "none", **query},
        content=encoded(noise(40, 30)),
        headers={"Content-Type": "image/png", "Accept": "application/x-npy"},
    )
    assert response.status_code == 200, response.text
    values: np.ndarray = np.load(io.BytesIO(response.content))
    return values


@pytest.mark.skipif(not shutil.which("g++"), reason="there is no compiler")
def test_the_same_answers() -> None:
    with TestClient(create_app(Settings(), entries())) as client:
        wait_until_ready(client, 300)
        about = client.get("/v1/models/fast").json()
        assert about["mode"] == "fast"
        assert 0.98 <= about["fidelity"] <= 1
        plain = client.get("/v1/models/exact").json()
        assert plain["mode"] == "exact"
        assert plain["fidelity"] is None
        for query in ({}, {"method": "layercam"}, {"signed": True}, {"layer": "relu1"}):
            one, other = heat(client, "fast", **query), heat(client, "exact", **query)
            assert one.shape == other.shape
            np.testing.assert_allclose(one, other, atol=0.03 * float(np.abs(other).max() + 1e-9))


def test_a_model_that_does_not_compile_is_served_the_exact_way(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*args: Any) -> None:
        raise RuntimeError("no compiler\nat all")

    monkeypatch.setattr(FastPath, "explain", broken)
    with (
        caplog.at_level(logging.WARNING),
        TestClient(create_app(Settings(), entries())) as client,
    ):
        wait_until_ready(client)
        assert client.get("/v1/models/fast").json()["mode"] == "exact"
        np.testing.assert_allclose(heat(client, "fast"), heat(client, "exact"), rtol=1e-4)
    assert "model fast has no fast path: no compiler at all" in caplog.text


def test_where_nothing_compiles_and_half_precision_is_imitated_there_is_no_fast_path(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("service.registry._has_bfloat16", lambda device: False)
    monkeypatch.setattr(FastPath, "settle", lambda self, image: "no compiler")
    with (
        caplog.at_level(logging.WARNING),
        TestClient(create_app(Settings(), entries()[1:])) as client,
    ):
        wait_until_ready(client)
        assert client.get("/v1/models/fast").json()["mode"] == "exact"
    assert "model fast has no fast path: no compiler" in caplog.text
