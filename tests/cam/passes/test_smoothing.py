"""Smoothing and fusing: by hand, and what cannot be smoothed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from cam import METHODS, ClassTarget, Question, explain, explain_in_steps
from cam.drawing.heatmap import fuse, minmax, symmetric
from cam.errors import MethodUnsuited
from cam.progress import Progress
from tests.cam.methods.needs import ATTENDING
from tests.zoo.convolutional import OfModules, Small, small
from tests.zoo.parts import at_layer, hook_count, images


def test_augmentation_is_the_mean_of_six() -> None:
    model, x = small(), images(2)
    found = explain(model, x, layer="relu1", smooth="augment", target=[None, 0])
    best = model(x).argmax(1).tolist()
    turn = 0
    for row in (0, 1):
        for target in (best[row], 0):
            expected = np.zeros((8, 8))
            for factor in (1, 0.9, 1.1):
                one = x[row : row + 1] * factor
                (plain,) = explain(model, one, layer="relu1", target=target)
                (mirrored,) = explain(model, one.flip(-1), layer="relu1", target=target)
                expected += (plain.map + mirrored.map[:, ::-1]) / 6
            np.testing.assert_allclose(found[turn].map, expected, rtol=1e-4, atol=1e-7)
            assert found[turn].target == ClassTarget(target)
            turn += 1
    assert hook_count(model) == 0


def test_augmentation_says_how_far_it_is() -> None:
    model = small()
    question = Question((ClassTarget(),), "gradcam", ("relu1",), smooth="augment")
    steps = explain_in_steps(model, images(1)[0], question, chunk=2)
    assert list(steps) == [Progress(1, 6), Progress(3, 6), Progress(5, 6), Progress(6, 6)]


def test_both_smoothings_together() -> None:
    model, x = small(), images(1)
    (both,) = explain(model, x, layer="relu1", smooth="both", target=1)
    expected = np.zeros((8, 8))
    for factor in (1, 0.9, 1.1):
        one = x * factor
        (plain,) = explain(model, one, layer="relu1", target=1, smooth="eigen")
        (mirrored,) = explain(model, one.flip(-1), layer="relu1", target=1, smooth="eigen")
        expected += (plain.map + mirrored.map[:, ::-1]) / 6
    np.testing.assert_allclose(both.map, expected, rtol=1e-4, atol=1e-7)


def test_fused_by_hand() -> None:
    coarse = np.array([[2.0]], np.float32)
    one, other = np.array([[0.0, 4], [2, 0]], np.float32), np.array([[3.0, 0], [3, 0]], np.float32)
    signed = np.array([[-4.0, 2]], np.float32), np.array([[1.0, 2]], np.float32)
    cases: list[tuple[np.ndarray, list[list[float]]]] = [
        (fuse([one, other], "mean"), [[0.5, 0.5], [0.75, 0]]),
        (fuse([one, other], "max"), [[1, 1], [1, 0]]),
        (fuse([one, coarse], "max"), [[0, 1], [0.5, 0]]),  # a constant map is 0
        (fuse(signed, "max", signed=True), [[-1, 1]]),
        (fuse(signed, "mean", signed=True), [[-0.25, 0.75]]),
    ]
    for found, expected in cases:
        np.testing.assert_allclose(found, expected)


def test_layers_are_fused_in_an_explanation() -> None:
    model, x = small(), images(1)
    (found,) = explain(model, x, layer=["relu1", "relu2"], fuse="mean", target=2)
    one, other = explain(model, x, layer=["relu1", "relu2"], target=2)
    assert found.layer == "relu1 + relu2"
    np.testing.assert_allclose(found.map, fuse([one.map, other.map], "mean"))
    assert found.map.shape == (8, 8)


def test_symmetric_keeps_zero() -> None:
    values = np.array([[-2.0, 0], [1, 0.5]], np.float32)
    np.testing.assert_allclose(symmetric(values), np.array([[-1, 0], [0.5, 0.25]]))
    assert not symmetric(np.zeros((2, 2), np.float32)).any()


@pytest.mark.parametrize(
    "method",
    [
        name
        for name, method in METHODS.items()
        if method.signed and not method.levels and name not in ATTENDING
    ],
)
def test_a_signed_map_rectified_is_the_plain_one(method: str) -> None:
    torch.manual_seed(7)
    model, x = (OfModules if method == "lrp" else Small)().eval(), images(1, seed=3)

    def mapped(*, signed: bool) -> np.ndarray:
        (found,) = explain(
            model,
            x,
            target=0,
            method=method,
            layer="relu2",
            signed=signed,
            budget=40 if METHODS[method].budget else None,
        )
        assert found.signed == signed
        return found.map

    both = mapped(signed=True)
    np.testing.assert_array_equal(np.maximum(both, 0), mapped(signed=False))


def test_the_signed_map_of_a_contrast_is_the_negative_of_the_other() -> None:
    model, x = small(), images(1)
    one, other = explain(
        model,
        x,
        target=[ClassTarget(0, minus=1), ClassTarget(1, minus=0)],
        layer="relu2",
        signed=True,
    )
    np.testing.assert_allclose(one.map, -other.map, rtol=1e-5)
    assert (one.map < 0).any() or (other.map < 0).any()


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"method": "eigencam", "signed": True}, "eigencam has nothing below 0"),
        ({"method": "eigencam", "smooth": "eigen"}, "eigencam has no weighted activations"),
        ({"method": "scorecam", "smooth": "augment"}, "scorecam takes many passes itself"),
        ({"method": "rise", "fuse": "mean"}, "rise has one map, at the input"),
        ({"signed": True, "smooth": "eigen"}, "a principal component has no sign"),
    ],
)
def test_what_cannot_be_asked(asked: dict[str, str], words: str) -> None:
    with pytest.raises(MethodUnsuited, match=words):
        explain(small(), images(1), layer=["relu1", "relu2"], **asked)  # type: ignore[arg-type]


def test_minmax_of_a_fused_map_is_itself() -> None:
    stacked: Tensor = torch.rand(3, 5, 5, generator=torch.Generator().manual_seed(0))
    found = fuse([minmax(each.numpy()) for each in stacked], "max")
    assert found.max() == 1


def test_a_mask_is_mirrored_with_its_image() -> None:
    """What is asked of the left half of an image is asked of the right half of its mirror."""

    model = at_layer(lambda a: torch.cat([a[:, :1], -a[:, :1]], 1))
    x = torch.rand(1, 3, 4, 4, generator=torch.Generator().manual_seed(0)) + 0.5
    mask = np.zeros((4, 4), bool)
    mask[:, :2] = True
    for target in (ClassTarget(0, mask=mask), ClassTarget(0, box=(0, 0, 2, 4))):
        (found,) = explain(
            model, x, target=target, layer="layer", method="hirescam", smooth="augment"
        )
        assert found.map[:, :2].min() > 0
        assert not found.map[:, 2:].any()
