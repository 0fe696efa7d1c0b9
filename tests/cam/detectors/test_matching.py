"""Which detection a target is about, and its score, by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from cam import CamError, ClassTarget, Detections, Output, explain
from cam.errors import NothingDetected, TargetMismatch
from tests.zoo.detectors import detector
from tests.zoo.parts import images

FOUND = Output(
    detections=Detections(
        torch.tensor([[0.0, 0, 10, 10], [0, 0, 10, 8], [20, 20, 30, 30]]),
        torch.tensor([1, 2, 1]),
        torch.tensor([0.9, 0.8, 0.7]),
    )
)


@pytest.mark.parametrize(
    ("target", "score", "index"),
    [
        (ClassTarget(), 0.9, 1),
        (ClassTarget(2), 0.8, 2),
        (ClassTarget(1, box=(21, 21, 30, 30)), 0.7, 1),
        (ClassTarget(box=(0, 0, 10, 8)), 0.8, 2),  # the box, not the score, says which
        (ClassTarget(1, against=True), -0.9, 1),
    ],
)
def test_a_detection_by_hand(target: ClassTarget, score: float, index: int) -> None:
    resolved = target.resolve(FOUND)
    assert resolved.index == index
    assert float(resolved.score(FOUND)) == pytest.approx(score)
    assert resolved.probability(FOUND) == pytest.approx(abs(score))
    nothing = Output(detections=Detections(torch.zeros(0, 4), torch.zeros(0), torch.zeros(0)))
    assert float(resolved.score(nothing)) == 0


@pytest.mark.parametrize(
    ("target", "said", "error", "words"),
    [
        (ClassTarget(5), FOUND, NothingDetected, "nothing of class 5; it finds classes 1, 2"),
        (ClassTarget(2, box=(20, 20, 30, 30)), FOUND, NothingDetected, "overlaps"),
        (ClassTarget(1, minus=2), FOUND, TargetMismatch, "a class, a box and against alone"),
    ],
)
def test_what_cannot_be_asked(
    target: ClassTarget, said: Output, error: type[CamError], words: str
) -> None:
    with pytest.raises(error, match=words):
        target.resolve(said)


def found(*boxes: tuple[float, float, float, float], labels: list[int] | None = None) -> Output:
    """Detections, the best first: 0.9, 0.8, …"""
    scores = torch.tensor([0.9 - 0.1 * rank for rank in range(len(boxes))])
    where = torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4)
    return Output(detections=Detections(where, torch.tensor(labels or [1] * len(boxes)), scores))


@pytest.mark.parametrize(
    ("box", "same"),
    [
        ((0, 0, 10, 5), True),  # 50 of 100
        ((0, 0, 10, 4.9), False),
        ((5, 0, 10, 10), True),
        ((0, 0, 20, 10), True),  # 100 of 200
        ((0, 0, 20, 10.1), False),
        ((1, 2, 11, 10), True),  # 9 · 8 of 100 + 80 - 72
        ((-4, 1, 6, 11), False),  # 6 · 9 of 200 - 54
        ((3, 3, 13, 13), False),
        ((10, 0, 20, 10), False),
        ((20, 20, 30, 30), False),
        ((-20, -20, -10, -10), False),
        ((5, 5, 5, 5), False),  # nothing overlaps nothing
    ],
)
def test_what_overlaps_by_half_is_the_same(
    box: tuple[float, float, float, float], same: bool
) -> None:
    said = found((0, 0, 10, 10), (50, 50, 51, 51))
    if same:
        assert ClassTarget(box=box).resolve(said).box == (0, 0, 10, 10)
    else:
        with pytest.raises(NothingDetected, match="nothing that overlaps the box by half"):
            ClassTarget(box=box).resolve(said)
    # The same of a changed image, which may have another box there.
    known = ClassTarget(1, box=(0, 0, 10, 10))
    score = known.score(found((50, 50, 51, 51), box))
    assert float(score) == pytest.approx(0.8 if same else 0)


def test_which_of_several_detections_is_meant() -> None:
    said = found((0, 0, 10, 8), (0, 0, 10, 9), (0, 0, 10, 10), labels=[1, 2, 1])
    # By the box, the one that overlaps best; without it, the best; each of the class alone.
    cases = [
        (ClassTarget(), (0, 0, 10, 8), 1, 0.9),
        (ClassTarget(2), (0, 0, 10, 9), 2, 0.8),
        (ClassTarget(box=(0, 0, 10, 10)), (0, 0, 10, 10), 1, 0.7),
        (ClassTarget(2, box=(0, 0, 10, 10)), (0, 0, 10, 9), 2, 0.8),
        (ClassTarget(1, box=(0, 0, 10, 8.9)), (0, 0, 10, 8), 1, 0.9),
    ]
    for target, box, index, score in cases:
        resolved = target.resolve(said)
        assert (resolved.box, resolved.index) == (box, index)
        assert float(resolved.score(said)) == pytest.approx(score)
        assert resolved.probability(said) == pytest.approx(score)
        opposite = ClassTarget(index, box=box, against=True)
        assert float(opposite.score(said)) == pytest.approx(-score)
    # However small it is.
    small_box = (0.0, 0.0, 0.5, 0.25)
    assert ClassTarget(box=small_box).resolve(found((0, 0, 9, 9), small_box)).box == small_box
    # In a changed image the overlap says which, not the score.
    changed = found((0, 0, 10, 5), (0, 0, 10, 7), (0, 0, 10, 8), labels=[1, 1, 2])
    assert float(ClassTarget(1, box=(0, 0, 10, 8)).score(changed)) == pytest.approx(0.8)


@pytest.mark.parametrize("box", [(128.0, 4, 128, 9), (43.8, 128, 44.1, 128), (0.0, 0, 0, 0)])
def test_a_box_without_an_area_overlaps_itself(box: tuple[float, float, float, float]) -> None:
    """FCOS clips boxes to the image and keeps those that lie beside it."""
    said = found((0, 0, 128, 128), box, (100, 100, 101, 101))
    resolved = ClassTarget(1, box=box).resolve(said)
    assert resolved.box == pytest.approx(box)
    assert float(resolved.score(said)) == pytest.approx(0.8)
    nearly = (box[0], box[1], box[2], box[3] + 0.01)  # in a pass that rounds otherwise
    assert float(resolved.score(found((0, 0, 128, 128), nearly))) == pytest.approx(0.8)


def test_the_rank_of_a_detection() -> None:
    said = found((0, 0, 1, 1), (0, 0, 2, 2), (0, 0, 3, 3), labels=[1, 2, 1])
    for target, side in (
        (ClassTarget(rank=0), 1.0),
        (ClassTarget(rank=2), 3.0),
        (ClassTarget(1, rank=1), 3.0),
    ):
        resolved = target.resolve(said)
        # It is the only one of its box.
        assert (resolved.box, resolved.rank) == ((0, 0, side, side), 0)
    with pytest.raises(NothingDetected, match=r"finds 2 of them; there is no number 3$"):
        ClassTarget(1, rank=2).resolve(said)


@pytest.mark.parametrize(
    ("target", "said", "words"),
    [
        (ClassTarget(), found(), "^the model detects nothing in this image$"),
        (ClassTarget(3), found(), "^the model finds nothing of class 3; it finds none$"),
        (
            ClassTarget(3),
            found((0, 0, 1, 1), (0, 0, 2, 2), (1, 1, 2, 2), labels=[5, 2, 5]),
            "^the model finds nothing of class 3; it finds classes 2, 5$",
        ),
        (
            ClassTarget(5, box=(8, 8, 9, 9)),
            found((0, 0, 1, 1), labels=[5]),
            "class 5 that overlaps the box by half; it finds classes 5$",
        ),
    ],
)
def test_what_is_not_detected_is_named(target: ClassTarget, said: Output, words: str) -> None:
    with pytest.raises(NothingDetected, match=words):
        target.resolve(said)


@pytest.mark.parametrize(
    "asked",
    [{"minus": 2}, {"of": "probability"}, {"mask": torch.ones(2, 2, dtype=torch.bool)}],
)
def test_what_a_detector_is_not_asked(asked: dict[str, object]) -> None:
    with pytest.raises(TargetMismatch, match="a class, a box and against alone"):
        ClassTarget(1, **asked).resolve(found((0, 0, 1, 1)))  # type: ignore[arg-type]


def test_a_score_of_nothing_has_a_gradient_of_nothing() -> None:
    """So that what no longer is there can be differentiated with the rest of a batch."""
    scores = torch.tensor([0.5], requires_grad=True)
    said = Output(detections=Detections(torch.ones(1, 4), torch.tensor([1]), scores))
    (gradient,) = torch.autograd.grad(ClassTarget(1, box=(5, 5, 9, 9)).score(said), scores)
    assert gradient.tolist() == [0]


@pytest.mark.slow
def test_a_detectors_map_is_the_gradient_of_that_boxs_score() -> None:
    model, x = detector(), images(1, size=96)
    with torch.no_grad():
        (boxes,) = model(x)
    second = tuple(boxes["boxes"][1].tolist())
    wanted = ClassTarget(int(boxes["labels"][1]), box=second)
    layer = "backbone.body.13"
    (found,) = explain(model, x, target=wanted, layer=layer, signed=True)
    assert found.probability == pytest.approx(float(boxes["scores"][1]), rel=1e-4)
    kept: dict[str, Tensor] = {}
    handle = model.get_submodule(layer).register_forward_hook(lambda m, a, out: kept.update(a=out))
    (again,) = model(x)
    handle.remove()
    (gradient,) = torch.autograd.grad(again["scores"][1], kept["a"])
    a = kept["a"].detach()
    expected = (gradient.mean((2, 3), keepdim=True) * a).sum(1)[0].numpy()
    assert np.abs(expected).max() > 0
    np.testing.assert_allclose(found.map, expected, rtol=1e-2, atol=1e-3 * np.abs(expected).max())
