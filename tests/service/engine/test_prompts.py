"""An engine that is asked about several lists of prompts at once, and the model's own classes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cam import ClassTarget, Question
from service.backend.work import Explain
from service.core.errors import InvalidParameter
from service.core.metrics import Metrics
from service.engine.engine import Engine
from service.engine.replicas import Replicas
from service.loading.served_model import load
from service.models.preprocessing import ModelInput
from tests.service.sources.test_image_text import entry, saved

pytestmark = pytest.mark.anyio
LISTS = ((), ("a dog", "a cat", "a photo"), ("a dog", "control"), ("a photo", "a dog"))


def image(seed: int) -> ModelInput:
    return ModelInput.of(np.random.default_rng(seed).integers(0, 256, (64, 64, 3), np.uint8))


async def test_each_request_has_its_own_classes(tmp_path: Path) -> None:
    model = load(entry(saved(tmp_path / "clip")))
    module: Any = model.module
    question = Question((ClassTarget(),), "gradcam", (model.default,))

    def expected(seen: ModelInput, prompts: tuple[str, ...]) -> torch.Tensor:
        rows = [module.encode(prompt) for prompt in prompts] or [module.weight]
        unit = torch.nn.functional.normalize(
            module.encoders.get_image_features(
                pixel_values=model.normalise(seen.pixels[None])
            ).pooler_output
        )
        return (unit @ torch.cat(rows).T)[0]

    works = [
        Explain(image(seed), (question,), prompts=prompts) for seed in range(3) for prompts in LISTS
    ]
    before = module.weight
    async with Engine(model, max_queue=64, metrics=Metrics()) as engine:
        replicas = Replicas([engine], cache_bytes=2**20, metrics=Metrics())
        for _ in range(2):  # the second time from the cache, whose keys have the prompts
            outcomes = await asyncio.gather(*map(replicas.ask, works))
            for work, outcome in zip(works, outcomes, strict=True):
                logits = expected(work.seen, work.prompts)
                said, (explanation,) = outcome.value.prediction, outcome.value.explanations
                assert said.logits is not None
                np.testing.assert_allclose(said.logits, logits.numpy(), rtol=1e-3, atol=1e-4)
                assert isinstance(explanation.target, ClassTarget)
                assert explanation.target.index == int(logits.argmax())
        with pytest.raises(InvalidParameter, match="knows no word of 'xylophone'"):
            await replicas.ask(Explain(image(0), prompts=("a dog", "xylophone")))
        await replicas.close()
    assert module.weight is before


async def test_the_encoders_run_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(entry(saved(tmp_path / "clip")))
    module: Any = model.module
    runs: list[str] = []

    def counted(name: str) -> None:
        encode = getattr(type(module.encoders), name)

        def run(self: Any, **given: Any) -> Any:
            runs.append(name)
            return encode(self, **given)

        monkeypatch.setattr(type(module.encoders), name, run)

    counted("get_image_features")
    counted("get_text_features")
    question = Question((ClassTarget(),), "gradcam", (model.default,))
    async with Engine(model, max_queue=64, metrics=Metrics()) as engine:
        for seed, texts in ((0, 3), (1, 0)):  # the second photo's texts are known
            runs.clear()
            await engine.ask(Explain(image(seed), (question,), prompts=LISTS[1]))
            assert runs.count("get_image_features") == 1
            assert runs.count("get_text_features") == texts
