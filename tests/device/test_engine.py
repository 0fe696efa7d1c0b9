"""The engine on the accelerator: batches, the fast path, exhausted memory, kernels that hang."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch
import torchvision

from cam import ClassTarget, ExplainedImage, Question, explain_batch, spearman
from cam.hooks.grids import Grid
from cam.methods.head import pooled_head
from cam.runtimes.compiled import FastPath
from service.backend.work import Explain
from service.core.errors import Unavailable
from service.core.metrics import Metrics
from service.engine.engine import Engine
from service.engine.lifecycle import ModelLifecycle
from service.loading.served_model import load
from service.models.catalog import ModelEntry
from service.models.preprocessing import ModelInput
from tests.waiting import until_async

pytestmark = pytest.mark.anyio
QUESTION = Question((ClassTarget(1),), "gradcam", ("relu2",))
LONG = 60
WHITE = ModelInput.of(np.full((32, 32, 3), 255, np.uint8))


def entry(factory: str, device: torch.device, **settings: object) -> ModelEntry:
    given: dict[str, object] = {
        "name": factory,
        "source": f"factory:tests.zoo.factories:{factory}",
        "weights": "none",
        "input_size": 32,
        "device": str(device),
        "mode": "exact",
        **settings,
    }
    return ModelEntry.model_validate(given)


def asked(seed: int, side: int = 32) -> Explain:
    pixels = np.random.default_rng(seed).integers(0, 256, (side, side, 3), np.uint8)
    return Explain(ModelInput.of(pixels), [QUESTION])


async def test_a_batch_without_memory_is_halved(device: torch.device) -> None:
    """Twelve images of which four fit: each has the map that it has alone."""
    model = load(entry("wide", device, max_batch=16))
    async with Engine(model, max_queue=32, metrics=Metrics()) as engine:
        alone = [await engine.ask(asked(seed)) for seed in range(12)]
        together = await asyncio.gather(*(engine.ask(asked(seed)) for seed in range(12)))
    assert max(outcome.batch_size for outcome in together) <= 4
    for one, other in zip(alone, together, strict=True):
        (a,), (b,) = one.value.explanations, other.value.explanations
        np.testing.assert_allclose(a.map, b.map, atol=1e-5 * max(float(a.map.max()), 1e-6))


async def test_two_models_on_one_device_do_not_disturb_each_other(device: torch.device) -> None:
    """Each model has a thread of its own, and both use the device at once."""
    models = [load(entry("wide", device, name=name, max_batch=4)) for name in ("a", "b")]
    engines = [Engine(model, max_queue=64, metrics=Metrics()) for model in models]
    async with engines[0], engines[1]:
        alone = [await engines[0].ask(asked(seed)) for seed in range(16)]
        found = await asyncio.gather(
            *(engine.ask(asked(seed)) for seed in range(16) for engine in engines)
        )
    for seed in range(16):
        for outcome in found[2 * seed : 2 * seed + 2]:
            (a,), (b,) = alone[seed].value.explanations, outcome.value.explanations
            np.testing.assert_allclose(a.map, b.map, atol=1e-5 * max(float(a.map.max()), 1e-6))


async def test_a_kernel_that_hangs_costs_its_own_request(device: torch.device) -> None:
    """It is abandoned after `hang_seconds`; the next question has a new worker."""
    lifecycle = ModelLifecycle(
        entry("hanging", device, max_batch=1, mean=(0.0, 0.0, 0.0), std=(0.4, 0.4, 0.4)),
        essential=True,
        max_queue=8,
        cache_bytes=0,
        hang_seconds=1,
        metrics=Metrics(),
    )
    await lifecycle.load()
    watching = asyncio.create_task(lifecycle.watch())
    try:
        assert lifecycle.replicas
        (engine,) = lifecycle.replicas.engines
        fine = await engine.ask(asked(1))
        with pytest.raises(Unavailable) as caught:
            await engine.ask(Explain(WHITE, [QUESTION]))
        assert caught.value.blamed == "batch"
        await until_async(lambda: lifecycle.ready, LONG)
        (other,) = lifecycle.replicas.engines
        assert other is not engine
        again = await other.ask(asked(1))
        np.testing.assert_array_equal(
            fine.value.explanations[0].map, again.value.explanations[0].map
        )
        assert lifecycle.given_up == 1
    finally:
        watching.cancel()
        await asyncio.wait([watching])
        await lifecycle.leave(LONG)


@pytest.mark.slow
@pytest.mark.parametrize("headed", [False, True])
def test_the_fast_path_of_the_device(headed: bool, device: torch.device) -> None:
    """Compiled or recorded, in bfloat16 on an accelerator: its maps agree with the exact ones in
    batches that fill a compiled size and in those that do not."""
    torch.manual_seed(0)
    module = torchvision.models.resnet18(weights=None).eval().to(device)
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(4, 3, 64, 64, generator=generator).to(device)
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    grid = Grid("channels first", 2, 2)
    head = pooled_head(module, images[:1], "layer4", grid) if headed else None
    path = FastPath(module, "layer4", dtype=dtype, sizes=[1, 2, 4], head=head)
    assert path.settle(images[:1]) is None or device.type == "cpu"
    for count in (1, 3, 4):
        questions = [Question((ClassTarget(3),), "gradcam", ("layer4",))] * count
        fast = path.explain(images[:count], questions)
        exact = explain_batch(module, images[:count], questions)
        for one, other in zip(fast, exact, strict=True):
            assert isinstance(one, ExplainedImage)
            assert isinstance(other, ExplainedImage)
            agreement = spearman(one.explanations[0].map, other.explanations[0].map)
            assert agreement is not None
            assert agreement > 0.9
