"""The engine in front of a stand-in for an accelerator, which computes after its work was given."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bench.accelerator import LAYER, Device, loaded, measure
from cam import ClassTarget, Explanation, Question, explain_batch
from cam.outputs import transfer
from cam.runtimes.compiled import FastPath
from service.backend.outcome import Outcome, ServedAnswer
from service.backend.work import Explain
from service.core.errors import Unexplainable
from service.core.metrics import Metrics
from service.engine.engine import Engine
from service.loading.served_model import ServedModel
from service.models.preprocessing import ModelInput
from service.runtimes.compiled import COMPILED
from service.runtimes.paths import Offer
from service.runtimes.warming import warm_paths
from tests.waiting import stays_async, until_async

pytestmark = pytest.mark.anyio
GRADCAM = Question((ClassTarget(),), "gradcam", (LAYER,))


@pytest.fixture(scope="module")
def model() -> ServedModel:
    return loaded()


@pytest.fixture(scope="module")
def photos() -> list[ModelInput]:
    pixels = np.random.default_rng(1).integers(0, 256, (40, 224, 224, 3), np.uint8)
    return [ModelInput.of(each) for each in pixels]


def the(outcome: Outcome[ServedAnswer]) -> Explanation:
    (explanation,) = outcome.value.explanations
    return explanation


async def test_each_caller_gets_the_answer_about_its_own_photo(
    model: ServedModel, photos: list[ModelInput]
) -> None:
    device = Device(0.01, 0.0)
    with device.attached(model) as attached:
        async with Engine(attached, max_queue=64, metrics=Metrics()) as engine:
            asked = [engine.ask(Explain(photo, (GRADCAM,))) for photo in photos]
            outcomes = await asyncio.gather(*asked)
    assert max(device.sizes) > 1
    images = attached.normalise(np.stack([photo.pixels for photo in photos]))
    alone = explain_batch(
        model.module, images, [GRADCAM] * 40, head=model.head, reading=model.reading
    )
    for outcome, expected in zip(outcomes, alone, strict=True):
        assert not isinstance(expected, Exception)
        found, (right,) = the(outcome), expected.explanations
        assert found.target == right.target
        np.testing.assert_allclose(found.map, right.map, rtol=1e-5, atol=1e-7)
        assert found.score == pytest.approx(right.score, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("callers", "least"), [(64, 16), (256, 32)])
async def test_many_callers_fill_the_batches(model: ServedModel, callers: int, least: int) -> None:
    """The device takes ten times as long as the one of `bench.accelerator`, so that a busy
    processor changes nothing."""
    found = await measure(model, callers, 1.0, first=0.02, image=0.002)
    assert found.batch >= least


class Held(Device):
    """Is done with a batch when it is let."""

    def __init__(self) -> None:
        super().__init__(0.0, 0.0)
        self.done = threading.Semaphore(0)

    def end(self) -> transfer.Event:
        return self

    def synchronize(self) -> None:
        assert self.done.acquire(timeout=30)


async def test_the_device_has_its_next_batch_before_it_is_done(
    model: ServedModel, photos: list[ModelInput]
) -> None:
    device = Held()
    with device.attached(model) as attached:
        async with Engine(attached, max_queue=64, metrics=Metrics()) as engine:
            engine.batcher.interactive_batch = 8
            asked = [asyncio.create_task(engine.ask(Explain(p, (GRADCAM,)))) for p in photos[:24]]
            await until_async(lambda: len(device.sizes) == 2)
            await stays_async(lambda: device.sizes == [8, 8], 0.1)
            assert not any(task.done() for task in asked)
            device.done.release(3)
            await asyncio.gather(*asked)
    assert device.sizes == [8, 8, 8]
    assert transfer.end_of_queue([]) is None  # nothing is left of the stand-in


class Prepared(FastPath):
    """A path that is ready when it is let."""

    def __init__(self, model: ServedModel) -> None:
        super().__init__(
            model.module, LAYER, dtype=torch.float32, sizes=[1, 2], compile=False, head=model.head
        )
        self.begun, self.allowed = threading.Event(), threading.Event()

    def settle(self, image: Tensor) -> str | None:
        self.begun.set()
        assert self.allowed.wait(30)
        return None


@pytest.fixture
def preparing(model: ServedModel) -> ServedModel:
    """A model on another device than the CPU."""
    return replace(model, device=torch.device("meta"), exact=False)


@pytest.fixture
def path(preparing: ServedModel) -> Prepared:
    """A path that is not ready."""
    return Prepared(preparing)


def engine_of(model: ServedModel, path: Prepared, **given: Any) -> Engine:
    prepare = partial(warm_paths, model, [Offer(COMPILED, path)], None)
    return Engine(model, max_queue=64, metrics=Metrics(), fast_path=prepare, **given)


async def test_requests_are_answered_while_the_fast_path_is_prepared(
    preparing: ServedModel, path: Prepared, photos: list[ModelInput]
) -> None:
    told: list[int] = []
    engine = engine_of(preparing, path, changed=lambda: told.append(1))
    async with engine:
        await engine.warm()
        await until_async(path.begun.is_set)
        assert not engine.is_fast("gradcam")
        before = the(await engine.ask(Explain(photos[0], (GRADCAM,))))
        job = asyncio.create_task(engine.ask(Explain(photos[0], (GRADCAM,), "background")))
        await stays_async(lambda: not job.done(), 0.1)  # all maps of a job are made by one path
        path.allowed.set()
        same = the(await job)
        assert told == [1]
        assert engine.is_fast("gradcam")
        after = the(await engine.ask(Explain(photos[0], (GRADCAM,))))
        assert engine._prepare is None  # paths that are not used are not kept
    for each in (same, after):
        np.testing.assert_allclose(each.map, before.map, rtol=1e-4, atol=1e-6)


async def test_leaving_does_not_wait_for_the_compiler(
    preparing: ServedModel, path: Prepared
) -> None:
    engine = engine_of(preparing, path)
    async with asyncio.timeout(20), engine:
        await engine.warm()
        await until_async(path.begun.is_set)
    path.allowed.set()
    assert not engine.is_fast("gradcam")


async def test_a_fast_path_that_cannot_be_made_leaves_the_exact_one(
    preparing: ServedModel, photos: list[ModelInput]
) -> None:
    def fails(worth: float) -> None:
        raise RuntimeError("the device is busy")

    metrics = Metrics()
    async with Engine(preparing, max_queue=64, metrics=metrics, fast_path=fails) as engine:
        await engine.warm()
        await engine.ask(Explain(photos[0], (GRADCAM,), "background"))
        assert not engine.is_fast("gradcam")


async def test_an_error_of_one_photo_is_its_own(
    model: ServedModel, photos: list[ModelInput]
) -> None:
    far = Question((ClassTarget(5000),), "gradcam", (LAYER,))
    with Device(0.01, 0.0).attached(model) as attached:
        async with Engine(attached, max_queue=64, metrics=Metrics()) as engine:
            questions = [far if number == 3 else GRADCAM for number in range(8)]
            asked = [
                engine.ask(Explain(photo, (question,)))
                for photo, question in zip(photos, questions, strict=False)
            ]
            found = await asyncio.gather(*asked, return_exceptions=True)
    assert [isinstance(each, Unexplainable) for each in found] == [n == 3 for n in range(8)]


async def test_a_question_that_cannot_be_asked_is_refused(
    model: ServedModel, photos: list[ModelInput]
) -> None:
    unknown: Any = "twice"
    question = Question((ClassTarget(),), "gradcam", (LAYER,), smooth=unknown)
    with Device(0.01, 0.0).attached(model) as attached:
        async with Engine(attached, max_queue=64, metrics=Metrics()) as engine:
            with pytest.raises(Unexplainable, match="twice"):
                await engine.ask(Explain(photos[0], (question,)))


async def test_a_map_without_a_gradient_says_so(
    model: ServedModel, photos: list[ModelInput]
) -> None:
    """For that the model runs once more, in the thread that waits for the device."""
    weight = model.module.get_parameter("fc.weight")
    kept = weight[7].clone()
    with torch.no_grad():
        weight[7] = 0
    try:
        with Device(0.01, 0.0).attached(replace(model, head=None)) as attached:
            async with Engine(attached, max_queue=64, metrics=Metrics()) as engine:
                question = Question((ClassTarget(7),), "gradcam", (LAYER,))
                outcome = await engine.ask(Explain(photos[0], (question,)))
    finally:
        with torch.no_grad():
            weight[7] = kept
    assert not the(outcome).reached
    assert "has no gradient" in the(outcome).warnings[0]
