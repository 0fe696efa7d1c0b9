"""What an audit measures, and which audits cannot be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from service.core.errors import Problem
from service.features.audit.plan import LEAST_PHOTOS, SANITY_PHOTOS, Arm, finer_stages, plan_of
from service.models.audited import Audited
from service.models.info import LayerInfo, ModelInfo
from service.pipeline.parameters import Parameters
from tests.service.rpc.fake import info


def layer(name: str, side: int | None, problem: str | None = None) -> LayerInfo:
    grid = None if side is None else (side, side)
    return LayerInfo(name, "Conv2d", (8, side or 1, side or 1), problem, grid)


@pytest.fixture
def model() -> ModelInfo:
    layers = (
        layer("stem", 28),
        layer("blocks.0.conv", 14),
        layer("blocks.0", 14),
        layer("blocks.1.conv", 14),
        layer("blocks.1.odd", 14, "it has no gradient"),
        layer("last", 7),
    )
    plain = info("m")
    unsuited = {"odam": "it explains boxes of detectors"}
    return replace(plain, layers=layers, default_layer="last", method_layers={}, unsuited=unsuited)


def plan(model: ModelInfo, total: int = 40, **parameters: Any) -> list[str]:
    return [each.name for each in plan_of(model, Parameters(**parameters), total).arms]


def test_the_usual_layers_are_the_default_and_the_next_finer_stage(model: ModelInfo) -> None:
    assert finer_stages(model) == ["blocks.0"]
    assert finer_stages(replace(model, default_layer="stem")) == []
    assert finer_stages(replace(model, layers=())) == []


def test_a_method_is_measured_at_the_layer_where_it_is_served(model: ModelInfo) -> None:
    """Whether the layers that are measured beside it are named or not."""
    own = replace(model, method_layers={"layercam": ("blocks.1.conv",)})
    served = own.layers_of("layercam")
    assert served == ("blocks.1.conv",)
    methods = ["gradcam", "layercam"]
    assert plan(own, method=methods) == [
        *("gradcam@last", "gradcam@blocks.0"),
        *("layercam@blocks.1.conv", "layercam@blocks.0"),
    ]
    assert plan(own, method=methods, layer="stem") == [
        *("gradcam@last", "gradcam@stem"),
        *("layercam@blocks.1.conv", "layercam@stem"),
    ]


def test_the_usual_methods_are_those_that_the_model_can_do(model: ModelInfo) -> None:
    names = plan(replace(model, unsuited=dict.fromkeys(("fem", "rollout", "chefer"), "no")))
    assert names[:2] == ["gradcam@last", "gradcam@blocks.0"]
    assert "legrad" in names  # at the input, so once
    assert not any(each.startswith(("fem", "rollout", "chefer", "scorecam")) for each in names)


def test_a_method_of_several_layers_has_one_map(model: ModelInfo) -> None:
    """At the stages that it takes by default, or at the layers that are named, together."""
    staged = replace(model, method_layers={"refinecam": ("blocks.0", "last")})
    assert plan(staged, method="refinecam") == ["refinecam@blocks.0 + last"]
    found = plan(staged, method=["gradcam", "refinecam"], layer=["stem", "last"])
    assert found == ["gradcam@last", "gradcam@stem", "refinecam@stem + last"]


def test_methods_and_layers_can_be_named(model: ModelInfo) -> None:
    found = plan(model, method=["scorecam", "fullgrad"], layer=["stem", "last"])
    assert found == ["scorecam@last", "scorecam@stem", "fullgrad"]


def test_the_recommended_method_is_measured_once(model: ModelInfo) -> None:
    audited = replace(model, audited=Audited("gradcam", "stem", ""))
    assert plan(audited, method=["auto", "gradcam"]) == ["gradcam@last", "gradcam@blocks.0"]
    assert plan(audited, method=["layercam", "auto"], layer="last") == [
        "layercam@last",
        "gradcam@last",
    ]
    with pytest.raises(Problem, match="has no audit, so method 'auto' means none"):
        plan(model, method=["auto", "gradcam"])


@pytest.mark.parametrize("name", ["gradcam@a.b", "fullgrad"])
def test_the_name_of_a_method_at_a_layer_can_be_read(name: str) -> None:
    assert Arm.of(name).name == name


@pytest.mark.parametrize(
    ("total", "parameters", "sentence"),
    [
        (1, {}, f"there is 1 photo; an audit needs {LEAST_PHOTOS} or more"),
        (LEAST_PHOTOS - 1, {}, f"there are {LEAST_PHOTOS - 1} photos"),
        (40, {"target": [1, 2]}, "an audit explains one class of each photo"),
        (40, {"target": {"class": 1, "against": True}}, "an audit explains one class"),
        (40, {"fuse": "mean"}, "leave out fuse"),
        (40, {"smooth": "eigen"}, "leave out smooth"),
        (40, {"reasons": 2}, "leave out reasons"),
        (40, {"evaluate": ["energy"]}, "metric 'energy' needs `region`"),
        (40, {"layer": "nowhere"}, "has no layer 'nowhere'"),
        (40, {"method": "odam"}, "cannot do odam"),
    ],
)
def test_what_cannot_be_audited_is_refused(
    model: ModelInfo, total: int, parameters: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(Problem) as raised:
        plan_of(model, Parameters(**parameters), total)
    assert sentence in raised.value.detail


@pytest.mark.parametrize("kind", ["segments", "detections"])
def test_only_classifiers_are_audited(model: ModelInfo, kind: Any) -> None:
    with pytest.raises(Problem, match="is not a classifier; only classifiers can be audited"):
        plan_of(replace(model, kind=kind), Parameters(), 40)


@pytest.mark.parametrize("total", [20, 50, 51, 200, 1000])
def test_some_photos_are_used_for_sanity_and_for_cost(model: ModelInfo, total: int) -> None:
    found = plan_of(model, Parameters(), total)
    sanity = [number for number in range(total) if found.is_for_sanity(number)]
    cost = [number for number in range(total) if found.is_for_cost(number)]
    assert min(total, SANITY_PHOTOS) / 2 < len(sanity) <= SANITY_PHOTOS
    assert sanity[0] == 0
    assert sanity[-1] > total * 0.9 - 1
    assert 5 <= len(cost) <= 6
