"""`runtime`: which path a model is served by, and that it gives the same maps."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from starlette.testclient import TestClient
from torch import Tensor

from cam import ExplainedImage, Question
from cam.passes.batch_answer import BatchAnswer
from cam.runtimes.compiled import FastPath
from service.app import create_app
from service.core.errors import ConfigError
from service.loading.served_model import ServedModel, load
from service.models.catalog import ModelEntry
from service.runtimes import paths as allowed
from service.runtimes.compiled import COMPILED
from service.runtimes.openvino import path as openvino
from service.runtimes.paths import Offer, offers
from service.runtimes.warming import fast_path, warm_paths
from service.settings import Settings
from tests.service.conftest import running_app, wait_until_ready
from tests.service.runtimes.test_fast import TINY, heat

COMMON: dict[str, Any] = {"source": TINY, "weights": "none", "input_size": 32, "max_batch": 4}


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openvino")
    monkeypatch.setattr(openvino, "is_installed", lambda: True)


@pytest.mark.slow
@pytest.mark.usefixtures("installed")
def test_openvino_serves_the_exact_maps(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # For so small a model a busy machine may find it slower.
    monkeypatch.setattr("service.runtimes.warming.MARGIN", 1e9)
    entries = [
        ModelEntry(name="plain", mode="exact", **COMMON),
        ModelEntry(name="named", runtime="openvino", **COMMON),
        ModelEntry(name="left", **COMMON),
        ModelEntry(name="refused", runtime="torch", **COMMON),
    ]
    with (
        caplog.at_level(logging.INFO),
        TestClient(create_app(Settings(runtime="auto"), entries)) as client,
    ):
        wait_until_ready(client)
        about = {entry.name: client.get(f"/v1/models/{entry.name}").json() for entry in entries}
        assert {name: (each["runtime"], each["mode"]) for name, each in about.items()} == {
            "plain": ("torch", "exact"),
            "named": ("openvino", "fast"),
            "left": ("openvino", "fast"),
            "refused": ("torch", "exact"),
        }
        for query in ({}, {"method": "layercam"}, {"signed": True}, {"layer": "relu1"}):
            exact = heat(client, "plain", **query)
            most = float(np.abs(exact).max())
            for name in ("named", "left"):
                found = heat(client, name, **query)
                np.testing.assert_allclose(found, exact, atol=1e-4 * most)
    assert "model named has a fast path by openvino in float32" in caplog.text


@pytest.mark.usefixtures("installed")
def test_the_operator_says_what_runs_models_that_do_not() -> None:
    entries = [ModelEntry(name="left", **COMMON)]
    with running_app(Settings(runtime="torch"), entries) as client:
        assert client.get("/v1/models/left").json()["runtime"] == "torch"


@pytest.mark.usefixtures("installed")
def test_a_model_that_openvino_cannot_run_is_served_as_it_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It branches on the numbers of its input."""
    source = "factory:tests.zoo.factories:branching"
    entry = ModelEntry(name="branching", **{**COMMON, "source": source})
    with running_app(Settings(runtime="auto"), [entry]) as client:
        assert client.get("/v1/models/branching").json()["mode"] == "exact"
        assert heat(client, "branching").any()
    assert "model branching has no fast path by openvino: " in caplog.text


def test_what_an_entry_may_ask_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValidationError, match="runs the model as it is, in PyTorch"):
        ModelEntry(name="m", mode="exact", runtime="openvino", **COMMON)
    monkeypatch.setattr(openvino, "is_installed", lambda: False)
    wanted = ModelEntry(name="m", runtime="openvino", **COMMON)
    with pytest.raises(ConfigError, match="install the extra 'openvino'"):
        offers(wanted, load(wanted))
    half = wanted.model_copy(update={"dtype": "bfloat16"})
    with pytest.raises(ConfigError, match="float32 models on the CPU; this one is bfloat16"):
        offers(half, load(half))
    left = wanted.model_copy(update={"runtime": "auto"})
    assert offers(left, load(left)) == []


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("units", [False, True])
def test_the_paths_of_each_mode(units: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allowed, "_has_bfloat16", lambda device: units)
    half = torch.bfloat16 if units else torch.float32

    def paths(**given: Any) -> list[tuple[str, torch.dtype]]:
        entry = ModelEntry(name="m", **COMMON, **given)
        return [(path.runtime, path.dtype) for _, path in offers(entry, load(entry))]

    assert paths(mode="exact") == []
    assert paths() == [("openvino", torch.float32)]
    assert paths(mode="fast") == [("torch", half), ("openvino", half)]
    assert paths(mode="fast", runtime="torch") == [("torch", half)]
    assert paths(mode="fast", runtime="openvino") == [("openvino", half)]
    assert paths(mode="fast", dtype="float16") == [("torch", torch.float16)]


class Rounded(FastPath):
    """Not compiled, in float32; each map is a thousandth off at its first position."""

    def __init__(self, model: ServedModel, share: float = 0.0) -> None:
        super().__init__(
            model.module,
            model.default,
            dtype=torch.float32,
            sizes=[1, 2],
            compile=False,
            head=model.head,
        )
        self._share = share

    def settle(self, image: Tensor) -> str | None:
        return None

    def explain(self, images: Tensor, questions: Sequence[Question]) -> BatchAnswer:
        found = super().explain(images, questions)
        for row, answer in enumerate([*found]):
            assert isinstance(answer, ExplainedImage)
            maps = []
            for each in answer.explanations:
                values = each.map.copy()
                values[0, 0] += self._share * values.max()
                maps.append(replace(each, map=values))
            found.replace(row, replace(answer, explanations=tuple(maps)))
        return found


def test_in_the_place_of_the_exact_path_a_thousandth_is_too_much(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("service.runtimes.warming.MARGIN", 1e9)
    model = load(ModelEntry(name="m", mode="exact", **COMMON))
    off, right = Rounded(model, 1e-3), Rounded(model)
    assert warm_paths(replace(model, exact=False), [Offer(COMPILED, off)])
    assert not warm_paths(replace(model, exact=True), [Offer(COMPILED, off)])
    assert "gradcam (differs by 1e-03)" in caplog.text
    assert warm_paths(replace(model, exact=True), [Offer(COMPILED, right)])


@pytest.mark.slow
def test_making_paths_leaves_the_random_generator_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entry = ModelEntry(name="tiny", **COMMON)
    model, before = load(entry), torch.random.get_rng_state()

    def drawn(entry: ModelEntry, model: ServedModel) -> list[Offer]:
        torch.rand(3)
        return []

    monkeypatch.setattr("service.runtimes.warming.offers", drawn)
    assert fast_path(entry, model) is None
    assert torch.equal(torch.random.get_rng_state(), before)


def test_the_fastest_path_is_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = load(ModelEntry(name="m", mode="exact", **COMMON))
    one, other = Rounded(model), Rounded(model)
    both = [Offer(COMPILED, one), Offer(COMPILED, other)]
    for seconds, fastest in (((1.0, 2.0), one), ((2.0, 1.0), other)):
        said = iter(seconds)
        monkeypatch.setattr("service.runtimes.warming._seconds", lambda *_, said=said: next(said))
        with caplog.at_level(logging.INFO):
            warm = warm_paths(model, both)
        assert warm
        assert warm.path is fastest
    assert "torch 1000.0, torch 2000.0; the fastest is used" in caplog.text


def test_a_path_that_is_slower_than_the_exact_one_does_not_take_its_place(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = load(ModelEntry(name="m", mode="exact", **COMMON))
    path = Rounded(model)
    said = iter((0.0096, 0.01))
    monkeypatch.setattr("service.runtimes.warming._seconds", lambda *_: next(said))
    assert not warm_paths(replace(model, exact=True), [Offer(COMPILED, path)])
    assert "9.6 ms an image, 10.0 ms without it" in caplog.text
