"""Measuring one photo: what is asked of the model, and what a record says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cam.evaluation.metrics import MetricOptions
from service.backend.interface import ModelBackend
from service.backend.work import Explain, Work
from service.core.errors import OutOfMemory
from service.features.audit.grids import Neighbours
from service.features.audit.measurement import MAP_SIDE, AuditMeasurement
from service.features.audit.plan import STAGES, plan_of
from service.features.audit.records import PhotoRecord
from service.local.session import LocalSession, local_session
from service.models.preprocessing import ModelInput
from service.pipeline.instances import Instance
from service.pipeline.parameters import Parameters
from service.settings import Settings
from tests.service.features.audit.photos import catalog, photo

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
TOTAL = 30


@pytest.fixture(scope="module", params=["corner", "ignoring", "packed"])
async def session(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[LocalSession]:
    folder = tmp_path_factory.mktemp("models")
    settings = Settings(models=Path(catalog(folder)), cache_bytes=0)
    async with local_session(settings, request.param) as session:
        yield session


async def seen(session: LocalSession, number: int) -> ModelInput:
    instance = Instance(number, str(number), photo(number), "", Parameters())
    found, _ = await session.pipeline.input_of(session.replicas, instance, "background")
    return found


async def measured(
    session: LocalSession,
    number: int,
    target: int | None = None,
    *,
    method: Sequence[str],
    evaluate: Sequence[str] = ("deletion",),
) -> PhotoRecord:
    parameters = Parameters(method=list(method), evaluate=list(evaluate))
    plan = plan_of(session.replicas.model, parameters, TOTAL)
    neighbours = Neighbours(TOTAL, lambda each: seen(session, each))
    replicas: ModelBackend = session.replicas
    measurement = AuditMeasurement(replicas, plan, neighbours)
    return await measurement.measure(number, f"{number}.png", await seen(session, number), target)


async def test_a_record_has_what_was_measured(session: LocalSession) -> None:
    if session.replicas.model.name != "corner":
        pytest.skip("the other models have no maps, or no randomised ones")
    metrics = ["deletion", "complexity", "stability"]
    found = await measured(session, 0, method=["hirescam", "occlusion"], evaluate=metrics)
    assert (found.index, found.item, found.target, found.predicted) == (0, "0.png", 0, 0)
    assert found.asked is False
    assert found.probability == found.confidence > 0.5
    arm, at_input = found.arms["hirescam@features"], found.arms["occlusion"]
    heat = np.array(arm.map)
    assert heat.shape == (8, 8)
    assert heat.max() == 1
    assert heat[:2, :2].sum() == heat.sum()
    assert np.array(at_input.map).shape == (MAP_SIDE, MAP_SIDE)
    assert set(arm.scores) == {"deletion", "complexity", "stability"}
    assert set(found.baselines) == set(MetricOptions().baselines)
    assert set(found.baselines["edges"]) >= {"deletion", "complexity", "stability"}
    assert arm.sanity is not None
    assert len(arm.sanity) == min(STAGES, 2)  # the model has two modules with weights
    assert arm.milliseconds is not None
    assert (arm.forwards, at_input.forwards) == (1, 196)
    assert found.thumbnail is not None
    facts = {"gradcam-service", "torch", "device", "dtype", "fit"}
    assert found.made_with.keys() == facts
    assert (found.made_with["device"], found.made_with["fit"]) == ("cpu", "crop")
    assert found.measured is not None
    assert PhotoRecord.model_validate_json(found.model_dump_json()) == found


async def test_packed_weights_leave_sanity_out(session: LocalSession) -> None:
    if session.replicas.model.name != "packed":
        pytest.skip("the other models have weights that can be replaced")
    found = await measured(session, 0, method=["hirescam"])
    assert found.sanity_problem is not None
    assert "the weights 'head.weight' are of type int8" in found.sanity_problem
    assert found.arms["hirescam@features"].sanity is None
    assert found.arms["hirescam@features"].scores["deletion"] is not None


async def test_equal_maps_are_scored_alike(session: LocalSession) -> None:
    """They are scored once, so their values are the same to the last bit."""
    if session.replicas.model.name != "corner":
        pytest.skip("the other models have no maps, or no randomised ones")
    found = await measured(session, 1, method=["elementwise", "layercam"])
    one, other = found.arms.values()
    assert one.map == other.map
    assert one.scores == other.scores


async def test_the_class_can_be_named(session: LocalSession) -> None:
    found = await measured(session, 2, 5, method=["hirescam"])
    assert (found.target, found.asked) == (5, True)
    # The model does not see class 5, so a map of it has no right place in a grid.
    assert found.predicted != 5 or session.replicas.model.name == "ignoring"
    assert found.arms["hirescam@features"].grids == {}


async def test_a_method_without_a_map_is_only_noted(session: LocalSession) -> None:
    if session.replicas.model.name != "ignoring":
        pytest.skip("the other model has maps")
    for named in (["gradcam", "eigencam"], ["gradcam"]):
        found = await measured(session, 0, method=named)
        assert found.arms["gradcam@features"].map is None
        assert found.arms["gradcam@features"].problem
        assert found.arms["gradcam@features"].scores == {}
        assert found.predicted == found.target


async def test_without_memory_for_a_grid_the_rest_of_the_record_is_kept(
    session: LocalSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    if session.replicas.model.name != "corner":
        pytest.skip("one model is enough")
    ask = session.replicas.ask

    async def small(work: Work[Any], **options: Any) -> Any:
        if isinstance(work, Explain) and work.seen.pixels.shape[0] > 32:
            raise OutOfMemory("no memory left for this image")
        return await ask(work, **options)

    monkeypatch.setattr(session.replicas, "ask", small)
    found = await measured(session, 0, method=["hirescam"])
    assert found.warnings == ["no grid of 2 × 2: no memory left for this image"]
    arm = found.arms["hirescam@features"]
    assert arm.grids == {}
    assert arm.scores["deletion"] is not None
    assert arm.sanity


async def test_a_record_does_not_depend_on_other_photos(session: LocalSession) -> None:
    first = await measured(session, 3, method=["eigencam"])
    await measured(session, 4, method=["eigencam"])
    again = await measured(session, 3, method=["eigencam"])
    assert again.arms["eigencam@features"].scores == first.arms["eigencam@features"].scores
    assert again.arms["eigencam@features"].grids == first.arms["eigencam@features"].grids


def test_a_large_image_is_an_input(tmp_path: Path) -> None:
    found = ModelInput.of(np.zeros((6, 9, 3), np.uint8))
    assert (found.box.right, found.box.bottom) == (9, 6)
    assert found.digest != ModelInput.of(np.ones((6, 9, 3), np.uint8)).digest
