"""A model that lets images see each other explains each as if it were alone."""

from __future__ import annotations

import asyncio
import base64
import io
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from cam import ClassTarget, Question
from service.app import create_app
from service.backend.work import Explain
from service.core.metrics import Metrics
from service.core.pool import PRIORITIES, Priority
from service.engine.engine import Engine
from service.loading.served_model import load
from service.models.catalog import ModelEntry
from service.models.preprocessing import ModelInput
from service.runtimes.paths import offers
from service.settings import Settings
from tests.service.conftest import encoded, noise, running_app, wait_until_ready

pytestmark = pytest.mark.anyio
GIVEN: dict[str, Any] = {"weights": "none", "input_size": 32, "layout": "contiguous"}
MIXING = ModelEntry(name="mixing", source="factory:tests.zoo.hostile:BatchNormed", **GIVEN)
TINY = ModelEntry(name="tiny", source="factory:tests.zoo.factories:tiny", **GIVEN)


def picture(seed: int) -> ModelInput:
    """Noise of a brightness and contrast of its own."""
    noise = np.random.default_rng(seed).normal(64 + 24 * seed, 8 + 8 * seed, (32, 32, 3))
    return ModelInput.of(noise.clip(0, 255).astype(np.uint8))


@pytest.mark.parametrize("priority", PRIORITIES)
@pytest.mark.parametrize("method", ["gradcam", "hirescam", "rise", "integratedgradients"])
async def test_maps_of_concurrent_requests_are_those_of_each_alone(
    method: str, priority: Priority
) -> None:
    question = Question((ClassTarget(1),), method, ("relu2",), budget=10)
    async with Engine(load(MIXING), max_queue=64, metrics=Metrics()) as engine:
        await engine.warm()
        alone = [await engine.ask(Explain(picture(i), [question])) for i in range(6)]
        together = await asyncio.gather(
            *(engine.ask(Explain(picture(i), [question], priority)) for i in range(6))
        )
    assert {outcome.batch_size for outcome in together} == {1}
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_array_equal(one.value.prediction.logits, other.value.prediction.logits)
        (a,), (b,) = one.value.explanations, other.value.explanations
        np.testing.assert_array_equal(a.map, b.map)
        assert a.completeness == b.completeness


@pytest.mark.slow
def test_told_at_load(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    entry = MIXING.model_copy(update={"mode": "fast"})
    model = load(entry)
    assert model.max_batch == 1
    assert model.batching
    (offer,) = offers(entry, model)
    assert offer.path.sizes == (1,)
    assert [record.getMessage() for record in caplog.records if "one by one" in record.message] == [
        f"model mixing is given images one by one: {model.batching}"
    ]
    plain = load(TINY)
    assert (plain.max_batch, plain.batching) == (16, None)
    single = load(MIXING.model_copy(update={"max_batch": 1}))
    assert (single.max_batch, single.batching) == (1, None)  # nothing else was asked for


def test_over_http() -> None:
    def heat(seed: int) -> np.ndarray:
        response = client.post(
            "/v1/models/mixing:explain",
            params={"target": 1, "size": "layer", "normalize": "none", "layer": "relu2"},
            content=encoded(noise(20 + seed, 30, seed).point(lambda value: value * seed // 8)),
            headers={"Content-Type": "image/png", "Accept": "application/x-npy"},
        )
        assert response.status_code == 200, response.text
        values: np.ndarray = np.load(io.BytesIO(response.content))
        return values

    def served() -> TestClient:
        return TestClient(create_app(Settings(cache_bytes=0), [MIXING, TINY]))

    with served() as client:
        wait_until_ready(client)
        with ThreadPoolExecutor(8) as threads:
            together = list(threads.map(heat, range(1, 9)))
        about = client.get("/v1/models/mixing").json()
        assert about["max_batch"] == 1
        assert "depends on the others of its batch" in about["batching"]
        about = client.get("/v1/models/tiny").json()
        assert (about["max_batch"], about["batching"]) == (16, None)
    with served() as client:
        wait_until_ready(client)
        for seed, found in enumerate(together, start=1):
            np.testing.assert_array_equal(found, heat(seed))


def test_a_stochastic_model_is_told_so_in_answers() -> None:
    source = "factory:tests.zoo.hostile:Dropping"
    entry = ModelEntry(name="dropping", source=source, **GIVEN)
    photo = base64.b64encode(encoded(noise(32, 32, 1))).decode()
    asked = {"instances": [{"image": {"b64": photo}}], "parameters": {"target": 1}}
    with running_app(Settings(), [entry, TINY]) as client:
        for name, stochastic in (("dropping", True), ("tiny", False)):
            found = client.post(f"/v1/models/{name}:explain", json=asked).json()
            warnings = found["explanations"][0]["warnings"]
            told = [each for each in warnings if each.startswith("the model is stochastic: two")]
            assert bool(told) is stochastic
