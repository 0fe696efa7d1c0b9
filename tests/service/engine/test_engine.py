"""One engine under concurrent, mixed and failing work; and the model manager around engines."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from cam import METHODS, ClassTarget, Question
from cam.progress import Progress
from service.backend.work import Explain
from service.core.errors import (
    ConfigError,
    Problem,
    QueueFull,
    Unavailable,
    Unexplainable,
    UnknownModel,
)
from service.core.metrics import Metrics
from service.engine.engine import BACKGROUND_GROUP, Engine, smallest_that_pays
from service.engine.manager import ModelManager
from service.features.audit.work import Randomise
from service.loading.served_model import ServedModel, load
from service.models.catalog import EMBEDDED, ModelEntry
from service.models.preprocessing import ModelInput
from service.settings import Settings
from tests.service.conftest import KEPT, restarted
from tests.waiting import settled, until_async
from tests.zoo.parts import hook_count

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def model() -> ServedModel:
    entry = EMBEDDED.model_copy(
        update={"runtime": Settings().runtime}
    )  # as the service asks for it
    return load(entry.copies[0], KEPT)


def image(seed: int) -> ModelInput:
    """Blotches: of fine noise the model sees next to nothing, and a map of nothing is rounding."""
    blotches = np.random.default_rng(seed).integers(0, 256, (14, 14, 3), np.uint8)
    return ModelInput.of(blotches.repeat(16, axis=0).repeat(16, axis=1))


def tiled(seed: int) -> ModelInput:
    return ModelInput.of(np.tile(image(seed).pixels, (2, 2, 1)))


def mixed(index: int) -> Question:
    """Questions that differ in targets, methods and layers.

    Methods that differentiate ask behind the last rectifier. A unit before it whose input is within
    rounding of 0 has either of two derivatives, so the map is decided by rounding: eigengradcam of
    an image of noise at blocks.4 differed by 1.5e-2 of its peak, with one thread, because one unit
    of blocks.5.3.bn1 is 4e-7 alone and -3e-7 in a batch.
    """
    targets = ([None], [285], [967, 5], [None, 1, 2])[index % 4]
    one_pass = [
        name for name, method in METHODS.items() if not (method.formula == "steps" or method.levels)
    ]
    method = one_pass[index % len(one_pass)]
    layers: tuple[str, ...] = ("bn2",)
    if not METHODS[method].differentiates:
        layers = (("bn2",), ("blocks.6",), ("blocks.4", "bn2"))[index % 3]
    return Question(tuple(ClassTarget(target) for target in targets), method, layers)


@pytest.mark.slow
async def test_64_concurrent_mixed_requests_equal_the_same_one_by_one(model: ServedModel) -> None:
    metrics = Metrics()
    async with Engine(model, max_queue=64, metrics=metrics) as engine:
        alone = [await engine.ask(Explain(image(i), [mixed(i)])) for i in range(64)]
        together = await asyncio.gather(
            *(engine.ask(Explain(image(i), [mixed(i)])) for i in range(64))
        )
    assert {outcome.batch_size for outcome in alone} == {1}
    sizes = [outcome.batch_size for outcome in together]
    assert max(sizes) == model.max_batch
    assert sizes.count(1) <= 1
    for one, other in zip(alone, together, strict=True):
        logits, others = one.value.prediction.logits, other.value.prediction.logits
        assert logits is not None
        assert others is not None
        np.testing.assert_allclose(logits, others, atol=1e-4)
        pairs = zip(one.value.explanations, other.value.explanations, strict=True)
        for a, b in pairs:
            assert (a.target, a.method, a.layer) == (b.target, b.method, b.layer)
            peak = max(float(a.map.max()), float(b.map.max()), 1e-12)
            assert np.abs(a.map - b.map).max() / peak <= 1e-4


@pytest.mark.slow
async def test_randomised_models_do_not_disturb_the_questions_beside_them(
    model: ServedModel,
) -> None:
    """The weights are random only while a pass of the randomised model runs."""
    asked = Question((ClassTarget(285),), "layercam", ("bn2",))
    many = replace(asked, method="scorecam", budget=8)
    async with Engine(model, max_queue=64, metrics=Metrics()) as engine:

        async def explain(seed: int) -> NDArray[np.float32]:
            return (await engine.ask(Explain(image(seed), [asked]))).value.explanations[0].map

        alone = [await explain(seed) for seed in range(4)]
        work = Randomise(image(9).pixels, [asked, many], stages=3, seed=0)
        at_work = asyncio.create_task(engine.ask(work))
        beside = await asyncio.gather(*(explain(seed) for seed in range(4)))
        assert not at_work.done()
        stages = (await at_work).value
        own = await explain(9)
    for one, other in zip(alone, beside, strict=True):
        np.testing.assert_allclose(other, one, atol=1e-4)
    assert [len(stage) for stage in stages] == [2, 2, 2]
    last = stages[-1][0]
    assert last is not None
    assert last.shape == own.shape
    assert np.corrcoef(last.ravel(), own.ravel())[0, 1] < 0.9
    assert hook_count(model.module) == 0


@pytest.mark.slow
@pytest.mark.parametrize("max_batch", [1, 4])
async def test_the_warm_up_measures_how_many_images_are_explained_in_a_second(
    model: ServedModel, max_batch: int
) -> None:
    limited = replace(model, max_batch=max_batch)
    async with Engine(limited, max_queue=64, metrics=Metrics()) as engine:
        assert engine.images_a_second == 0
        await engine.warm()
        assert engine.images_a_second > 0


@pytest.mark.slow
async def test_an_image_larger_than_the_input_is_answered_by_the_model_itself(
    model: ServedModel,
) -> None:
    asked = Question((ClassTarget(285),), "gradcam", ("bn2",))
    large = tiled(0)
    async with Engine(model, max_queue=64, metrics=Metrics()) as engine:
        await engine.warm()
        (found,) = (await engine.ask(Explain(large, [asked]))).value.explanations
    assert found.map.shape == (14, 14)


@pytest.mark.slow
async def test_large_background_images_run_one_by_one_and_are_not_padded(
    model: ServedModel,
) -> None:
    """Interactive requests wait for the batch that runs, so one of an audit's grids must be small;
    images of the usual size fill a group, so that jobs can be reproduced."""
    sizes: list[tuple[int, int]] = []
    hook = model.module.register_forward_pre_hook(
        lambda module, args: sizes.append((len(args[0]), args[0].shape[-1]))
    )
    try:
        async with Engine(model, max_queue=64, metrics=Metrics()) as engine:
            asked = [Explain(tiled(seed), priority="background") for seed in range(3)]
            outcomes = await asyncio.gather(*map(engine.ask, asked))
            assert sizes == [(1, 448)] * 3
            await engine.ask(Explain(image(0), priority="background"))
    finally:
        hook.remove()
    assert [outcome.batch_size for outcome in outcomes] == [1, 1, 1]
    assert sizes[3:] == [(BACKGROUND_GROUP, 224)]


async def test_a_size_that_the_model_refuses_is_a_problem_and_no_defect(
    model: ServedModel, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(module: object, args: tuple[Tensor, ...]) -> None:
        assert args[0].shape[-1] == 224, "the input's side is not 224"

    hook = model.module.register_forward_pre_hook(refuse)
    try:
        async with Engine(model, max_queue=64, metrics=Metrics()) as engine:
            with pytest.raises(Unexplainable, match="takes no image of 448 × 448 pixels: Assert"):
                await engine.ask(Explain(tiled(0), priority="background"))
    finally:
        hook.remove()
    assert not caplog.records


async def test_the_weights_are_randomised_for_one_image_at_a_time(
    model: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each holds a second copy of the weights."""
    now, most = 0, 0

    def steps(*args: object, **options: object) -> Generator[Progress, None, list[object]]:
        nonlocal now, most
        now += 1
        most = max(most, now)
        for done in range(3):
            yield Progress(done, 3)
        now -= 1
        return []

    monkeypatch.setattr("cam.randomised_in_steps", steps)
    async with Engine(model, max_queue=64, metrics=Metrics()) as engine:
        work = [Randomise(image(seed).pixels, [mixed(1)], 1, 0) for seed in range(3)]
        await asyncio.gather(*map(engine.ask, work))
        assert most == 1
        assert engine.limited[Randomise] == 0


async def test_a_poisoned_image_fails_alone_and_the_model_is_left_as_found(
    model: ServedModel,
) -> None:
    before = {name: tensor.clone() for name, tensor in model.module.state_dict().items()}
    white = ModelInput.of(np.full((224, 224, 3), 255, np.uint8))

    def poison_white(pixels: NDArray[np.uint8]) -> Tensor:
        images = model.normalise(pixels)
        images[torch.from_numpy((pixels == 255).all((1, 2, 3)))] = math.nan
        return images

    poisonable = replace(model, normalise=poison_white)  # type: ignore[arg-type]
    question = mixed(1)
    async with Engine(poisonable, max_queue=64, metrics=Metrics()) as engine:
        results = await asyncio.gather(
            *(engine.ask(Explain(white if i == 3 else image(i), [question])) for i in range(8)),
            return_exceptions=True,
        )
        assert (await engine.ask(Explain(image(0), [question]))).value.explanations
    assert [isinstance(result, Exception) for result in results].index(True) == 3
    assert sum(isinstance(result, Exception) for result in results) == 1
    assert isinstance(results[3], Unexplainable)
    assert "not finite" in results[3].detail
    assert hook_count(model.module) == 0
    assert not model.module.training
    for name, tensor in model.module.state_dict().items():
        torch.testing.assert_close(tensor, before[name], rtol=0, atol=0)
    assert all(p.grad is None and not p.requires_grad for p in model.module.parameters())


async def test_a_layer_that_fails_a_batch_fails_its_own_item_only(model: ServedModel) -> None:
    bad = Question((ClassTarget(),), "gradcam", ("classifier",))
    async with Engine(model, max_queue=64, metrics=Metrics()) as engine:
        questions = [bad if i == 2 else mixed(1) for i in range(5)]
        results = await asyncio.gather(
            *(engine.ask(Explain(image(i), [questions[i]])) for i in range(5)),
            return_exceptions=True,
        )
    assert [type(r) is Unexplainable for r in results] == [False, False, True, False, False]


async def test_a_full_queue_is_a_429_at_once(model: ServedModel) -> None:
    async with Engine(model, max_queue=2, metrics=Metrics()) as engine:
        tasks = [asyncio.create_task(engine.ask(Explain(image(i), [mixed(1)]))) for i in range(12)]
        results = await asyncio.gather(*tasks, return_exceptions=True)
    refused = [r for r in results if isinstance(r, QueueFull)]
    assert len(refused) == 12 - 2
    assert refused[0].retry_after
    assert "items are waiting" in refused[0].detail


async def test_a_closed_engine_answers_503_and_its_thread_is_gone(model: ServedModel) -> None:
    before = set(threading.enumerate())
    async with Engine(model, max_queue=2, metrics=Metrics()) as engine:
        await engine.warm()
        started = set(threading.enumerate()) - before
        assert any(thread.name.startswith("engine") for thread in started)
    with pytest.raises(Unavailable, match="takes no more requests"):
        await engine.ask(Explain(image(0), [mixed(0)]))
    await until_async(lambda: not any(thread.is_alive() for thread in started))


@pytest.mark.slow
async def test_a_fleet_says_how_far_it_is(tmp_path: Path) -> None:
    entries = [
        EMBEDDED,
        ModelEntry(name="other", source="torchvision:squeezenet1_1", weights="none"),
    ]
    settings = restarted(Settings(max_queue=4))
    async with ModelManager(entries, settings=settings, metrics=Metrics()) as manager:
        assert manager.why_not_ready() == "still loading: efficientnet-lite0, other"
        with pytest.raises(Unavailable, match="still loading") as caught:
            manager.replicas("other")
        assert caught.value.retry_after
        with pytest.raises(UnknownModel, match="the models are efficientnet-lite0, other"):
            manager.replicas("third")
        await manager.loaded
        assert manager.ready
        replicas = manager.replicas("other")
        seen = replicas.model.preprocessing.apply(Image.new("RGB", (30, 20)), "squash")
        assert (await replicas.ask(Explain(seen))).value.explanations == ()
        manager.draining = True
        assert manager.why_not_ready() == "the service is shutting down"
        with pytest.raises(Unavailable, match="shutting down"):
            manager.replicas("other")
    assert not replicas.alive


@pytest.mark.slow
async def test_a_fleet_reports_the_model_that_cannot_be_loaded_and_closes_the_others() -> None:
    entries = [
        ModelEntry(name="good", source="torchvision:squeezenet1_1", weights="none"),
        ModelEntry(name="bad", source="factory:tests.zoo.factories:raising", weights="none"),
    ]
    async with ModelManager(entries, settings=Settings(max_queue=4), metrics=Metrics()) as manager:
        with pytest.raises(ConfigError, match=r"'bad'.*division by zero"):
            await manager.loaded
        good = manager.replicas("good")
        with pytest.raises(Problem):
            manager.replicas("bad")
    assert not good.alive


@pytest.mark.parametrize(
    ("seconds", "chosen"),
    [
        ({1: 0.042, 2: 0.082, 4: 0.162, 8: 0.322}, 1),  # 42 ms an image alone, 40.25 among eight
        ({1: 0.003, 2: 0.004, 4: 0.006, 8: 0.010}, 8),  # 3, 2, 1.5 and 1.25 ms an image
        ({1: 0.010, 2: 0.012, 4: 0.022, 8: 0.042}, 4),  # 10, 6, 5.5 and 5.25 ms: 5.5 < 1.1 * 5.25
    ],
)
def test_the_smallest_batch_that_pays_costs_an_image_a_tenth_more_at_most(
    seconds: dict[int, float], chosen: int
) -> None:
    assert smallest_that_pays(seconds) == chosen


async def test_where_a_batch_costs_what_an_image_costs_batches_are_full() -> None:
    source = "factory:tests.zoo.factories:bulky"
    entry = ModelEntry(name="m", source=source, weights="none", input_size=32, max_batch=8)
    async with Engine(load(entry), max_queue=64, metrics=Metrics()) as engine:
        await engine.warm()
        question = Question((ClassTarget(1),), "gradcam", ("relu2",))
        work = Explain(ModelInput.of(np.zeros((32, 32, 3), np.uint8)), [question])
        first = asyncio.create_task(engine.ask(work))
        await settled(1)
        outcomes = await asyncio.gather(*(engine.ask(work) for _ in range(16)))
        await first
    assert max(outcome.batch_size for outcome in outcomes) == 8
