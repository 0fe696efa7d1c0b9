"""Several engines of one model, and what they remember together."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from starlette.testclient import TestClient

from cam import ClassTarget, Question
from service.app import create_app
from service.backend.work import Explain
from service.core.errors import ConfigError, Unexplainable
from service.core.metrics import Metrics
from service.engine.engine import Engine
from service.engine.manager import ModelManager
from service.engine.replicas import Replicas
from service.loading.served_model import load
from service.models.catalog import ModelEntry
from service.models.preprocessing import ModelInput
from service.settings import Settings
from tests.service.conftest import encoded, noise, wait_until_ready
from tests.zoo.parts import hook_count

pytestmark = pytest.mark.anyio

TWO = ModelEntry(
    name="tiny",
    source="factory:tests.zoo.factories:tiny",
    weights="none",
    input_size=32,
    device=["cpu", "cpu"],
)
GRADCAM = Question((ClassTarget(),), "gradcam", ("relu2",))
several_cores = pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one core is not for two")


@pytest.fixture
async def replicas() -> AsyncIterator[Replicas]:
    """Two engines on the CPU, each with a copy of the model."""
    metrics = Metrics()
    async with AsyncExitStack() as scope:
        engines = [
            await scope.enter_async_context(Engine(load(copy), max_queue=64, metrics=metrics))
            for copy in TWO.copies
        ]
        yield Replicas(engines, cache_bytes=1_000_000, metrics=metrics)


def seen(replicas: Replicas, seed: int) -> ModelInput:
    return replicas.model.preprocessing.apply(photo(seed), "squash")


def photo(seed: int) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 255, (40, 50, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


async def test_work_goes_to_whichever_has_least(replicas: Replicas) -> None:
    sizes = [0, 0]
    for turn, engine in enumerate(replicas.engines):
        run = engine.batcher._run

        def counted(items: Any, turn: int = turn, run: Any = run) -> Any:
            sizes[turn] += len(items)
            return run(items)

        engine.batcher._run = counted
    asking = [replicas.ask(Explain(seen(replicas, seed), [GRADCAM])) for seed in range(20)]
    found = await asyncio.gather(*asking)
    assert sum(sizes) == 20
    assert min(sizes) >= 6
    modules = {id(engine.model.module) for engine in replicas.engines}
    assert len(modules) == 2
    for seed, outcome in enumerate(found):
        alone = await replicas.engines[0].ask(Explain(seen(replicas, seed), [GRADCAM]))
        for one, other in zip(outcome.value.explanations, alone.value.explanations, strict=True):
            np.testing.assert_allclose(one.map, other.map, atol=1e-5 * float(other.map.max()))
    assert all(hook_count(engine.model.module) == 0 for engine in replicas.engines)


async def test_the_same_question_is_answered_once(replicas: Replicas) -> None:
    first, second = await asyncio.gather(
        *(replicas.ask(Explain(seen(replicas, 1), [GRADCAM])) for _ in range(2))
    )
    assert first.value is second.value
    later = await replicas.ask(Explain(seen(replicas, 1), [GRADCAM]))
    assert later.value is first.value
    assert (later.batch_size, later.run_seconds) == (0, 0)


@pytest.mark.parametrize(
    "other",
    [
        Question((ClassTarget(1),), "gradcam", ("relu2",)),
        Question((ClassTarget(),), "layercam", ("relu2",)),
        Question((ClassTarget(),), "gradcam", ("relu1",)),
        Question((ClassTarget(),), "gradcam", ("relu2",), signed=True),
        Question((ClassTarget(),), "gradcam", ("relu2",), smooth="eigen"),
        Question((ClassTarget(against=True),), "gradcam", ("relu2",)),
    ],
)
async def test_another_question_is_another_answer(replicas: Replicas, other: Question) -> None:
    first = await replicas.ask(Explain(seen(replicas, 1), [GRADCAM]))
    assert (await replicas.ask(Explain(seen(replicas, 1), [other]))).value is not first.value
    assert (await replicas.ask(Explain(seen(replicas, 2), [GRADCAM]))).value is not first.value


async def test_masks_are_told_apart(replicas: Replicas) -> None:
    """Two targets that compare equal, since their masks are not compared."""
    answers = []
    for side in (slice(0, 16), slice(16, 32)):
        mask = np.zeros((32, 32), bool)
        mask[:, side] = True
        target = ClassTarget(0, mask=mask)
        work = Explain(seen(replicas, 1), [replace(GRADCAM, targets=(target,))])
        with pytest.raises(Unexplainable) as caught:  # a classifier has no masks; each asks anew
            await replicas.ask(work)
        answers.append(caught.value)
    assert answers[0] is not answers[1]


async def test_an_engine_that_has_ended_gets_nothing_more(replicas: Replicas) -> None:
    await replicas.engines[0].__aexit__(None, None, None)
    assert replicas.alive
    for seed in range(4):
        await replicas.ask(Explain(seen(replicas, seed), [GRADCAM]))
    assert not replicas.engines[0].batcher.alive


@pytest.mark.slow
@several_cores
def test_two_engines_on_the_cpu_have_cores_of_their_own() -> None:
    app = create_app(Settings(), [TWO])
    with TestClient(app) as client:
        wait_until_ready(client)
        assert client.get("/v1/models/tiny").json()["device"] == "cpu, cpu"
        replicas = app.state.manager.replicas("tiny")
        bound = [
            engine.batcher._executor.submit(os.sched_getaffinity, 0).result()
            for engine in replicas.engines
        ]
        threads = [
            engine.batcher._executor.submit(torch.get_num_threads).result()
            for engine in replicas.engines
        ]
        assert not bound[0] & bound[1]
        assert threads == [len(each) for each in bound]
        response = client.post(
            "/v1/models/tiny:explain?target=0",
            content=encoded(noise(30, 30)),
            headers={"Content-Type": "image/png"},
        )
        assert response.status_code == 200


def test_another_colour_costs_no_forward_pass() -> None:
    app = create_app(Settings(), [TWO.copies[0]])
    with TestClient(app) as client:
        wait_until_ready(client)
        pictures = [
            client.post(
                f"/v1/models/tiny:explain?target=0&colormap={colormap}&size={size}",
                content=encoded(noise(30, 30)),
                headers={"Content-Type": "image/png", "Accept": "image/png"},
            )
            for colormap, size in (("turbo", "image"), ("viridis", "image"), ("turbo", "model"))
        ]
        assert len({picture.content for picture in pictures}) == 3
        assert 'desc="batch of 0"' in pictures[-1].headers["Server-Timing"]
        metrics = client.get("/metrics").text
    assert 'gradcam_answers_total{how="made",model="tiny"} 1.0' in metrics
    assert 'gradcam_answers_total{how="remembered",model="tiny"} 2.0' in metrics


async def test_more_copies_than_cores_are_refused() -> None:
    entry = TWO.model_copy(update={"device": ["cpu"] * 65})
    async with ModelManager([entry], settings=Settings(max_queue=4), metrics=Metrics()) as manager:
        with pytest.raises(ConfigError, match="65 copies on the CPU need as many cores; there are"):
            await manager.loaded
