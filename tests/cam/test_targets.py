"""What is explained: by hand, and what a contrast's gradient must be."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from cam import ClassTarget, Output, UnitTarget, explain
from cam.errors import BoxOutside, ClassOutOfRange, SelfContrast, TargetMismatch
from cam.targets import mirrored
from tests.zoo.by_hand import identity
from tests.zoo.convolutional import small
from tests.zoo.parts import images

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


def test_maps_by_hand() -> None:
    """A map is relu(mean gradient ⊙ activation): ±1/4 at each of four positions."""
    photo = torch.tensor([[[[4.0, 0], [0, 0]], [[0, 8], [0, 0]], [[0, 0], [0, 0]]]])

    def map_of(target: ClassTarget) -> list[list[float]]:
        (found,) = explain(identity(), photo, target=target, layer="layer")
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
