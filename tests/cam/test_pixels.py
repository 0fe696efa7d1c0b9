"""Gradients at the photo: by hand, against autograd, and what they leave behind."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from cam import ClassTarget, explain
from tests.cam.nets import hook_count, small


class Quadratic(nn.Module):
    """Two logits: the mean of red minus twice green, squared pixel by pixel; and its negative."""

    def forward(self, x: Tensor) -> Tensor:
        seen = ((x[:, 0] - 2 * x[:, 1]) ** 2).mean(dim=(1, 2))
        return torch.stack([seen, -seen], 1)


# Red minus twice green: 1, -4, 0 and 0.
PHOTO = torch.tensor([[[[1.0, 0], [0, 0]], [[0, 2], [0, 0]], [[9, 9], [9, 9]]]])


def test_the_gradient_by_hand() -> None:
    # ∂y/∂red = 2 d / 4 and ∂y/∂green = -4 d / 4 with d = 1 and -4: the larger is |d|.
    for index in (0, 1):
        (found,) = explain(Quadratic(), PHOTO, target=index, method="gradient")
        np.testing.assert_allclose(found.map, [[1, 4], [0, 0]])
        assert found.layer == "input"


def test_smoothgrad_of_a_quadratic_is_its_gradient() -> None:
    """The gradient is linear in the photo, so noise averages out; the rest is its standard
    error, σ √5 / √n with σ = 0.15 · 9."""
    (found,) = explain(Quadratic(), PHOTO, target=0, method="smoothgrad", budget=4000)
    np.testing.assert_allclose(found.map, [[1, 4], [0, 0]], atol=5 * 0.15 * 9 * 5**0.5 / 4000**0.5)
    (again,) = explain(Quadratic(), PHOTO, target=0, method="smoothgrad", budget=4000)
    np.testing.assert_array_equal(found.map, again.map)


def test_it_equals_autograd_and_leaves_the_model_alone() -> None:
    model = small(seed=5, inplace=True)
    images = torch.randn(2, 3, 8, 8)
    probe = images.clone().requires_grad_()
    logits = model(probe)
    (logits[:, 2] - logits[:, 0]).sum().backward()
    assert probe.grad is not None
    expected = probe.grad.abs().amax(1).numpy()
    for parameter in model.parameters():
        parameter.grad = None
    found = explain(model, images, target=ClassTarget(2, minus=0), method="gradient")
    for explanation, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(explanation.map, wanted, rtol=1e-4, atol=1e-7)
    assert hook_count(model) == 0
    assert all(parameter.grad is None for parameter in model.parameters())
