"""Methods of components: their constants, edges and precision by hand (each on one 2 × 2 case in
test_methods)."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from pytorch_grad_cam.utils.svd_on_activations import get_2d_projection_with_sign_correction
from torch import Tensor

from cam.errors import GridTooLarge
from cam.methods import components
from cam.methods.components import Component, eigencam, eigengradcam, fem, kpcacam, segeigencam

Method = Callable[[Tensor, Tensor], Tensor | Component]


def maps(method: Method, a: Tensor, g: Tensor) -> Tensor:
    found = method(a, g)
    return found.maps if isinstance(found, Component) else found


def test_kpcacams_kernel_by_hand() -> None:
    # Both channels (0, 0, 3), centred (-1, -1, 2): x·y / 2 is 1, -2 and 4, so κ = tanh 2 between
    # the first two, -tanh 1 between them and the third, tanh 5 there. Centring κ keeps
    # v = (1, 1, -2) / √6, with λ = vᵀ κ v = (4 tanh 2 + 8 tanh 1 + 4 tanh 5) / 6. The side of
    # √λ v that agrees with (0, 0, 6) is the third position's.
    a = torch.tensor([0.0, 0, 3]).repeat(2, 1)[None, :, None]
    strength = (4 * math.tanh(2) + 8 * math.tanh(1) + 4 * math.tanh(5)) / 6
    expected = torch.tensor([[[0, 0, 2 * math.sqrt(strength / 6)]]])
    torch.testing.assert_close(maps(kpcacam, a, a), expected)


def test_kpcacam_takes_as_many_positions_as_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(components, "MAX_POSITIONS", 6)
    assert not maps(kpcacam, torch.zeros(1, 1, 2, 3), torch.zeros(1, 1, 2, 3)).any()
    with pytest.raises(GridTooLarge):
        maps(kpcacam, torch.zeros(1, 1, 1, 7), torch.zeros(1, 1, 1, 7))


@pytest.mark.parametrize("method", [eigencam, eigengradcam, segeigencam, kpcacam, fem])
def test_where_all_positions_are_alike_nothing_stands_out(method: Method) -> None:
    a = torch.full((1, 2, 3, 4), 0.7)
    found = maps(method, a, torch.ones_like(a))
    if method is eigencam:  # not centred: the component is the activation itself
        np.testing.assert_allclose(found, np.full((1, 3, 4), 0.7 * 2**0.5), rtol=1e-6)
    else:
        np.testing.assert_allclose(found, np.zeros((1, 3, 4)), atol=1e-6)


def test_a_small_component_has_its_sign_too() -> None:
    """As small as it is, it agrees with the sum over the channels."""
    a = torch.tensor([[[[1e-3, 0, 0]], [[0, 0, 2e-3]]]])
    # X = 1e-3 [[1, 0], [0, 0], [0, 2]]: the first right singular vector is the second channel's.
    torch.testing.assert_close(maps(eigencam, a, a), torch.tensor([[[0, 0, 2e-3]]]))
    torch.testing.assert_close(maps(eigencam, -a, a), torch.zeros(1, 1, 3))
    ends = a[..., ::2]  # as many channels as positions
    torch.testing.assert_close(maps(eigencam, ends, a), torch.tensor([[[0, 2e-3]]]))


@pytest.mark.parametrize("method", [eigengradcam, segeigencam, kpcacam])
@pytest.mark.parametrize("channels", [3, 40])
def test_a_great_mean_costs_no_precision(method: Method, channels: int) -> None:
    """Centred methods do not see it: in single precision four of seven digits would be gone."""
    rng = torch.Generator().manual_seed(0)
    a = torch.randint(0, 64, (1, channels, 4, 5), generator=rng) / 64
    one, ones = torch.ones(1, channels, 1, 1), torch.ones_like(a)
    found: Tensor = maps(method, a + 4096 * one, ones)
    expected: Tensor = maps(method, a, ones)
    # Whatever the mean, its sum with the projection is 0: which side is shown may differ.
    difference = min(
        float((found - each).abs().max()) for each in (expected, maps(method, -a, ones))
    )
    assert difference <= 1e-5 * float(expected.max())


def test_segeigencam_shows_the_higher_side_by_hand() -> None:
    """One channel, so v is 1 or -1. Centred, (0, 0, -3) is (1, 1, -2): the lower side is the
    higher one in size. The sign of the gradients makes no difference."""
    a, ones = torch.tensor([[[[0.0, 0, -3]]]]), torch.tensor([[[[1.0, -1, 1]]]])
    torch.testing.assert_close(maps(segeigencam, a, ones), torch.tensor([[[0.0, 0, 2]]]))
    torch.testing.assert_close(maps(segeigencam, -a, ones), torch.tensor([[[0.0, 0, 2]]]))
    torch.testing.assert_close(maps(segeigencam, a, -2 * ones), torch.tensor([[[0.0, 0, 4]]]))
    # Of two positions both sides are as high: the one that agrees with the sums.
    a = torch.tensor([[[[1.0, 3]], [[2, 5]]]])
    found = maps(segeigencam, a, torch.ones_like(a))
    torch.testing.assert_close(found, torch.tensor([[[0.0, (1 + 1.5**2) ** 0.5]]]))
    found = maps(segeigencam, a.flip(3), torch.ones_like(a))
    torch.testing.assert_close(found, torch.tensor([[[(1 + 1.5**2) ** 0.5, 0.0]]]))


@pytest.mark.parametrize("channels", [3, 40])
def test_segeigencam_equals_pytorch_grad_cams(channels: int) -> None:
    flipped = 0
    for seed in range(8):
        rng = torch.Generator().manual_seed(seed)
        a, g = (torch.randn(1, channels, 4, 5, generator=rng) for _ in range(2))
        weighed = (g.abs() * a).numpy()
        expected = get_2d_projection_with_sign_correction(weighed)
        np.testing.assert_allclose(
            maps(segeigencam, a, g), np.maximum(expected, 0), rtol=1e-4, atol=1e-4
        )
        flipped += bool((maps(segeigencam, a, g) != maps(eigengradcam, a, g.abs())).any())
    assert flipped, "the sign of eigengradcam would do as well"


def fem_of(*channels: list[float]) -> list[float]:
    a = torch.tensor(channels)[None, :, None]
    values: list[float] = fem(a, a)[0, 0].tolist()
    return values


def test_fems_threshold_by_hand() -> None:
    # μ = 1, σ² = (16 + 4 · 1) / 5 = 4: 5 is exactly two deviations above.
    assert fem_of([5, 0, 0, 0, 0]) == [1, 0, 0, 0, 0]
    # μ = 13/9, σ² = 97/9 - μ² = 8.7: the threshold 7.3 lies between 9 and 4.
    found = fem_of([9, 4, 0, 0, 0, 0, 0, 0, 0])
    np.testing.assert_allclose(found, [13 / 9, *[0] * 8], rtol=1e-6)
    # However small a channel's deviation is, it counts; channels add up.
    found = fem_of([0.05, 0, 0, 0, 0, 0], [6, 0, 0, 0, 0, 0])
    np.testing.assert_allclose(found, [0.05 / 6 + 1, *[0] * 5], rtol=1e-5)
    # A mean below 0 weighs nothing: what is left of the map is not below 0.
    assert fem_of([0, -9, -9, -9, -9, -9, -9, -9, -9]) == [0] * 9
