"""Recorded graphs, with a stand-in for the recording where there is no card: as on a card, a replay
writes its results where the recording wrote them. tests/device has the real ones."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from cam import ClassTarget, ExplainedImage, Question, explain_batch
from cam.hooks.grids import Grid
from cam.methods.head import pooled_head
from cam.runtimes import cuda_graphs
from cam.runtimes.compiled import FastPath
from cam.runtimes.cuda_graphs import Graphed
from tests.zoo.convolutional import small
from tests.zoo.parts import images

RESULTS = ("_logits", "_activation", "_gradient")


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of what was recorded."""
    names: list[str] = []

    def record(
        work: Callable[[], None], device: torch.device, pool: str | None
    ) -> tuple[Callable[[], None], str]:
        of = work.__self__  # type: ignore[attr-defined]
        assert pool == ("pool" if names else None)
        names.append(work.__name__)
        work()
        places = {name: getattr(of, name) for name in RESULTS if hasattr(of, name)}

        def replay() -> None:
            with torch.set_grad_enabled(names.count("_differentiate") > 0):  # as it was recorded
                work()
            for name, place in places.items():
                place.data.copy_(getattr(of, name))
                if name == "_gradient":
                    setattr(of, name, place)

        return replay, "pool"

    monkeypatch.setattr(cuda_graphs, "_record", record)
    monkeypatch.setattr(cuda_graphs._Recording, "_warm_up", lambda recording: None)
    return names


@pytest.mark.parametrize("headed", [False, True])
def test_replays_say_what_the_model_says(headed: bool, recorded: list[str]) -> None:
    model = small()
    head = pooled_head(model, images(1), "relu2", Grid("channels first", 4, 4)) if headed else None
    fast = FastPath(model, "relu2", dtype=torch.float32, sizes=[1, 3], head=head)
    fast._run = Graphed(fast._probed)
    fast._graphed = True
    # Two targets take two backward passes of one forward pass.
    asked = [Question((ClassTarget(0), ClassTarget(2)), "gradcam", ("relu2",))]
    batches = [images(3, seed=seed) for seed in range(3)] + [images(1, seed=7)]
    found = [fast.explain(x, asked * len(x)) for x in batches]  # read after the last replay
    for x, answers in zip(batches, found, strict=True):
        for one, other in zip(answers, explain_batch(model, x, asked * len(x)), strict=True):
            assert isinstance(one, ExplainedImage)
            assert isinstance(other, ExplainedImage)
            np.testing.assert_allclose(one.logits, other.logits, rtol=1e-5, atol=1e-6)
            assert len(one.explanations) == 2
            for fast_map, exact in zip(one.explanations, other.explanations, strict=True):
                np.testing.assert_allclose(fast_map.map, exact.map, rtol=1e-4, atol=1e-6)
    assert recorded == (["_run"] * 2 if headed else ["_run", "_differentiate"] * 2)
