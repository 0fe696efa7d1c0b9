"""What is explained: by hand, and what a contrast's gradient must be."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cam import ClassTarget, Detections, Output, UnitTarget, explain
from cam.errors import BoxOutside, ClassOutOfRange, NothingDetected, SelfContrast, TargetMismatch
from cam.targets import mirrored
from tests.cam.nets import images, small

# e^z = 1, 2, 1: probabilities 1/4, 1/2, 1/4.
SAID = Output(logits=torch.tensor([0.0, math.log(2), 0.0]))


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (ClassTarget(), math.log(2)),
        (ClassTarget(0), 0),
        (ClassTarget(1, minus=2), math.log(2)),
        (ClassTarget(0, minus=1), -math.log(2)),
        (ClassTarget(1, against=True), -math.log(2)),
        (ClassTarget(1, of="probability"), 0.5),
        (ClassTarget(1, minus=0, of="probability"), 0.25),
        (ClassTarget(1, minus=0, of="probability", against=True), -0.25),
    ],
)
def test_the_number_by_hand(target: ClassTarget, expected: float) -> None:
    assert float(target.resolve(SAID).score(SAID)) == pytest.approx(expected)


class Identity(nn.Module):
    """Logits are the means of three feature maps, which are the image's channels."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x).mean(dim=(2, 3))
        return out


def test_maps_by_hand() -> None:
    """A map is relu(mean gradient ⊙ activation): ±1/4 at each of four positions."""
    photo = torch.tensor([[[[4.0, 0], [0, 0]], [[0, 8], [0, 0]], [[0, 0], [0, 0]]]])

    def map_of(target: ClassTarget) -> list[list[float]]:
        (found,) = explain(Identity(), photo, target=target, layer="layer")
        return [[float(value) for value in row] for row in found.map]

    assert map_of(ClassTarget(0)) == [[1, 0], [0, 0]]
    # 1/4 (A_1 - A_0): what speaks for class 1 and not for class 0.
    assert map_of(ClassTarget(1, minus=0)) == [[0, 2], [0, 0]]
    assert map_of(ClassTarget(0, minus=1)) == [[1, 0], [0, 0]]
    # Where class 0 is seen is what speaks against "1 and not 0".
    assert map_of(ClassTarget(1, minus=0, against=True)) == [[1, 0], [0, 0]]


def test_a_contrast_of_gradients_is_the_gradient_of_the_contrast() -> None:
    """HiResCAM is linear in the target before its relu, so with positive parts apart …"""
    model, x = small(seed=3), images(1)
    one, other, contrast, opposite = (
        explain(model, x, target=target, method="hirescam", layer="conv2")[0].map
        for target in (
            ClassTarget(0),
            ClassTarget(0, against=True),
            ClassTarget(0, minus=1),
            ClassTarget(1, minus=0),
        )
    )
    assert not (one * other).any()  # relu(m) and relu(-m) are never both positive
    assert not (contrast * opposite).any()
    back = explain(model, x, target=ClassTarget(1), method="hirescam", layer="conv2")[0].map
    back_other = explain(
        model, x, target=ClassTarget(1, against=True), method="hirescam", layer="conv2"
    )[0].map
    np.testing.assert_allclose(contrast - opposite, (one - other) - (back - back_other), atol=1e-6)


def test_what_cannot_be_asked() -> None:
    with pytest.raises(ClassOutOfRange, match=r"index 3 is out of range; .* 0 to 2"):
        ClassTarget(0, minus=3).resolve(SAID)
    with pytest.raises(ClassOutOfRange, match="index 7 is out of range"):
        ClassTarget(7, minus=9).resolve(SAID)
    for where in ({"box": (0, 0, 1, 1)}, {"mask": torch.ones(2, 2, dtype=torch.bool)}):
        with pytest.raises(TargetMismatch, match="classifies whole images"):
            ClassTarget(0, **where).resolve(SAID)
    with pytest.raises(
        SelfContrast, match=r"class 1 cannot be contrasted with itself; name another$"
    ):
        ClassTarget(1, minus=1).resolve(SAID)
    with pytest.raises(SelfContrast, match=r"class 1 .* it is the predicted class$"):
        ClassTarget(minus=1).resolve(SAID)


def test_the_first_and_the_last_class_are_in_range() -> None:
    for index in (0, 2):
        assert ClassTarget(index).resolve(SAID).index == index
    for index in (-1, 3):
        with pytest.raises(ClassOutOfRange):
            ClassTarget(index).resolve(SAID)


def test_a_probability_by_hand() -> None:
    assert ClassTarget(1).resolve(SAID).probability(SAID) == pytest.approx(0.5)
    assert ClassTarget(2, against=True).resolve(SAID).probability(SAID) == pytest.approx(0.25)
    # Of a segmenter the mean over the pixels where it wins: σ(4 - 1) and σ(3 - 1).
    said = Output(segments=torch.tensor([[[4.0, 3, 0]], [[1.0, 1, 5]]]))
    expected = (1 / (1 + math.exp(-3)) + 1 / (1 + math.exp(-2))) / 2
    assert ClassTarget(0).resolve(said).probability(said) == pytest.approx(expected)


def segments(*winners: int) -> Output:
    """Three classes on one row of pixels."""
    values = torch.nn.functional.one_hot(torch.tensor(winners), 3).T[:, None].float()
    return Output(segments=values)


@pytest.mark.parametrize(
    ("winners", "background", "expected"),
    [
        ((2, 2, 0, 2), None, 2),
        ((1, 1, 1, 2), 1, 2),  # one pixel is enough beside the background
        ((0, 0, 0, 1), 0, 1),
        ((1, 1, 1, 1), 1, 1),  # there is nothing else
    ],
)
def test_a_segmenters_predicted_class(
    winners: tuple[int, ...], background: int | None, expected: int
) -> None:
    said = segments(*winners)
    assert ClassTarget(background=background).resolve(said).index == expected


@pytest.mark.parametrize(
    ("box", "width", "expected"),
    [
        # A pixel belongs to the box if its centre does.
        ((0.4, 0, 1.6, 1), 4, [True, True, False, False]),
        ((0.6, 0, 1.4, 1), 4, None),
        ((0.5, 0, 2.5, 1), 4, [False, True, False, False]),  # not one on the edge
        ((2, 0, 9, 1), 4, [False, False, True, True]),
        # In pixels of the input, which here is twice as wide.
        ((4, 0, 8, 1), 8, [False, False, True, True]),
        ((0, 0, 3.5, 1), 8, [True, True, False, False]),
    ],
)
def test_the_pixels_of_a_box(
    box: tuple[float, float, float, float], width: int, expected: list[bool] | None
) -> None:
    """Along one row, and along one column."""
    said = Output(segments=segments(0, 0, 0, 0).segments, size=(1, width))
    assert said.segments is not None
    upright = Output(segments=said.segments.transpose(1, 2), size=(width, 1))
    left, top, right, bottom = box
    turned = (top, left, bottom, right)
    if expected is None:
        with pytest.raises(BoxOutside, match="no pixel of the 4 × 1 that are seen"):
            ClassTarget(0, box=box).resolve(said)
        with pytest.raises(BoxOutside, match="no pixel of the 1 × 4 that are seen"):
            ClassTarget(0, box=turned).resolve(upright)
        return
    mask = ClassTarget(0, box=box).resolve(said).mask
    assert mask is not None
    assert mask.tolist() == [expected]
    mask = ClassTarget(0, box=turned).resolve(upright).mask
    assert mask is not None
    assert mask.tolist() == [[each] for each in expected]


def test_a_mask_and_a_box_of_an_upright_segmenter() -> None:
    said = Output(segments=torch.zeros(2, 4, 2))
    mask = np.zeros((8, 6), bool)
    mask[2:4, 3:] = True  # the second of four rows, the right of two columns
    for target in (ClassTarget(0, mask=mask), ClassTarget(0, box=(1, 1, 2, 2))):
        resolved = target.resolve(said)
        assert resolved.mask is not None
        assert resolved.mask.tolist() == [[0, 0], [0, 1], [0, 0], [0, 0]]


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


def test_a_mirrored_target_by_hand() -> None:
    mask = np.array([[True, False, False]])
    target = mirrored(ClassTarget(2, box=(1, 2, 4, 9), mask=mask), 10)
    assert isinstance(target, ClassTarget)
    assert (target.index, target.box) == (2, (6, 2, 9, 9))
    assert target.mask is not None
    assert target.mask.tolist() == [[False, False, True]]
    assert mirrored(ClassTarget(3), 10) == ClassTarget(3)
    unit = UnitTarget("layer", 1)
    assert mirrored(unit, 10) is unit
