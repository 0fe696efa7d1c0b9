"""`mode = "fast"`: the same answers, how alike is told, and what happens where nothing compiles."""

from __future__ import annotations

import io
import logging
import shutil
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient
from torch import Tensor, nn

from cam import METHODS, ClassTarget, ExplainedImage, Question
from cam.agreement import Fidelity
from cam.outputs.output import Output
from cam.passes.batch_answer import BatchAnswer
from cam.runtimes.compiled import FastPath
from cam.runtimes.fidelity import likeness
from service.app import create_app
from service.backend.work import Explain
from service.core.metrics import Metrics
from service.engine.engine import Engine
from service.engine.fast_path import WarmPath
from service.engine.replicas import Replicas
from service.loading.served_model import ServedModel, load
from service.models.catalog import ModelEntry
from service.models.preprocessing import ModelInput
from service.runtimes.compiled import COMPILED
from service.runtimes.paths import Offer
from service.runtimes.warming import warm_paths
from service.settings import Settings
from tests.service.conftest import encoded, noise, wait_until_ready
from tests.zoo.convolutional import small

TINY = "factory:tests.zoo.factories:tiny"

JUDGED = {
    name for name, method in METHODS.items() if method.formula == "weights" and not method.levels
}
"""The methods that a fast path in half precision may serve a classifier's maps by."""


def entries(**given: Any) -> list[ModelEntry]:
    common: dict[str, Any] = {"source": TINY, "weights": "none", "input_size": 32, "max_batch": 2}
    return [
        ModelEntry(name="exact", mode="exact", **common),
        ModelEntry(name="fast", mode="fast", **common, **given),
    ]


def heat(client: TestClient, model: str, **query: Any) -> np.ndarray:
    response = client.post(
        f"/v1/models/{model}:explain",
        params={"target": 1, "size": "layer", "normalize": "none", **query},
        content=encoded(noise(40, 30)),
        headers={"Content-Type": "image/png", "Accept": "application/x-npy"},
    )
    assert response.status_code == 200, response.text
    values: np.ndarray = np.load(io.BytesIO(response.content))
    return values


def mode(client: TestClient, model: str, **query: Any) -> str:
    """What computed the map, as the answer tells it."""
    response = client.post(
        f"/v1/models/{model}:explain",
        params={"target": 1, **query},
        content=encoded(noise(40, 30)),
        headers={"Content-Type": "image/png"},
    )
    (explanation,) = response.json()["explanations"]
    found: str = explanation["mode"]
    return found


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="there is no compiler")
def test_the_same_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    # For so small a model a busy machine may find it slower compiled.
    monkeypatch.setattr("cam.runtimes.compiled.fastest", lambda work: work() or 1.0)
    with TestClient(create_app(Settings(), entries())) as client:
        wait_until_ready(client, 300)
        about = client.get("/v1/models/fast").json()
        assert about["mode"] == "fast"
        assert 0.98 <= about["fidelity"] <= 1
        judged = [method for method in about["methods"] if method["fidelity"]]
        assert {method["name"] for method in judged} >= JUDGED
        for method in judged:
            assert method["fast"] == (method["fidelity"]["worst"] >= 0.98)
            assert method["fidelity"]["worst"] <= method["fidelity"]["median"] <= 1
        assert all(method in judged for method in about["methods"] if method["fast"])
        assert about["fidelity"] == min(
            method["fidelity"]["worst"] for method in about["methods"] if method["fast"]
        )
        quick = {method["name"] for method in about["methods"] if method["fast"]}
        plain = client.get("/v1/models/exact").json()
        assert not any(method["fast"] or method["fidelity"] for method in plain["methods"])
        assert plain["mode"] == "exact"
        assert plain["fidelity"] is None
        for query in ({}, {"method": "layercam"}, {"signed": True}, {"layer": "relu1"}):
            one, other = heat(client, "fast", **query), heat(client, "exact", **query)
            assert mode(client, "exact", **query) == "exact"
            # The fast path has the default layer alone.
            usual = "layer" not in query and query.get("method", "gradcam") in quick
            assert mode(client, "fast", **query) == ("fast" if usual else "exact")
            assert one.shape == other.shape
            np.testing.assert_allclose(one, other, atol=0.03 * float(np.abs(other).max() + 1e-9))


@pytest.mark.slow
def test_a_model_that_does_not_compile_is_served_the_exact_way(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*args: Any) -> None:
        raise RuntimeError("no compiler\nat all")

    monkeypatch.setattr(FastPath, "explain", broken)
    with (
        caplog.at_level(logging.WARNING),
        TestClient(create_app(Settings(), entries())) as client,
    ):
        wait_until_ready(client)
        assert client.get("/v1/models/fast").json()["mode"] == "exact"
        np.testing.assert_allclose(heat(client, "fast"), heat(client, "exact"), rtol=1e-4)
    assert "model fast has no fast path by torch: no compiler at all" in caplog.text


@pytest.mark.slow
def test_where_nothing_compiles_and_half_precision_is_imitated_there_is_no_fast_path(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("service.runtimes.paths._has_bfloat16", lambda device: False)
    monkeypatch.setattr(FastPath, "settle", lambda self, image: "no compiler")
    with (
        caplog.at_level(logging.WARNING),
        TestClient(create_app(Settings(), entries()[1:])) as client,
    ):
        wait_until_ready(client)
        assert client.get("/v1/models/fast").json()["mode"] == "exact"
    assert "model fast has no fast path by torch: no compiler" in caplog.text


class Uncompiled(FastPath):
    """In imitated bfloat16 and not compiled, which takes no time; `explain` is spoilt below."""

    def __init__(self, model: nn.Module, layer: str, **given: Any) -> None:
        super().__init__(model, layer, dtype=torch.bfloat16, compile=False, **given)


class OtherSize(Uncompiled):
    """A batch of two answers each row with the other's."""

    def explain(self, images: Tensor, questions: Sequence[Question]) -> BatchAnswer:
        return super().explain(images.flip(0) if len(images) == 2 else images, questions)


class OtherRow(Uncompiled):
    """The second row of a batch of four shows the first image."""

    def explain(self, images: Tensor, questions: Sequence[Question]) -> BatchAnswer:
        return super().explain(images[[0, 0, 2, 3]] if len(images) == 4 else images, questions)


class OtherMaps(Uncompiled):
    """The maps of the third row of a batch of four are upside down; the logits are right."""

    def explain(self, images: Tensor, questions: Sequence[Question]) -> BatchAnswer:
        found = super().explain(images, questions)
        for row in range(2, len(found), 4) if len(images) == 4 else ():
            answer = found[row]
            assert isinstance(answer, ExplainedImage)
            maps = [replace(each, map=each.map[::-1, ::-1]) for each in answer.explanations]
            found.replace(row, replace(answer, explanations=tuple(maps)))
        return found


class OtherClass(Uncompiled):
    """The best class and the fiftieth of a thousand have each other's logit; all else is right."""

    def explain(self, images: Tensor, questions: Sequence[Question]) -> BatchAnswer:
        found = super().explain(images, questions)
        for row, answer in enumerate([*found]):
            assert isinstance(answer, ExplainedImage)
            assert answer.output.logits is not None
            logits = answer.output.logits.clone()
            ranked = logits.argsort(descending=True)
            best, other = int(ranked[0]), int(ranked[49])
            logits[[best, other]] = logits[[other, best]]
            found.replace(
                row, replace(answer, output=replace(answer.output, logits=logits, known=None))
            )
        return found


def served(factory: str = "tiny", size: int = 32) -> ServedModel:
    source = f"factory:tests.zoo.factories:{factory}"
    entry = ModelEntry(name="m", source=source, weights="none", input_size=size, mode="exact")
    return load(entry)


def warmed(
    model: ServedModel, kind: type[Uncompiled] = Uncompiled, module: nn.Module | None = None
) -> WarmPath | None:
    """What the choice makes of a path of this kind."""
    path = kind(
        module or model.module,
        model.default,
        sizes=[1, 2, 4],
        head=None if module else model.head,
    )
    return warm_paths(model, [Offer(COMPILED, path)])


def test_a_good_path_may_be_used_by_every_method(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        warm = warmed(served())
    assert warm
    assert type(warm.path) is Uncompiled
    assert set(warm.fidelities) == JUDGED
    assert all(each.enough for each in warm.fidelities.values())
    assert "served exact: none" in caplog.text


@pytest.mark.parametrize(
    ("kind", "factory", "why"),
    [
        (OtherSize, "tiny", "in row 0 of a batch of 2 "),
        (OtherRow, "tiny", "in row 1 of a batch of 4 "),
        (OtherMaps, "tiny", "in row 2 of a batch of 4 the maps correlate"),
        (OtherClass, "vit", "in row 0 of a batch of 1 another class is predicted"),
    ],
)
def test_a_path_that_is_wrong_somewhere_is_not_used(
    kind: type[Uncompiled], factory: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert not warmed(served(factory, 64 if factory == "vit" else 32), kind)
    assert f"model m has no fast path by torch: {why}" in caplog.text


def test_a_path_with_other_weights_is_not_used_though_all_maps_are_flat(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each channel speaks against each class, so no map has a positive part."""
    model, other = served(), small(seed=9)
    for module in (model.module, other):
        with torch.no_grad():
            module.get_parameter("head.weight").abs_().neg_()
    assert not warmed(replace(model, head=None), module=other)
    assert "the logits miss" in caplog.text


def test_flat_maps_tell_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The same weights: methods whose maps are all flat are served exact, the others fast."""
    model = served()
    with torch.no_grad():
        model.module.get_parameter("head.weight").abs_().neg_()
    with caplog.at_level(logging.INFO):
        warm = warmed(replace(model, head=None))
    assert warm
    assert set(warm.fidelities) == {"finercam"}
    assert "gradcam (no maps to compare)" in caplog.text


@pytest.mark.slow
@pytest.mark.anyio
async def test_a_method_that_roundings_change_is_served_exact() -> None:
    """A transformer in bfloat16: Grad-CAM hardly changes, the first component of the activations
    becomes another one."""
    model = served("vit", 64)
    async with Engine(
        model, max_queue=64, metrics=Metrics(), fast_path=lambda worth: warmed(model)
    ) as engine:
        await engine.warm()
        replicas = Replicas([engine], cache_bytes=0, metrics=Metrics())
        assert replicas.is_fast("gradcam")
        assert replicas.fidelities["gradcam"].worst >= 0.98
        slow = [name for name, each in replicas.fidelities.items() if each.worst < 0.98]
        assert slow
        assert not replicas.is_fast("kpcacam")
        assert not any(replicas.is_fast(name) for name in slow)
        seen = ModelInput.of(np.random.default_rng(3).integers(0, 256, (64, 64, 3), np.uint8))
        exact = Engine(model, max_queue=64, metrics=Metrics())
        async with exact:
            for method, same in (("kpcacam", True), ("gradcam++", False)):
                question = Question((ClassTarget(1),), method, (model.default,))
                one = (await engine.ask(Explain(seen, [question]))).value
                other = (await exact.ask(Explain(seen, [question]))).value
                logits, others = one.prediction.logits, other.prediction.logits
                assert logits is not None
                assert others is not None
                assert np.array_equal(logits, others) == same  # in bfloat16 they are others
                alike = likeness(
                    *(ExplainedImage(Output(), each.explanations) for each in (one, other))
                )
                assert alike is not None
                assert alike >= 0.98
        # Asked together each is what it is alone, and of the same class.
        methods = ("kpcacam", "gradcam++", "gradcam")
        asked = [Question((ClassTarget(),), name, (model.default,)) for name in methods]
        together = (await replicas.ask(Explain(seen, asked))).value.explanations
        assert [each.method for each in together] == list(methods)
        assert len({each.target for each in together}) == 1
        for question, found in zip(asked, together, strict=True):
            same_class = replace(question, targets=(found.target,))
            (alone,) = (await replicas.ask(Explain(seen, [same_class]))).value.explanations
            np.testing.assert_allclose(found.map, alone.map, rtol=1e-3, atol=1e-5)


def test_several_engines_are_as_good_as_the_worst() -> None:
    """By hand: gradcam is fast on both, fem on one alone, and eigencam was judged on one alone."""
    model, metrics = served(), Metrics()
    one, other = (Engine(model, max_queue=4, metrics=metrics) for _ in range(2))
    replicas = Replicas([one, other], cache_bytes=0, metrics=metrics)
    assert replicas.fidelities == {}
    good, better, bad = Fidelity(0.995, 0.985), Fidelity(0.999, 0.99), Fidelity(0.99, 0.9)
    one.fidelities = {"gradcam": good, "fem": better, "eigencam": better}
    assert not replicas.is_fast("gradcam")  # the other has no fast path
    other.fidelities = {"gradcam": better, "fem": bad}
    assert replicas.fidelities == {"gradcam": good, "fem": bad, "eigencam": better}
    assert [name for name in METHODS if replicas.is_fast(name)] == ["gradcam"]
