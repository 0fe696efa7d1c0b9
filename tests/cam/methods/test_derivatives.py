"""Second derivatives and noisy copies: by hand, and against autograd's own Hessian."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.autograd import functional

from cam import ClassTarget, explain
from cam.errors import MethodUnsuited
from tests.cam.nets import hook_count, images, small
from tests.cam.test_targets import Identity


class SquaredMean(nn.Module):
    """y = m², m the mean of the one feature map; the other logit is 0."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        mean = self.layer(x).mean(dim=(1, 2, 3))
        return torch.stack([mean**2, 0 * mean], 1)


def test_shapleycam_by_hand() -> None:
    # m = 3: G = 2m/4 = 1.5 at each position; HA = 2/16 Σ A = 1.5; W = 1.5 - 0.75.
    photo = torch.tensor([[[[3.0, 1], [0, 8]]]])
    (found,) = explain(SquaredMean(), photo, target=0, method="shapleycam", layer="layer")
    np.testing.assert_allclose(found.map, np.array([[2.25, 0.75], [0, 6]]))


class Curved(nn.Module):
    """A smooth, truly curved head on three feature maps."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Identity()
        self.mix = nn.Linear(12, 5)
        self.head = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.tail(self.layer(x))

    def tail(self, a: Tensor) -> Tensor:
        out: Tensor = self.head(torch.tanh(self.mix(a.flatten(1))))
        return out


def test_shapleycam_equals_the_whole_hessian() -> None:
    torch.manual_seed(1)
    model = Curved().eval()
    x = torch.randn(2, 3, 2, 2)
    for row, found in enumerate(
        explain(model, x, target=1, method="shapleycam", layer="layer", signed=True)
    ):
        a = x[row : row + 1]

        def score(values: Tensor) -> Tensor:
            return model.tail(values)[0, 1]

        gradient = functional.jacobian(score, a)  # type: ignore[no-untyped-call]
        hessian = functional.hessian(score, a)  # type: ignore[no-untyped-call]
        hessian = hessian.reshape(12, 12)
        weights = (gradient.flatten() - 0.5 * hessian @ a.flatten()).reshape(3, 4).mean(1)
        expected = torch.einsum("k,khw->hw", weights, a[0]).numpy()
        np.testing.assert_allclose(found.map, expected, rtol=1e-4, atol=1e-6)
        (plain,) = explain(model, a, target=1, layer="layer", signed=True)
        assert np.abs(plain.map - found.map).max() > 1e-3
    assert hook_count(model) == 0
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_linear_tail_makes_it_grad_cam() -> None:
    model = small()
    x = images(1)
    (found,) = explain(model, x, target=1, method="shapleycam", layer="relu2")
    (plain,) = explain(model, x, target=1, method="gradcam", layer="relu2")
    np.testing.assert_allclose(found.map, plain.map, rtol=1e-5)


def test_noise_that_the_gradient_does_not_feel_leaves_grad_cam_plusplus() -> None:
    photo = torch.tensor([[[[4.0, 0], [0, 0]], [[0, 8], [0, 0]], [[0, 0], [0, 0]]]])
    (smooth,) = explain(Identity(), photo, target=0, method="smoothgradcam++", layer="layer")
    (plain,) = explain(Identity(), photo, target=0, method="gradcam++", layer="layer")
    np.testing.assert_allclose(smooth.map, plain.map, rtol=1e-5)
    assert plain.map.max() > 0


@pytest.mark.slow
def test_smoothgradcam_plusplus_averages_each_power_by_itself() -> None:
    """y = Σ A³/3 has G = A²: at A = a + ε, the means of (a + ε)², (a + ε)⁴, (a + ε)⁶ are moments
    of the normal distribution."""

    class Cubed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Identity()

        def forward(self, x: Tensor) -> Tensor:
            y = (self.layer(x) ** 3 / 3).sum(dim=(1, 2, 3))
            return torch.stack([y, 0 * y], 1)

    photo = torch.tensor([[[[0.0, 2.0]]]])
    (found,) = explain(
        Cubed(), photo, target=0, method="smoothgradcam++", layer="layer", budget=20_000
    )
    sigma = 0.15 * 2
    weight = 0.0
    for a in (0.0, 2.0):
        first = a**2 + sigma**2
        second = a**4 + 6 * a**2 * sigma**2 + 3 * sigma**4
        third = a**6 + 15 * a**4 * sigma**2 + 45 * a**2 * sigma**4 + 15 * sigma**6
        weight += second / (2 * second + third * 2.0) * first
    np.testing.assert_allclose(found.map, [[0, 2 * weight]], rtol=0.02)


def test_smoothgradcam_plusplus_has_no_weight_where_nothing_speaks_for_the_class() -> None:
    # G = ¼ at each of four positions; Σ A = -8, so 2 G² + G³ Σ A = 0.
    photo = torch.tensor([[[[-5.0, -3], [0, 0]], [[0, 8], [0, 0]], [[0, 0], [4, 0]]]])

    def map_of(target: ClassTarget) -> list[list[float]]:
        (found,) = explain(
            Identity(), photo, target=target, method="smoothgradcam++", layer="layer", signed=True
        )
        values: list[list[float]] = found.map.tolist()
        return values

    assert map_of(ClassTarget(0)) == [[0, 0], [0, 0]]
    # α = 1 / (2 + ¼ · 8) = ¼ at each: W = 4 · ¼ · ¼.
    assert map_of(ClassTarget(1)) == [[0, 2], [0, 0]]
    # α = 1 / (2 - ¼ · 4) = 1, but relu(-¼) is 0.
    assert map_of(ClassTarget(2, against=True)) == [[0, 0], [0, 0]]


def test_a_linear_tail_of_frozen_parameters_makes_it_grad_cam_too() -> None:
    model = small().requires_grad_(False)
    (found,) = explain(model, images(1), target=1, method="shapleycam", layer="relu2")
    (plain,) = explain(model, images(1), target=1, method="gradcam", layer="relu2")
    np.testing.assert_allclose(found.map, plain.map, rtol=1e-5)


class Attending(nn.Module):
    """Positions attend to each other behind the layer."""

    def __init__(self, *, fused: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Conv2d(3, 8, 1)
        self.mix = nn.Linear(8, 24)
        self.head = nn.Linear(8, 2)
        self.fused = fused

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.layer(x).flatten(2).transpose(1, 2)[:, None]  # one head
        q, k, v = self.mix(tokens).chunk(3, dim=-1)
        if self.fused:
            mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        else:
            mixed = (q @ k.transpose(2, 3) / 8**0.5).softmax(-1) @ v
        out: Tensor = self.head(mixed.mean(dim=(1, 2)))
        return out


def test_fused_attention_has_the_second_derivatives_of_the_plain_one() -> None:
    x = images(1)
    found, plain, flat = (
        explain(Attending(fused=fused), x, target=1, method=method, layer="layer", signed=True)[0]
        for fused, method in ((True, "shapleycam"), (False, "shapleycam"), (False, "gradcam"))
    )
    scale = float(np.abs(plain.map).max())
    np.testing.assert_allclose(found.map, plain.map, atol=1e-4 * scale)
    assert np.abs(plain.map - flat.map).max() > 1e-3 * scale


class Slope(torch.autograd.Function):
    """2x · g, without a derivative of its own."""

    @staticmethod
    def forward(_: Any, x: Tensor, g: Tensor) -> Tensor:
        return 2 * x * g

    @staticmethod
    def backward(_: Any, __: Tensor) -> Tensor:
        raise RuntimeError("derivative for slope is not implemented")


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        slope: Tensor = Slope.apply(*ctx.saved_tensors, gradient)
        return slope


class Undifferentiable(SquaredMean):
    def forward(self, x: Tensor) -> Tensor:
        values: Tensor = Square.apply(self.layer(x))
        mean = values.mean(dim=(1, 2, 3))
        return torch.stack([mean, -mean], 1)


def test_what_has_no_second_derivative_is_refused() -> None:
    photo = torch.ones(1, 1, 2, 2)
    (found,) = explain(Undifferentiable(), photo, target=0, layer="layer")
    np.testing.assert_allclose(found.map, np.full((2, 2), 0.5))
    with pytest.raises(MethodUnsuited, match="it needs second derivatives: derivative for slope"):
        explain(Undifferentiable(), photo, target=0, method="shapleycam", layer="layer")
