"""A leading component that is barely stronger than the next one: a warning, by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from cam import ClassTarget, Explanation, explain
from cam.explanation import Smoothing
from cam.methods.components import (
    LEAST_GAP,
    Component,
    eigencam,
    eigengradcam,
    kpcacam,
    projected,
)
from tests.zoo.by_hand import seeing

ONE = torch.ones(1, 1, 1, 1)


def pixels(strength: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """A red pixel and a green one: X = diag(1, strength) and zeros, so λ₂ / λ₁ = strength²."""
    image = torch.zeros(1, 3, 2, 2, dtype=dtype)
    image[0, 0, 0, 0], image[0, 1, 0, 1] = 1, strength
    return image


def crossed(strength: float) -> Tensor:
    """Two centred columns at right angles, (1, -1, 1, -1) and strength × (1, 1, -1, -1)."""
    columns = torch.tensor([[1.0, -1, 1, -1], [strength, strength, -strength, -strength]])
    return columns.view(1, 2, 2, 2)


@pytest.mark.parametrize(("strength", "ratio"), [(1.0, 1.0), (0.5, 0.25), (0.0, 0.0)])
def test_ratios_by_hand(strength: float, ratio: float) -> None:
    for found in (
        eigencam(pixels(strength), ONE),
        eigengradcam(crossed(strength), ONE),
        projected(torch.cat([crossed(strength), torch.zeros(1, 9, 2, 2)], 1)),  # few positions
    ):
        torch.testing.assert_close(found.ratio, torch.tensor([ratio]).double())


def test_kernel_ratios_by_hand() -> None:
    # Three positions at the corners of a triangle of equal sides: turned by a third it is itself,
    # so the plane's two directions are equally strong. Two positions have one direction alone.
    corners = torch.tensor([[1, -0.5, -0.5], [0, 0.75**0.5, -(0.75**0.5)]]).view(1, 2, 1, 3)
    found = kpcacam(corners, ONE).ratio
    torch.testing.assert_close(found, torch.ones(1).double(), rtol=0, atol=1e-6)
    found = kpcacam(torch.tensor([[[[0.0, 2.0]]]]), ONE).ratio
    torch.testing.assert_close(found, torch.zeros(1).double())


def test_where_there_is_no_second_component() -> None:
    for features in (torch.ones(2, 5, 1, 1), torch.ones(2, 1, 3, 3), torch.zeros(2, 3, 4, 4)):
        assert projected(features, centred=False).ratio.tolist() == [0, 0]


def told(strength: float, dtype: torch.dtype = torch.float32) -> tuple[str, ...]:
    (found,) = explain(seeing(), pixels(strength, dtype), method="eigencam", layer="stem")
    return close(found)


def close(found: Explanation) -> tuple[str, ...]:
    """The warnings without those of every map here."""
    usual = "does not depend on the class", "2 × 2 positions", "is zero everywhere"
    return tuple(each for each in found.warnings if not any(words in each for words in usual))


def test_the_warning() -> None:
    (warning,) = told(0.999**0.5)
    assert warning == (
        "the two leading components of layer 'stem' are almost equally strong (ratio 0.999), so "
        "the map of eigencam is decided by rounding; another layer or method is better"
    )
    # In float32 the gap must be 2 %.
    assert told(0.981**0.5)
    assert not told(0.979**0.5)
    assert not told(0.999**0.5, torch.float64)
    # In half precision it must be more.
    assert told(0.6875, torch.bfloat16)  # 0.47
    assert not told(0.625, torch.bfloat16)  # 0.39
    assert not told(0.875, torch.float16)  # 0.77
    assert told(0.984375, torch.float16)  # 0.97


def test_methods_without_components_are_not_warned_of() -> None:
    for method in ("gradcam", "fem"):
        (found,) = explain(seeing(), pixels(1), method=method, layer="stem")
        assert close(found) == ()


def test_each_image_and_layer_has_its_own() -> None:
    model, batch = seeing(), torch.cat([pixels(1), pixels(0.5)])
    found = explain(model, batch, method="eigencam", layer=["stem", "again"])
    assert [len(close(each)) for each in found] == [1, 1, 0, 0]
    fused = explain(model, batch, method="eigencam", layer=["stem", "again"], fuse="mean")
    assert [[("'stem'" in told, "'again'" in told) for told in close(each)] for each in fused] == [
        [(True, False), (False, True)],
        [],
    ]


@pytest.mark.parametrize("smooth", ["eigen", "both"])
def test_smoothed_by_a_component(smooth: Smoothing) -> None:
    # Of red less green hirescam's W ⊙ A has the columns (1, 0, 0, 1) / 4 and -(0, 1, 0, 1) / 4;
    # centred they are at right angles and equally long. So they are mirrored or brighter.
    image = pixels(1)
    image[0, 0, 1, 1] = image[0, 1, 1, 1] = 1
    (found,) = explain(
        seeing(),
        image,
        target=ClassTarget(0, minus=1),
        method="hirescam",
        layer="stem",
        smooth=smooth,
    )
    (warning,) = close(found)
    assert "(ratio 1.000), so the map of smooth=eigen is decided by rounding" in warning


def test_the_least_gap_is_enough_and_less_is_not() -> None:
    """Rounding of 1e-5 moves no map by more than 1e-3 of its peak where there is no warning."""

    def moved(gap: float, seed: int) -> float:
        rng = torch.Generator().manual_seed(seed)
        u, _ = torch.linalg.qr(torch.randn(49, 49, generator=rng).double())
        v, _ = torch.linalg.qr(torch.randn(60, 60, generator=rng).double())
        strengths = torch.linspace(0.9, 0, 49).double()
        strengths[0], strengths[1] = 1, (1 - gap) ** 0.5
        x = u @ torch.diag(strengths) @ v[:49]
        rounding = torch.randn(x.shape, generator=rng).double()
        rounding *= 1e-5 / torch.linalg.matrix_norm(rounding, 2)
        both = torch.stack([x, x + rounding]).mT.reshape(2, 60, 7, 7)
        one, other = projected(both, centred=False).maps
        return float((one - other).abs().max() / one.max())

    assert max(moved(LEAST_GAP[torch.float32], seed) for seed in range(20)) <= 1e-3
    assert max(moved(LEAST_GAP[torch.float32] / 100, seed) for seed in range(20)) > 1e-3


def test_the_least_gaps_by_hand() -> None:
    """2 ε / (what the map is asked to be right to): docstring of LEAST_GAP."""
    expected = {
        torch.float64: 4e-11,
        torch.float32: 0.02,
        torch.float16: 0.08,
        torch.bfloat16: 0.6,
    }
    assert pytest.approx(expected) == LEAST_GAP


@pytest.mark.parametrize("method", [eigencam, eigengradcam, kpcacam])
def test_two_eigenvalues_are_enough_for_a_ratio(
    method: Callable[[Tensor, Tensor], Component],
) -> None:
    """Two positions have two eigenvalues: of X = diag(2, 1) 4 and 1, centred only one."""
    values = torch.tensor([[[[2.0, 0]], [[0, 1.0]], [[0, 0]]]])
    expected = 0.25 if method is eigencam else 0
    found = method(values, torch.ones_like(values)).ratio
    torch.testing.assert_close(found, torch.tensor([expected]).double(), rtol=0, atol=1e-12)
