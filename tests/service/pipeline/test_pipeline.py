"""One call explains an image; what it holds meanwhile is free again however its block is left."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from dataclasses import replace
from io import BytesIO
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from PIL import Image

from service.backend.timings import Timings
from service.backend.work import Evaluate, Explain, Work
from service.core.errors import InvalidParameter, NotAcceptable, Problem, UndecodableImage
from service.core.metrics import Metrics
from service.core.pool import PRIORITIES, Priority
from service.engine.engine import Engine
from service.engine.replicas import Replicas
from service.features.evaluate.judge import evaluate
from service.features.evaluate.parameters import EvaluateParameters
from service.features.tables.rows import rows_of
from service.loading.served_model import load
from service.models.catalog import ModelEntry
from service.pipeline import opened_photo
from service.pipeline.instances import Instance
from service.pipeline.parameters import Parameters
from service.pipeline.pipeline import Pipeline, make_pipeline
from service.pipeline.rendering import Drawing
from service.pipeline.result import NPY, AnswerBudget
from service.settings import Settings
from tests.service.conftest import encoded, noise

pytestmark = pytest.mark.anyio
TINY = ModelEntry(
    name="tiny",
    source="factory:tests.zoo.factories:tiny",
    weights="none",
    input_size=8,
    layout="contiguous",
    device="cpu",
)
ROOM = 4_000_000
SIDE = 40


@pytest.fixture
async def replicas() -> AsyncIterator[Replicas]:
    async with Engine(load(TINY), max_queue=64, metrics=Metrics()) as engine:
        yield Replicas([engine], cache_bytes=0, metrics=Metrics())


@pytest.fixture
async def pipeline() -> AsyncIterator[Pipeline]:
    settings = Settings(pixel_budget=ROOM, max_pixels=ROOM // 8)
    async with make_pipeline(settings, Metrics()) as pipeline:
        yield pipeline


def instance(image: bytes | Problem | None = None, **given: object) -> Instance[Parameters]:
    photo = encoded(noise(SIDE, SIDE)) if image is None else image
    return Instance(3, "a.png", photo, "/image", Parameters.model_validate(given))


async def require_all_room(pipeline: Pipeline) -> None:
    """All pixels of each budget can be held at once."""
    for budget in pipeline._budgets.values():
        for pool in (budget.small, budget.large):
            async with asyncio.timeout(5), pool.hold(10**9):
                pass


@pytest.mark.parametrize("priority", PRIORITIES)
async def test_json_picture_numbers_and_rows_are_of_one_map(
    pipeline: Pipeline, replicas: Replicas, priority: Priority
) -> None:
    saved = []

    def save(drawing: Drawing) -> str:
        saved.append(drawing.number)
        return "there.png"

    async with pipeline.explain(replicas, instance(), priority=priority) as result:
        (described,) = await result.as_json()
        picture = await result.as_picture("image/png")
        numbers = await result.as_picture(NPY)
        (row,) = await rows_of(result, save)
        prediction = result.prediction()
    assert (described.instance, described.id, prediction.instance) == (3, "a.png", 3)
    assert (row.id, row.number, row.picture, saved) == ("a.png", 0, "there.png", [0])
    assert prediction.classes is not None
    assert row.target_index == described.target.index == prediction.classes[0].index
    assert described.heatmap.shape == (SIDE, SIDE)
    assert picture.startswith(b"\x89PNG")
    assert numbers.startswith(b"\x93NUMPY")
    await require_all_room(pipeline)


async def test_several_maps_are_no_picture(pipeline: Pipeline, replicas: Replicas) -> None:
    async with pipeline.explain(replicas, instance(target=[0, 1])) as result:
        assert [each.target.index for each in await result.as_json()] == [0, 1]
        with pytest.raises(NotAcceptable, match="the answer has 2"):
            await result.as_picture("image/png")
    await require_all_room(pipeline)


async def test_a_failed_enter_leaves_nothing(pipeline: Pipeline, replicas: Replicas) -> None:
    for wrong, error in (
        (instance(b"a song"), UndecodableImage),
        (instance(encoded(noise(SIDE, SIDE))[:300]), UndecodableImage),
        (instance(UndecodableImage("it was not there")), UndecodableImage),
        (instance(normalize="none", target=list(range(3)), size="image"), InvalidParameter),
    ):
        with pytest.raises(error):
            async with pipeline.explain(replicas, wrong, budget=AnswerBudget(10**7)):
                raise AssertionError("the block is not entered")
        await require_all_room(pipeline)


async def test_an_exception_in_the_block_frees_the_room(
    pipeline: Pipeline, replicas: Replicas
) -> None:
    with pytest.raises(ZeroDivisionError):
        async with pipeline.explain(replicas, instance()):
            raise ZeroDivisionError
    await require_all_room(pipeline)


async def test_background_work_has_room_of_its_own(pipeline: Pipeline, replicas: Replicas) -> None:
    """Interactive photos that fill their budget hold no job up, nor the other way round."""
    for full, free in (("interactive", "background"), ("background", "interactive")):
        pool = pipeline._budgets[full].small  # type: ignore[index]
        async with pool.hold(10**9):
            waiting = asyncio.create_task(explained(pipeline, replicas, full))
            async with asyncio.timeout(20):
                await explained(pipeline, replicas, free)
            assert not waiting.done()
        await waiting


async def explained(pipeline: Pipeline, replicas: Replicas, priority: str) -> None:
    given: Priority = "interactive" if priority == "interactive" else "background"
    async with pipeline.explain(replicas, instance(), priority=given) as result:
        assert len(await result.as_json()) == 1


async def test_what_crosses_into_the_engine_is_pixels(
    pipeline: Pipeline, replicas: Replicas
) -> None:
    async with pipeline.explain(replicas, instance(fit="squash")) as result:
        pixels = result.seen.pixels
    assert pixels.dtype == np.uint8
    assert pixels.shape == (8, 8, 3)
    photo = noise(SIDE, SIDE).resize((8, 8), Image.Resampling.BILINEAR)
    assert np.abs(pixels.astype(int) - np.asarray(photo)).max() <= 1


class Scoring:
    """Records what is asked of the model, and whether the photo has given its room back when its
    maps are scored."""

    def __init__(self, replicas: Replicas, pipeline: Pipeline, patch: pytest.MonkeyPatch) -> None:
        self.free = 0
        self.asked: list[tuple[str, float | None]] = []
        ask = replicas.ask

        async def noted(work: Work[Any], **options: Any) -> Any:
            if isinstance(work, Explain):
                self.asked += [(each.method, work.until) for each in work.questions]
            elif isinstance(work, Evaluate):
                await require_all_room(pipeline)
                self.free += 1
            return await ask(work, **options)

        patch.setattr(replicas, "ask", noted)


async def test_a_photo_holds_no_room_while_its_maps_are_scored(
    pipeline: Pipeline, replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    scoring = Scoring(replicas, pipeline, monkeypatch)
    asked = instance(evaluate=["complexity"])
    async with pipeline.explain(replicas, asked) as result:
        (scored,) = await result.as_json()
        assert result.photo.size == (SIDE, SIDE)
    assert scoring.free == 1
    assert scored.scores is not None
    async with pipeline.explain(replicas, instance()) as result:
        (plain,) = await result.as_json()
    assert scored.heatmap == plain.heatmap
    await require_all_room(pipeline)


async def test_a_method_of_many_passes_leaves_half_of_the_time_to_the_scores(
    pipeline: Pipeline, replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    scoring = Scoring(replicas, pipeline, monkeypatch)
    now, until = 1000.0, 1060.0
    monkeypatch.setattr(opened_photo, "monotonic", lambda: now)
    async with pipeline.explain(
        replicas, instance(method="rise", evaluate=["complexity"]), until=until
    ):
        pass
    asked = replace(
        instance(), parameters=EvaluateParameters(method=["rise"], metrics=["complexity"])
    )
    await evaluate(pipeline, replicas, asked, Timings(), until=until)  # type: ignore[arg-type]
    async with pipeline.explain(replicas, instance(method="rise"), until=until):
        pass
    (_, first), (_, second), (_, alone) = scoring.asked
    assert first == second == now + 30
    assert alone == until


async def test_a_map_that_was_sent_costs_no_pass_of_the_method(
    pipeline: Pipeline, replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    scoring = Scoring(replicas, pipeline, monkeypatch)
    file = BytesIO()
    np.save(file, np.eye(SIDE))
    sent = {"b64": base64.b64encode(file.getvalue()).decode()}
    parameters = EvaluateParameters.model_validate(
        {"method": "rise", "metrics": ["complexity"], "map": sent}
    )
    asked = replace(instance(), parameters=parameters)
    (found,) = await evaluate(pipeline, replicas, asked, Timings())  # type: ignore[arg-type]
    assert found.method is None
    assert [method for method, _ in scoring.asked] == ["gradcam"]


async def test_ordinary_explanations_are_watched_and_what_is_scored_is_not(
    pipeline: Pipeline,
) -> None:
    watch = Mock()
    async with Engine(load(TINY), max_queue=64, metrics=Metrics()) as engine:
        replicas = Replicas([engine], cache_bytes=0, metrics=Metrics(), watches=[watch])
        parameters = EvaluateParameters.model_validate({"metrics": ["complexity"]})
        asked = replace(instance(encoded(noise(SIDE, SIDE, seed=1))), parameters=parameters)
        await evaluate(pipeline, replicas, asked, Timings())  # type: ignore[arg-type]
        assert watch.answered.call_count == 0
        priorities: list[Priority] = ["background", "interactive"]
        for turn, priority in enumerate(priorities):
            async with pipeline.explain(replicas, instance(), priority=priority):
                assert watch.answered.call_count == turn
