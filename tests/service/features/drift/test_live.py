"""Which answers of a model that serves are recorded."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest

from cam import ClassTarget
from cam.drift.origin import Origin
from cam.drift.reference import Reference
from service.backend.work import Explain
from service.core.metrics import Metrics
from service.engine.engine import Engine
from service.engine.replicas import Replicas
from service.features.drift.watch import DriftWatch
from service.features.drift.work import CompareDrift
from service.loading.served_model import load
from tests.service.engine.test_replicas import GRADCAM, TWO, photo
from tests.waiting import until_async

pytestmark = pytest.mark.anyio


def watched_by_drift(
    engine: Engine, reference: Reference | None = None, sample: float = 0.0
) -> Replicas:
    watch = DriftWatch(engine.model, Metrics(), reference, sample=sample)
    return Replicas([engine], cache_bytes=1_000_000, metrics=Metrics(), watches=[watch])


@pytest.fixture
async def replicas() -> AsyncIterator[Replicas]:
    async with Engine(load(TWO.copies[0]), max_queue=64, metrics=Metrics()) as engine:
        yield watched_by_drift(engine)


async def recorded(replicas: Replicas) -> int:
    return (await replicas.ask(CompareDrift())).value.recorded


async def test_photos_that_are_fitted_in_another_way_are_not_watched() -> None:
    """Their maps are others, though the model and the question are the same."""
    model = load(TWO.copies[0])
    origin = Origin("tiny", model.weights, "gradcam", "relu2", "pad")
    reference = Reference(
        origin, datetime.now(UTC), np.zeros(1, np.int32), np.full((1, 8), 0.5, np.float32)
    )
    for compared, expected in ((None, [1, 1, 1]), (reference, [0, 1, 1])):
        async with Engine(model, max_queue=64, metrics=Metrics()) as engine:
            replicas = watched_by_drift(engine, compared)
            found = []
            for fit in ("squash", "pad", "crop"):
                given = model.preprocessing.apply(photo(1), fit)
                await replicas.ask(Explain(given, [GRADCAM], watched=True))
                found.append(await recorded(replicas))
            assert found == expected


async def test_only_live_traffic_is_watched(replicas: Replicas) -> None:
    given = replicas.model.preprocessing.apply(photo(1), "auto")
    await replicas.ask(Explain(given, [GRADCAM]))
    assert await recorded(replicas) == 0
    given = replicas.model.preprocessing.apply(photo(2), "auto")
    await replicas.ask(Explain(given, [GRADCAM], watched=True))
    assert await recorded(replicas) == 1


async def test_a_sample_for_the_watch_costs_the_passes_of_one_image() -> None:
    """Unlike an answer of a job, whose passes have four images, so that it is repeatable."""
    model = load(TWO.copies[0])
    sizes: list[int] = []
    model.module.register_forward_pre_hook(lambda _, given: sizes.append(len(given[0])))
    async with Engine(model, max_queue=64, metrics=Metrics()) as engine:
        replicas = watched_by_drift(engine, sample=1.0)
        given = model.preprocessing.apply(photo(1), "auto")
        await replicas.ask(Explain(given, [GRADCAM], "background"))
        assert sizes == [4]
        sizes.clear()
        await replicas.ask(Explain(given, watched=True))
        await until_async(lambda: len(sizes) > 1)
    assert sizes == [1, 1]


@pytest.mark.parametrize("first", ["gradcam", "scorecam"])
async def test_what_is_watched_does_not_depend_on_the_order_of_methods(
    replicas: Replicas, first: str
) -> None:
    """The methods of later groups are asked for the class that the first one explained."""
    given = replicas.model.preprocessing.apply(photo(1), "auto")
    other = replace(GRADCAM, method="scorecam", budget=4)
    questions = sorted([GRADCAM, other], key=lambda each: each.method != first)
    for number, target in enumerate([ClassTarget(), ClassTarget(1)]):
        asked = [replace(each, targets=(target,)) for each in questions]
        outcome = await replicas.ask(Explain(given, asked, watched=True))
        assert outcome.value.explanations[0].method == first
        assert await recorded(replicas) == 1, number
