"""Where a detector's maps are made: at layers that its boxes are made from."""

from __future__ import annotations

import math
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torchvision.ops import box_convert

import cam
from bench.detectors import measure
from cam.detectors.forms import DetectionForm, form_of
from cam.detectors.methods import fused_levels
from cam.detectors.reading import detections_of
from cam.errors import NoGradientPath, NothingDetected, NotLogits
from cam.hooks.grids import Grid, Located
from cam.layers import level_layers
from cam.methods.perturbation import random_masks
from cam.methods.subject import Subject
from cam.outputs.detection import read_detections
from cam.outputs.outputs import outputs_of, size_of
from cam.passes.onepass import reached_layers
from tests.zoo.detectors import (
    SIDE,
    TORCHVISION,
    Heads,
    blurry,
    finding,
    torchvision_detector,
    trained,
    yolo_like,
)
from tests.zoo.parts import hook_count

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
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    order = areas.argsort()[int((areas < 4).sum()) :]  # clipped boxes coincide
    chosen = order[torch.linspace(0, len(order) - 1, count).long()]
    return [
        cam.ClassTarget(int(labels[turn]), box=tuple(boxes[turn].tolist()))
        for turn in chosen.tolist()
    ]


@pytest.mark.slow
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


@pytest.mark.slow
def test_without_a_threshold_a_detector_that_is_sure_of_nothing_is_surveyed() -> None:
    model, image = torchvision_detector("fcos")
    setattr(model, "score_thresh", 0.999)  # noqa: B010  # torchvision's own attribute
    assert cam.default_layer(cam.survey(model, image)) == "backbone.fpn.inner_blocks.2"
    assert model.score_thresh == 0.999


def by_hand(model: nn.Module, image: Tensor, target: cam.ClassTarget, layer: str) -> Tensor:
    """Σ_k G_k ⊙ A_k at a layer whose output is feature maps, by nothing but torch."""
    kept: list[Tensor] = []
    module = model.get_submodule(layer)

    def keep(module: nn.Module, args: object, output: Tensor) -> Tensor:
        kept.append(output.detach().clone().requires_grad_())
        return kept[0].clone()

    handle = module.register_forward_hook(keep)
    raw = model(image)
    handle.remove()
    (said,) = raw if isinstance(raw, list) else [None]
    if said is None:
        (output,) = outputs_of(raw, size=size_of(image))
        assert output.detections is not None
        said = vars(output.detections)
    close = (said["boxes"] - torch.tensor(target.box)).abs().sum(1)
    best = torch.where(said["labels"] == target.index, close, torch.inf).argmin()
    (gradient,) = torch.autograd.grad(said["scores"][best], kept[0])
    return (gradient * kept[0]).sum(1)[0].detach()


@pytest.mark.slow
@pytest.mark.parametrize("name", TORCHVISION)
def test_odam_is_gradient_times_activation_at_the_boxs_level(name: str) -> None:
    model, image = torchvision_detector(name)
    found = cam.survey(model, image)
    levels = level_layers(found)
    targets = boxes_of(model, image, 4)
    answers = cam.explain(model, image, target=targets, layer=levels, method="odam")
    for target, answer in zip(targets, answers, strict=True):
        (level,) = answer.layer.split(" + ")
        expected = by_hand(model, image, target, level).relu()
        torch.testing.assert_close(
            torch.tensor(answer.map), expected, rtol=1e-3, atol=1e-4 * float(expected.max())
        )
        (same,) = cam.explain(model, image, target=target, layer=level, method="hirescam")
        torch.testing.assert_close(torch.tensor(same.map), torch.tensor(answer.map))


def test_odam_adds_up_levels_by_what_they_cover() -> None:
    fine = np.zeros((4, 4), np.float32)
    fine[0, 0] = 3
    fused = fused_levels({"fine": fine, "coarse": np.full((2, 2), 8, np.float32)})
    expected = np.full((4, 4), 2, np.float32)  # a coarse position covers four fine ones
    expected[0, 0] = 5
    np.testing.assert_allclose(fused, expected)


def test_a_batch_of_different_boxes_is_the_same_one_by_one() -> None:
    model, image = torchvision_detector("retinanet")
    # Untrained, all its scores are the same to the last bits, and which boxes stay is chance.
    torch.manual_seed(0)
    torch.nn.init.normal_(model.get_parameter("head.classification_head.cls_logits.weight"), std=9)
    targets = boxes_of(model, image, 6)[:5:2]  # the last one fills the image, as others do
    levels = tuple(LEVELS["retinanet"])
    questions = [cam.Question((target,), "odam", levels) for target in targets]
    together = cam.explain_batch(model, image.repeat(3, 1, 1, 1), questions)
    layers = set()
    for target, answer in zip(targets, together, strict=True):
        assert isinstance(answer, cam.ExplainedImage)
        (alone,) = cam.explain(model, image, target=target, layer=levels, method="odam")
        (shared,) = answer.explanations
        assert shared.layer == alone.layer
        layers.add(alone.layer)
        np.testing.assert_allclose(shared.map, alone.map, rtol=1e-3, atol=1e-4 * alone.map.max())
    assert len(layers) > 1


def test_a_level_that_no_box_reaches_is_no_black_picture() -> None:
    model, image = torchvision_detector("retinanet")
    small = boxes_of(model, image, 2)[0]
    with pytest.raises(NoGradientPath, match=r"no gradient at layer .*p7"):
        cam.explain(model, image, target=small, method="odam", layer="backbone.fpn.extra_blocks.p7")


def test_every_box_of_fcos_can_be_asked_for() -> None:
    """Most lie beside the image, and are clipped to lines and points at its border."""
    model, image = torchvision_detector("fcos")
    with torch.no_grad():
        (said,) = outputs_of(model(image), size=size_of(image))
    assert said.detections is not None
    boxes, labels = said.detections.boxes, said.detections.labels
    assert ((boxes[:, 2:] - boxes[:, :2]).prod(1) == 0).any()
    for box, label in zip(boxes.tolist(), labels.tolist(), strict=True):
        cam.ClassTarget(label, box=tuple(box)).resolve(said)


@pytest.mark.parametrize("form", ["yolov5", "yolov8"])
def test_yolo_like_modules(form: DetectionForm) -> None:
    model = yolo_like(form)
    image = blurry(64)
    assert form_of(model(image), 3) == form
    found = cam.survey(model, image)
    assert level_layers(found) == ("deep", "fuse")
    best, *_ = cam.explain(model, image, method="odam")
    assert best.map.max() > 0
    with read_again(model, form, 0.9), pytest.raises(NothingDetected):
        cam.explain(model, image, layer="deep")
    assert hook_count(model) == 0


def read_again(
    model: nn.Module, form: DetectionForm, least: float = 0.05, classes: int | None = None
) -> closing[Any]:
    handle = read_detections(model, form, least=least, classes=classes)
    return closing(SimpleNamespace(close=handle.remove))


def test_yolos_boxes_by_hand() -> None:
    """Two candidates of one class overlap, one is of another class, one is not sure enough."""
    rows = torch.zeros(1, 30, 7)
    rows[0, :, :4] = torch.tensor([90.0, 90, 4, 4])
    rows[0, 0] = torch.tensor([20.0, 20, 10, 20, 0.9, 0.1, 0.8])
    rows[0, 1] = torch.tensor([21.0, 20, 10, 20, 0.8, 0.1, 0.8])
    rows[0, 2] = torch.tensor([20.0, 20, 10, 20, 0.5, 0.5, 0.2])
    rows[0, 3] = torch.tensor([50.0, 50, 10, 20, 0.1, 0.4, 0.2])
    (found,) = detections_of(rows, (100, 100), classes=2) or []
    torch.testing.assert_close(found.boxes, torch.tensor([[15.0, 10, 25, 30], [15, 10, 25, 30]]))
    assert found.labels.tolist() == [1, 0]
    torch.testing.assert_close(found.scores, torch.tensor([0.72, 0.25]))
    eighth = rows.clone()
    eighth[..., 5:] *= eighth[..., 4:5]
    eighth = torch.cat([eighth[..., :4], eighth[..., 5:]], 2).transpose(1, 2)
    (same,) = detections_of(eighth, (100, 100), classes=2) or []
    torch.testing.assert_close(same.scores, found.scores)
    last = torch.tensor([[[15.0, 10, 25, 30, 0.72, 1], [1, 2, 3, 4, 0.01, 0]]])
    (end,) = detections_of(last, (100, 100)) or []
    assert (end.labels.tolist(), end.scores.tolist()) == ([1], [pytest.approx(0.72)])


def test_corners_are_told_from_centres_by_the_image() -> None:
    torch.manual_seed(0)
    centres = 10 + 80 * torch.rand(1, 40, 2)
    sides = 4 + 16 * torch.rand(1, 40, 2)
    boxes = torch.cat([centres - sides / 2, centres + sides / 2], 2)
    sure = torch.cat([torch.full((1, 40, 1), 0.9), torch.rand(1, 40, 3)], 2)
    said = torch.cat([boxes, sure], 2)
    said[:, 30:] = 0  # rows that fill up a batch
    centred = torch.cat([centres, sides, sure], 2)[:, :30]
    (wanted,) = detections_of(centred, (100, 100), classes=3) or []
    (found,) = detections_of(said, (100, 100), classes=3) or []
    assert len(found.scores) > 10
    torch.testing.assert_close(found.boxes, wanted.boxes)
    torch.testing.assert_close(found.scores, wanted.scores)
    # Named, or without the image's size, it is what YOLOs return.
    for size, form in (((100, 100), "yolov5"), (None, "auto")):
        (named,) = detections_of(said, size, form=form, classes=3) or []  # type: ignore[arg-type]
        assert (named.boxes[:, 0] < 0).any() or (named.boxes[:, 2] > 100).any()
    # Where both fit, too.
    both = torch.tensor([20.0, 20, 30, 30, 0.9, 0.1, 0.8]).expand(1, 20, 7)
    (kept,) = detections_of(both, (100, 100), classes=2) or []
    assert kept.boxes.tolist() == [[5, 5, 35, 35]]


@pytest.mark.parametrize(
    ("form", "extra", "low", "high"),
    [
        ("yolov8-obb", 1, 0.0, 1.0),
        ("yolov8-obb", 1, -0.8, 2.3),
        ("yolov8-seg", 32, -9.0, 9.0),
        ("yolov8-pose", 51, 0.0, 128.0),
        ("yolov8-pose", 8, 0.0, 1.0),
    ],
)
def test_what_follows_the_classes_is_no_class(
    form: DetectionForm, extra: int, low: float, high: float
) -> None:
    """An angle in 0 … 1 of some photos was the surest class of them."""
    image = blurry(SIDE)
    stated = Heads(extra, low, high, names=True).eval()
    said = stated(image)[0][0].detach()
    (found, *_) = cam.explain(stated, image)
    best = int(said[4:6].amax(0).argmax())
    assert found.target.index == int(said[4:6, best].argmax())
    assert found.score == pytest.approx(float(said[4:6].max()))
    unknown = Heads(extra, low, high, names=False).eval()
    with pytest.raises(NotLogits):
        cam.explain(unknown, image)
    many = f"{2 + extra} of them classes, but the model has 2"
    with read_again(unknown, "yolov8", classes=2), pytest.raises(NotLogits, match=many):
        cam.explain(unknown, image, layer="stem")
    with read_again(unknown, form, classes=2):
        (named, *_) = cam.explain(unknown, image, layer="stem")
        assert (named.target.index, named.score) == (found.target.index, found.score)


def test_scores_outside_0_to_1_are_refused() -> None:
    model = Heads(32, -9.0, 9.0, names=False).eval()
    outside = pytest.raises(NotLogits, match=r"scores are from -5.* not in 0 … 1")
    with read_again(model, "yolov8", classes=34), outside:
        cam.explain(model, blurry(SIDE), layer="stem")
    unknown = pytest.raises(NotLogits, match="the number of classes is not known")
    with read_again(model, "yolov8"), unknown:
        cam.explain(model, blurry(SIDE), layer="stem")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_score_just_above_1_is_refused(dtype: torch.dtype) -> None:
    above = 1 + torch.finfo(dtype).eps
    rows = torch.tensor([[50.0, 40, 20, 10, 0.5, above]], dtype=dtype)
    with pytest.raises(NotLogits, match="not in 0 … 1"):
        detections_of(rows.T[None], (100, 100), form="yolov8", classes=2)


def test_turned_boxes_by_hand() -> None:
    """A box of 20 × 10 that is turned by a right angle is 10 × 20, and by 45 degrees a square."""
    rows = torch.tensor(
        [[50.0, 40, 20, 10, 0.1, 0.9, math.pi / 2], [20.0, 20, 20, 10, 0.8, 0.1, math.pi / 4]]
    )
    (found,) = detections_of(rows.T[None], (100, 100), form="yolov8-obb") or []
    half = 15 * math.sqrt(0.5)
    torch.testing.assert_close(
        found.boxes,
        torch.tensor([[45.0, 30, 55, 50], [20 - half, 20 - half, 20 + half, 20 + half]]),
    )
    assert found.labels.tolist() == [1, 0]


@pytest.mark.parametrize("classes", [[0, 0, 0], [0, 1, 0], [2, 0, 1]])
def test_labels_of_end_to_end_detectors_by_hand(classes: list[int]) -> None:
    """Photos that show only the first two classes were taken for an objectness and one class."""
    edges = torch.tensor([[10.0, 10, 30, 50], [40, 20, 80, 60], [5, 5, 9, 9]])
    sure = torch.tensor([[0.9], [0.5], [0.01]])
    labels = torch.tensor(classes).float()[:, None]
    filling = torch.zeros(1, 6, 6)
    ends = torch.cat([torch.cat([edges, sure, labels], 1)[None], filling], 1)
    for known in (None, 1, 2, 3):
        (found,) = detections_of(ends, (100, 100), classes=known) or []
        torch.testing.assert_close(found.boxes, edges[:2])
        assert found.labels.tolist() == classes[:2]
    centred = box_convert(edges, "xyxy", "cxcywh") / 100
    shares = torch.cat([torch.cat([centred, sure, labels], 1)[None], filling], 1)
    for form in ("auto", "rtdetr"):
        (same,) = detections_of(shares, (100, 100), form=form) or []
        torch.testing.assert_close(same.boxes, edges[:2])
        assert same.labels.tolist() == classes[:2]
    with pytest.raises(NotLogits, match="a right or bottom edge comes before"):
        detections_of(shares, (100, 100), form="yolo-end2end")


def test_probabilities_of_rt_detr_by_hand() -> None:
    rows = torch.tensor([[[0.5, 0.4, 0.2, 0.2, 0.1, 0.7, 0.2], [0.1, 0.1, 0.1, 0.1, 0.3, 0.2, 0]]])
    (found,) = detections_of(rows, (50, 100), form="rtdetr", classes=3) or []
    torch.testing.assert_close(found.boxes, torch.tensor([[40.0, 15, 60, 25], [5, 2.5, 15, 7.5]]))
    assert found.labels.tolist() == [1, 0]
    assert found.scores.tolist() == pytest.approx([0.7, 0.3])


def test_queries_by_hand() -> None:
    logits = torch.tensor([[[2.0, 0.0, 0.0], [0.0, 0.0, 5.0]]])
    boxes = torch.tensor([[[0.5, 0.5, 0.2, 0.4], [0.1, 0.1, 0.1, 0.1]]])
    said = {"logits": logits, "pred_boxes": boxes}
    with pytest.raises(NotLogits, match="softmax or sigmoid is not known"):
        detections_of(said, (50, 100))
    (found,) = detections_of(said, (50, 100), form="detr") or []
    e = float(np.exp(2))
    assert found.scores.tolist() == [pytest.approx(e / (e + 2))]
    assert found.labels.tolist() == [0]
    torch.testing.assert_close(found.boxes, torch.tensor([[40.0, 15, 60, 35]]))
    (free,) = detections_of(said, (50, 100), form="detr-sigmoid", least=0.6) or []
    assert free.labels.tolist() == [2, 0]
    assert free.scores.tolist() == [pytest.approx(1 / (1 + np.exp(-5))), pytest.approx(e / (e + 1))]


@pytest.mark.parametrize(
    "raw",
    [torch.randn(1, 197, 768), torch.rand(1, 17, 32), torch.rand(1, 40, 7), torch.zeros(1, 8, 64)],
)
def test_tokens_are_no_boxes(raw: Tensor) -> None:
    assert form_of(raw) is None


def test_d_rise_shows_what_its_box_needs() -> None:
    """The box around the left half is as sure as it is bright: S is the brightness that a mask
    leaves of the box. IoU and cosine are 1, of the other box 0."""
    image = torch.full((1, 3, 32, 32), 0.8)
    target = cam.ClassTarget(0, box=(0, 0, 16, 32))
    model = finding(
        lambda each: [
            ((0, 0, 16, 32), 0, float(each.detach()[..., :16].mean())),
            ((16, 0, 32, 32), 1, float(each.detach()[..., 16:].mean())),
        ]
    )
    (found,) = cam.explain(model, image, target=target, method="drise", budget=200)
    masks = random_masks_of(image, 200)
    weights = 0.8 * masks[..., :16].mean((1, 2))
    expected = (weights[:, None, None] * masks).sum(0) / (200 * 0.5)
    np.testing.assert_allclose(found.map, expected.numpy(), rtol=1e-4)
    assert found.map[:, :16].mean() > found.map[:, 16:].mean()


def random_masks_of(image: Tensor, count: int) -> Tensor:
    subject = Subject(
        model=nn.Identity(),
        image=image,
        targets=(),
        layer="input",
        grid=Grid("channels first", 32, 32),
        located=Located({}),
        output=image,
        budget=count,
        chunk=16,
    )
    return torch.cat(list(random_masks(subject, cells=16, opened=0.5)))[:, 0]


@pytest.mark.slow
def test_a_trained_detectors_boxes_have_their_heat_inside() -> None:
    """Smaller than bench/detectors.py, which says how much."""
    model = trained(30)
    records = list(measure(model, 2, 32))
    assert len(records) >= 3
    assert all(each["passes"] <= 1.3 for each in records)
    own = [each["own"] > each["other"] for each in records]
    assert sum(own) >= 0.6 * len(own)
