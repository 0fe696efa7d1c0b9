"""Where a detector's maps are made: at layers that its boxes are made from."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import cam
from cam.layers import level_layers
from cam.levels import reached_layers
from cam.output import outputs_of, size_of
from tests.cam.detectors import TORCHVISION, torchvision_detector
from tests.cam.nets import hook_count

LEVELS = {
    "fasterrcnn": [f"backbone.fpn.layer_blocks.{turn}" for turn in (3, 2, 1, 0)],
    "maskrcnn": [f"backbone.fpn.layer_blocks.{turn}" for turn in (3, 2, 1, 0)],
    "keypointrcnn": [f"backbone.fpn.layer_blocks.{turn}" for turn in (3, 2, 1, 0)],
    "retinanet": [
        *(f"backbone.fpn.layer_blocks.{turn}" for turn in (2, 1, 0)),
        "backbone.fpn.extra_blocks.p6",
        "backbone.fpn.extra_blocks.p7",
    ],
    "ssd": ["backbone.features", "backbone.extra.0", "backbone.extra.1"],
}
LEVELS["fcos"] = LEVELS["retinanet"]
LEVELS["ssdlite"] = [
    "backbone.features.0",
    "backbone.features.1",
    *(f"backbone.extra.{turn}" for turn in range(3)),
]


def boxes_of(model: nn.Module, image: Tensor, count: int) -> list[cam.ClassTarget]:
    """Detections of an image, the smallest and the largest and some between."""
    with torch.no_grad():
        (said,) = outputs_of(model(image), size=size_of(image))
    assert said.detections is not None
    boxes, labels = said.detections.boxes, said.detections.labels
    order = (boxes[:, 2:] - boxes[:, :2]).prod(1).argsort()
    chosen = order[torch.linspace(0, len(order) - 1, count).long()]
    return [
        cam.ClassTarget(int(labels[turn]), box=tuple(boxes[turn].tolist()))
        for turn in chosen.tolist()
    ]


@pytest.mark.parametrize("name", TORCHVISION)
def test_a_detectors_default_layer_and_levels(name: str) -> None:
    model, image = torchvision_detector(name)
    before = {key: vars(each).get("score_thresh") for key, each in model.named_modules()}
    found = cam.survey(model, image)
    levels = level_layers(found)
    assert list(levels[: len(LEVELS[name])]) == LEVELS[name]
    default = cam.default_layer(found)
    targets = boxes_of(model, image, 5)
    maps = cam.explain(model, image, target=targets, layer=default, method="hirescam", signed=True)
    assert [abs(each.map).max() > 0 for each in maps] == [True] * 5
    for target in targets:
        assert reached_layers(model, image, target, [*levels, default])[-1:]
    assert hook_count(model) == 0
    assert before == {key: vars(each).get("score_thresh") for key, each in model.named_modules()}


def test_the_layers_that_a_box_reaches() -> None:
    """A box of RetinaNet is made from one level, and from what that is made from."""
    model, image = torchvision_detector("retinanet")
    fpn = LEVELS["retinanet"]
    seen = [set(reached_layers(model, image, each, fpn)) for each in boxes_of(model, image, 8)]
    p5, p4, p3, p6, p7 = fpn
    assert all(each in ({p3}, {p4}, {p5}, {p5, p6}, {p5, p6, p7}) for each in seen)
    assert len({frozenset(each) for each in seen}) > 1


def test_without_a_threshold_a_detector_that_is_sure_of_nothing_is_surveyed() -> None:
    model, image = torchvision_detector("fcos")
    model.score_thresh = 0.999
    assert cam.default_layer(cam.survey(model, image)) == "backbone.fpn.inner_blocks.2"
    assert model.score_thresh == 0.999
