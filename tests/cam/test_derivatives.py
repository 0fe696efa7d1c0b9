"""Second derivatives and noisy copies: by hand, and against autograd's own Hessian."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import functional

from cam import explain
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
