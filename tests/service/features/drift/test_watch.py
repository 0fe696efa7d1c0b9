"""What is recorded of the maps that a model serves, and what the metrics tell of it."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest

from cam import ClassTarget, Explanation, Question
from cam.drift.comparison import compare
from cam.drift.map_statistics import STATISTICS
from cam.drift.origin import Origin
from cam.drift.reference import Reference
from cam.drift.shift import Comparison
from cam.drift.window import Snapshot
from service.backend.outcome import Prediction, ServedAnswer
from service.backend.work import NOTHING
from service.core.errors import Unavailable
from service.core.metrics import Metrics
from service.features.drift import watch as module
from service.features.drift.watch import CLASSES, FREQUENT, SAMPLED_AT_ONCE, DriftWatch
from service.loading.served_model import ServedModel, load
from service.models.catalog import ModelEntry
from service.models.labels import Labels
from tests.waiting import settled, stays_async, until_async

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def model() -> ServedModel:
    entry = ModelEntry(
        name="m",
        source="factory:tests.zoo.factories:tiny",
        weights="none",
        input_size=8,
        device="cpu",
        layout="contiguous",
    )
    return load(entry)


def answer(layer: str, index: int = 0, heat: float = 1.0, method: str = "gradcam") -> ServedAnswer:
    """One map whose heat is in the upper left corner, and `heat` in the opposite one."""
    values = np.zeros((4, 4), np.float32)
    values[0, 0], values[3, 3] = 1, heat
    explained = Explanation(ClassTarget(index), 1.0, 0.75, method, layer, values)
    return ServedAnswer(Prediction(), (explained,))


def recorded(watch: DriftWatch) -> int:
    return watch._window.recorded


def text(metrics: Metrics) -> str:
    return metrics.render(["m"]).decode()


def test_only_maps_that_can_be_compared_are_recorded(model: ServedModel) -> None:
    watch = DriftWatch(model, Metrics())
    mine, layer = watch.question, model.default
    watch.note([mine], answer(layer))
    assert recorded(watch) == 1
    others: list[tuple[Question, ServedAnswer]] = [
        (replace(mine, targets=(ClassTarget(2),)), answer(layer)),
        (replace(mine, targets=(ClassTarget(mask=np.ones((8, 8), bool)),)), answer(layer)),
        (replace(mine, signed=True), answer(layer)),
        (replace(mine, method="layercam"), answer(layer, method="layercam")),
        (replace(mine, layers=("other",)), answer("other")),
        (NOTHING, ServedAnswer(Prediction(), ())),
    ]
    for question, said in others:
        watch.note([question], said)
    assert recorded(watch) == 1
    # One of several methods counts alone.
    both = ServedAnswer(
        Prediction(),
        answer(layer).explanations + answer(layer, method="layercam").explanations,
    )
    watch.note([mine, replace(mine, method="layercam")], both)
    assert recorded(watch) == 2


def test_recording_takes_a_small_share_of_the_time(
    model: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A map takes 10 ms here. Half a second of it is made up for, and then a twentieth of the time:
    5 maps a second."""
    now = 0.0
    monkeypatch.setattr(module, "monotonic", lambda: now)

    def slowly(*given: object) -> None:
        nonlocal now
        now += 0.01

    monkeypatch.setattr(module, "statistics_of", slowly)
    watch = DriftWatch(model, Metrics())

    def answered(count: int, each: float) -> int:
        """Note answers that come after so many seconds each; return how many were recorded."""
        nonlocal now
        before = recorded(watch)
        for _ in range(count):
            now += each
            watch.note([watch.question], answer(model.default))
        return recorded(watch) - before

    assert answered(20, 1) == 20  # it is idle, and all are recorded
    assert 50 <= answered(400, 0) <= 54  # the burst
    assert 48 <= answered(10_000, 0.001) <= 60  # 10 seconds, and those that recording takes
    now += 60
    assert 50 <= answered(400, 0) <= 54


def test_labels_are_bounded(model: ServedModel) -> None:
    metrics = Metrics()
    watch = DriftWatch(model, metrics)
    said = [answer(model.default, index) for index in range(CLASSES + 5)]
    for _ in range(FREQUENT):
        for each in said:
            watch.note([watch.question], each)
    found = {
        line.split('label="')[1].split('"')[0]
        for line in text(metrics).splitlines()
        if line.startswith("gradcam_map_count{")
    }
    assert len(found) == CLASSES + 1
    assert "other" in found
    counts = [
        float(line.rpartition(" ")[2])
        for line in text(metrics).splitlines()
        if line.startswith("gradcam_map_count{") and 'statistic="border"' in line
    ]
    assert sum(counts) == FREQUENT * (CLASSES + 5)


def of_metric(metrics: Metrics, name: str, **labels: str) -> dict[str, float]:
    """Series of a metric that have these labels → value."""
    given = [f'{key}="{value}"' for key, value in labels.items()]
    lines = [line.rpartition(" ") for line in text(metrics).splitlines()]
    return {
        series: float(value)
        for series, _, value in lines
        if series.startswith(f"{name}{{") and all(each in series for each in given)
    }


def test_labels_are_bounded_though_the_model_is_replaced(model: ServedModel) -> None:
    """Series of a histogram stay when a model leaves: another one of its name gets no new ones."""
    metrics = Metrics()
    for first in (0, 10):
        watch = DriftWatch(model, metrics)
        for index in range(first, first + CLASSES):
            for _ in range(FREQUENT):
                watch.note([watch.question], answer(model.default, index))
    assert len(of_metric(metrics, "gradcam_map_count", statistic="flat")) == CLASSES + 1


def test_names_that_mean_something_else_have_an_index(model: ServedModel) -> None:
    metrics = Metrics()
    labels = Labels.of(["all", "other", "cat", "dog", "cat"])
    watch = DriftWatch(replace(model, labels=labels), metrics)
    for index in range(6):
        for _ in range(FREQUENT):
            watch.note([watch.question], answer(model.default, index))
    found = of_metric(metrics, "gradcam_map_count", statistic="flat")
    names = {series.split('label="')[1].split('"')[0] for series in found}
    assert names == {"all (0)", "other (1)", "cat (2)", "dog", "cat (4)", "5", "other"}


def test_flat_maps_are_counted(model: ServedModel) -> None:
    """As 1 among zeros, of which the mean is the share; they have no other statistic."""
    metrics = Metrics()
    watch = DriftWatch(model, metrics)
    said = answer(model.default)
    flat = replace(said.explanations[0], map=np.ones((4, 4), np.float32))
    for each in (said, said, said, replace(said, explanations=(flat,))):
        watch.note([watch.question], each)
    assert [*of_metric(metrics, "gradcam_map_count", statistic="flat").values()] == [4]
    assert [*of_metric(metrics, "gradcam_map_sum", statistic="flat").values()] == [1]
    assert [*of_metric(metrics, "gradcam_map_bucket", statistic="flat", le="0.1").values()] == [3]
    assert [*of_metric(metrics, "gradcam_map_count", statistic="border").values()] == [3]


async def test_a_watch_shows_its_latest_comparison_alone(
    model: ServedModel, reference: Reference
) -> None:
    """Not what was compared before, and nothing before and after it."""
    metrics = Metrics()
    watch = DriftWatch(model, metrics, reference)
    note(watch, 100)
    await watch.drift()
    assert len(of_metric(metrics, "gradcam_drift_psi", label="all")) == 9  # without photos
    assert [*of_metric(metrics, "gradcam_drift_unknown_ratio").values()] == [0]
    for heat in np.random.default_rng(1).random(500).tolist():
        watch.note([watch.question], answer(watch.question.layers[0], 3, heat))
    await watch.drift()
    assert not of_metric(metrics, "gradcam_drift_psi", label="all")
    assert [*of_metric(metrics, "gradcam_drift_unknown_ratio").values()] == [1]
    await watch.close()
    assert "gradcam_drift_moved{" not in text(metrics)
    assert "gradcam_drift_unknown_ratio{" not in text(metrics)
    note(watch, 1)
    await watch.drift()
    assert "gradcam_drift_moved{" not in text(metrics)
    other = DriftWatch(model, metrics, reference)
    note(other, 100)
    await other.drift()
    assert "gradcam_drift_moved{" in text(metrics)
    DriftWatch(model, metrics, reference)
    assert "gradcam_drift_moved{" not in text(metrics)


async def test_a_sample_of_predictions_is_explained(
    model: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No more than a few at a time, and a failure concerns nobody."""
    watch = DriftWatch(model, Metrics(), sample=0.25)
    numbers = iter([0.3, 0.2, 0.1, 0.0, 0.2])
    monkeypatch.setattr(random, "random", lambda: next(numbers))
    asked: list[Question] = []
    going_on = asyncio.Event()

    async def explain(question: Question) -> ServedAnswer:
        asked.append(question)
        await going_on.wait()
        if len(asked) > SAMPLED_AT_ONCE:
            raise Unavailable("no")
        return answer(model.default)

    watch.sample([NOTHING], explain)  # 0.3: not chosen
    watch.sample([watch.question], explain)  # an explanation is none
    for _ in range(3):
        watch.sample([NOTHING], explain)
    await settled()
    assert asked == [watch.question] * SAMPLED_AT_ONCE
    going_on.set()
    await settled()
    assert recorded(watch) == SAMPLED_AT_ONCE
    watch.sample([NOTHING], explain)
    await settled()
    assert recorded(watch) == SAMPLED_AT_ONCE


async def test_nothing_is_sampled_unless_it_is_asked_for(model: ServedModel) -> None:
    watch = DriftWatch(model, Metrics())

    async def explain(question: Question) -> ServedAnswer:
        raise AssertionError

    for _ in range(100):
        watch.sample([NOTHING], explain)
    await settled()


@pytest.fixture
def reference(model: ServedModel) -> Reference:
    """A reference whose maps have their heat elsewhere."""
    rows = np.full((200, len(STATISTICS)), 0.5, np.float32)
    rows += np.linspace(0, 0.1, 200, dtype=np.float32)[:, None]
    origin = Origin("m", model.weights, "gradcam", model.default, "crop")
    return Reference(origin, datetime.now(UTC), np.zeros(200, np.int32), rows)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of maps in the window of each comparison."""
    calls: list[int] = []

    def compared(reference: Reference, snapshot: Snapshot) -> Comparison:
        calls.append(len(snapshot.latest))
        return compare(reference, snapshot)

    monkeypatch.setattr(module, "compare", compared)
    return calls


def note(watch: DriftWatch, count: int, seed: int = 0) -> None:
    for heat in np.random.default_rng(seed).random(count).tolist():
        watch.note([watch.question], answer(watch.question.layers[0], 0, heat))


async def test_metrics_catch_up_after_a_burst(
    model: ServedModel, reference: Reference, calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A comparison at once and, for the maps of the pause, one when it is over: no more maps are
    needed for it."""
    monkeypatch.setattr(module, "PAUSE_SECONDS", 0.5)
    metrics = Metrics()
    watch = DriftWatch(model, metrics, reference)
    note(watch, 60)
    await until_async(lambda: 'gradcam_drift_moved{model="m"}' in text(metrics))
    assert calls == [60]
    note(watch, 30, seed=1)
    note(watch, 30, seed=2)
    await settled()
    assert calls == [60]
    await until_async(lambda: calls == [60, 120])
    await stays_async(lambda: calls == [60, 120], 0.6)  # nothing is new
    found = await watch.drift()
    assert found.comparison is not None
    moved = len(found.comparison.moved)
    assert moved > 0
    assert f'gradcam_drift_moved{{model="m"}} {moved}.0' in text(metrics)
    assert 'gradcam_drift_psi{label="all",model="m",statistic="border"}' in text(metrics)


async def test_samples_alone_bring_the_metrics_up_to_date(
    model: ServedModel, reference: Reference
) -> None:
    metrics = Metrics()
    watch = DriftWatch(model, metrics, reference, sample=1.0)
    heats = iter(np.random.default_rng(0).random(60).tolist())

    async def explain(question: Question) -> ServedAnswer:
        return answer(question.layers[0], 0, next(heats))

    watch.sample([NOTHING], explain)
    await until_async(lambda: 'gradcam_drift_unknown_ratio{model="m"} 0.0' in text(metrics))
    assert "gradcam_drift_moved{" not in text(metrics)  # of one map nothing is known


async def test_callers_share_a_comparison(
    model: ServedModel, reference: Reference, calls: list[int]
) -> None:
    """One who gives up does not take it from the others."""
    watch = DriftWatch(model, Metrics(), reference)
    note(watch, 70)
    impatient, *others = (asyncio.create_task(watch.drift()) for _ in range(3))
    await settled()
    impatient.cancel()
    first, second = await asyncio.gather(*others)
    assert first is second
    assert first.recorded == 70
    assert calls == [70]


async def test_a_closed_watch_does_nothing_more(
    model: ServedModel, reference: Reference, calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither samples nor a comparison that was to come, nor one for a map that comes late."""
    monkeypatch.setattr(module, "PAUSE_SECONDS", 0.05)
    watch = DriftWatch(model, Metrics(), reference, sample=1.0)
    note(watch, 60)
    await until_async(lambda: calls == [60])
    ended: list[str] = []

    async def explain(question: Question) -> ServedAnswer:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        raise AssertionError

    watch.sample([NOTHING], explain)
    await settled()
    note(watch, 60)
    await watch.close()
    assert ended == ["cancelled"]
    watch.sample([NOTHING], explain)
    note(watch, 60)
    idle = DriftWatch(model, Metrics(), reference)  # of which no comparison was to come
    await idle.close()
    note(idle, 60)
    await stays_async(lambda: calls == [60], 0.1)
    left = {task.get_name() for task in asyncio.all_tasks()}
    assert not left & {"explain a sample", "compare with the reference"}
