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
from tests.zoo.by_hand import identity
from tests.zoo.convolutional import small
from tests.zoo.parts import Net, hook_count, images, scored
from tests.zoo.transformers import of_tokens


def test_shapleycam_by_hand() -> None:
    # m = 3: G = 2m/4 = 1.5 at each position; HA = 2/16 Σ A = 1.5; W = 1.5 - 0.75.
    photo = torch.tensor([[[[3.0, 1], [0, 8]]]])
    model = scored(lambda x, layer: layer(x).mean((1, 2, 3)) ** 2, layer=nn.Identity())
    (found,) = explain(model, photo, target=0, method="shapleycam", layer="layer")
    np.testing.assert_allclose(found.map, np.array([[2.25, 0.75], [0, 6]]))


def test_shapleycam_equals_the_whole_hessian() -> None:
    """A smooth, truly curved head on three feature maps."""
    torch.manual_seed(1)

    def tail(a: Tensor, mix: nn.Module, head: nn.Module) -> Any:
        return head(torch.tanh(mix(a.flatten(1))))

    model = Net(
        lambda x, layer, mix, head: tail(layer(x), mix, head),
        layer=nn.Identity(),
        mix=nn.Linear(12, 5),
        head=nn.Linear(5, 2),
    ).eval()
    x = torch.randn(2, 3, 2, 2)
    for row, found in enumerate(
        explain(model, x, target=1, method="shapleycam", layer="layer", signed=True)
    ):
        a = x[row : row + 1]

        def score(values: Tensor) -> Any:
            return tail(values, model.mix, model.head)[0, 1]

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
    (smooth,) = explain(identity(), photo, target=0, method="smoothgradcam++", layer="layer")
    (plain,) = explain(identity(), photo, target=0, method="gradcam++", layer="layer")
    np.testing.assert_allclose(smooth.map, plain.map, rtol=1e-5)
    assert plain.map.max() > 0


@pytest.mark.slow
def test_smoothgradcam_plusplus_averages_each_power_by_itself() -> None:
    """y = Σ A³/3 has G = A²: at A = a + ε, the means of (a + ε)², (a + ε)⁴, (a + ε)⁶ are moments
    of the normal distribution."""

    model = scored(lambda x, layer: (layer(x) ** 3 / 3).sum((1, 2, 3)), layer=nn.Identity())
    photo = torch.tensor([[[[0.0, 2.0]]]])
    (found,) = explain(
        model, photo, target=0, method="smoothgradcam++", layer="layer", budget=20_000
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
            identity(),
            photo,
            target=target,
            method="smoothgradcam++",
            layer="layer",
            signed=True,
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


def attending(*, fused: bool) -> Net:
    """Positions attend to each other behind `embed`."""

    def mixed(tokens: Tensor, mix: nn.Module) -> Any:
        q, k, v = mix(tokens)[:, None].chunk(3, dim=-1)  # one head
        if fused:
            return nn.functional.scaled_dot_product_attention(q, k, v)[:, 0]
        return ((q @ k.transpose(2, 3) / 8**0.5).softmax(-1) @ v)[:, 0]

    torch.manual_seed(0)
    return of_tokens(mixed, embed=nn.Conv2d(3, 8, 1), mix=nn.Linear(8, 24), head=nn.Linear(8, 2))


def test_fused_attention_has_the_second_derivatives_of_the_plain_one() -> None:
    x = images(1)
    found, plain, flat = (
        explain(attending(fused=fused), x, target=1, method=method, layer="embed", signed=True)[0]
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


def test_what_has_no_second_derivative_is_refused() -> None:
    photo = torch.ones(1, 1, 2, 2)
    model = scored(
        lambda x, layer: Square.apply(layer(x)).mean((1, 2, 3)), other=-1, layer=nn.Identity()
    )
    (found,) = explain(model, photo, target=0, layer="layer")
    np.testing.assert_allclose(found.map, np.full((2, 2), 0.5))
    with pytest.raises(MethodUnsuited, match="it needs second derivatives: derivative for slope"):
        explain(model, photo, target=0, method="shapleycam", layer="layer")
