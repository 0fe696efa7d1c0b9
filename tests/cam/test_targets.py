"""What is explained: by hand, and what a contrast's gradient must be."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cam import ClassTarget, Output, explain
from cam.errors import ClassOutOfRange, SelfContrast
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
    with pytest.raises(SelfContrast, match="class 1 cannot be contrasted with itself; name"):
        ClassTarget(1, minus=1).resolve(SAID)
    with pytest.raises(SelfContrast, match=r"class 1 .* it is the predicted class"):
        ClassTarget(minus=1).resolve(SAID)
