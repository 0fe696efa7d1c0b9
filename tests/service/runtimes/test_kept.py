"""What a start finds out about a model is there for the next one, unless something has changed."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cam import ClassTarget, Question
from service.backend.work import Explain
from service.core.metrics import Metrics
from service.engine.manager import ModelManager
from service.engine.replicas import Replicas
from service.models.catalog import ModelEntry
from service.models.preprocessing import ModelInput
from service.runtimes.warming import fast_path
from service.settings import Settings
from tests.service.runtimes.test_fast import TINY

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
PIXELS = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
SEEN = ModelInput.of(PIXELS)
EXAMINING, FOUND = "examining its layers", "was found in the cache"
JUDGED = "which was judged at an earlier start"


@pytest.fixture(autouse=True)
def log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> Iterator[pytest.LogCaptureFixture]:
    pytest.importorskip("openvino")
    monkeypatch.setattr("service.runtimes.openvino.path.is_installed", lambda: True)
    # For so small a model a busy machine may find it slower.
    monkeypatch.setattr("service.runtimes.warming.MARGIN", 1e9)
    with caplog.at_level(logging.INFO, "service"):
        yield caplog


def entry(**given: Any) -> ModelEntry:
    common: dict[str, Any] = {
        "name": "m",
        "source": "timm:test_resnet",
        "weights": "none",
        "input_size": 64,
        "max_batch": 2,
    }
    return ModelEntry(**{**common, **given})


@asynccontextmanager
async def started(
    folder: Path, model: ModelEntry | None = None, images: int | None = None
) -> AsyncIterator[Replicas]:
    settings = Settings(cache=folder, runtime="auto")
    async with ModelManager(
        [model or entry()],
        settings=settings,
        metrics=Metrics(),
        images=images,
        fast_path=fast_path,
    ) as manager:
        await manager.loaded
        yield manager.replicas("m")


async def a_map(replicas: Replicas, **given: Any) -> np.ndarray:
    question = Question((ClassTarget(3),), "gradcam", (replicas.model.default,), **given)
    return (await replicas.ask(Explain(SEEN, [question]))).value.explanations[0].map


async def test_the_second_start_finds_what_the_first_has_found_out(
    tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    async with started(tmp_path) as replicas:
        first, model = await a_map(replicas), replicas.model
        assert replicas.runtime == "openvino"
    assert EXAMINING in log.text
    assert FOUND not in log.text
    log.clear()
    async with started(tmp_path) as replicas:
        assert replicas.runtime == "openvino"
        np.testing.assert_array_equal(await a_map(replicas), first)
        found = replicas.model
        assert (found.layers, found.default_layer) == (model.layers, model.default_layer)
        assert (found.unsuited, found.channels_last) == (model.unsuited, model.channels_last)
        assert (found.fingerprint, found.method_layers) == (model.fingerprint, model.method_layers)
        # A layer that only the exact path explains: where it lies was found at the first start.
        question = Question((ClassTarget(3),), "gradcam", model.layers_of("refinecam")[:1])
        assert (await replicas.ask(Explain(SEEN, [question]))).value.explanations[0].map.any()
    assert EXAMINING not in log.text
    assert FOUND in log.text
    assert JUDGED in log.text


async def test_other_weights_are_another_model(
    tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    async with started(tmp_path):
        pass
    log.clear()
    async with started(tmp_path, entry(seed=1)):
        pass
    assert EXAMINING in log.text
    assert JUDGED not in log.text


async def test_damaged_and_foreign_files_are_made_anew(
    tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    async with started(tmp_path) as replicas:
        first = await a_map(replicas)
    files = {file: file.read_bytes() for file in tmp_path.iterdir()}
    for file in files:
        file.write_bytes(b"not what was written")
    log.clear()
    async with started(tmp_path) as replicas:
        np.testing.assert_allclose(await a_map(replicas), first, atol=1e-6)
    assert EXAMINING in log.text
    assert JUDGED not in log.text
    assert {file: file.read_bytes() for file in tmp_path.iterdir()}.keys() == files.keys()


async def test_a_factory_s_code_may_change_while_its_weights_do_not(
    tmp_path: Path, log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = entry(source=TINY, input_size=32)
    async with started(tmp_path, model) as replicas:
        exact = replicas.model
        assert replicas.runtime == "openvino"
    kind = type(exact.module)
    forward = kind.forward
    monkeypatch.setattr(kind, "forward", lambda self, images: forward(self, -images))
    log.clear()
    seen = ModelInput.of(PIXELS[:32, :32])
    async with started(tmp_path, model) as replicas:
        assert replicas.runtime == "openvino"
        question = Question((ClassTarget(1),), "gradcam", (replicas.model.default,))
        found = (await replicas.ask(Explain(seen, [question]))).value
        assert found.prediction.logits is not None
        with torch.no_grad():
            images = replicas.model.normalise(seen.pixels[None])
            logits = replicas.model.module(images)[0]
        np.testing.assert_allclose(found.prediction.logits, logits, rtol=1e-4, atol=1e-5)
    assert EXAMINING in log.text


async def test_a_few_images_are_not_worth_a_conversion(
    tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    async with started(tmp_path, images=2) as replicas:
        assert replicas.runtime == "torch"
        few = await a_map(replicas)
    assert "OpenVINO is left out" in log.text
    async with started(tmp_path, entry(runtime="openvino"), images=2) as replicas:
        assert replicas.runtime == "openvino"  # it is asked for
    async with started(tmp_path, images=10**9) as replicas:
        assert replicas.runtime == "openvino"
    async with started(tmp_path, images=2) as replicas:
        assert replicas.runtime == "openvino"  # it is there already
        np.testing.assert_allclose(await a_map(replicas), few, atol=1e-4 * few.max())
