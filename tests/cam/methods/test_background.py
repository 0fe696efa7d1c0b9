"""The background of expected gradients: what is declared, and what is drawn where nothing is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from cam import explain
from cam.errors import InvalidImages
from cam.methods.background import PICTURES, background_of, declare_background
from tests.zoo.convolutional import small
from tests.zoo.parts import images


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_without_a_declaration_it_has_the_photos_own_mean_and_contrast(channels: int) -> None:
    generator = torch.Generator().manual_seed(0)
    photo = 3 * torch.rand(1, channels, 20, 30, generator=generator) - 1
    photo[:, 0] *= 5
    found = background_of(nn.Identity(), photo)
    assert found.shape == (PICTURES, channels, 20, 30)
    for many, one in zip(
        torch.std_mean(found, (0, 2, 3), correction=0),
        torch.std_mean(photo, (0, 2, 3), correction=0),
        strict=True,
    ):
        torch.testing.assert_close(many, one, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(found[0], found[1])
    torch.testing.assert_close(found, background_of(nn.Identity(), photo), rtol=0, atol=0)
    assert background_of(nn.Identity(), photo.bfloat16()).dtype == torch.bfloat16


def test_what_is_declared_is_taken() -> None:
    model, own = small(), images(5, seed=9)
    declare_background(model, own)
    torch.testing.assert_close(background_of(model, images(1)), own)
    plain, (found,) = (
        explain(each, images(1), target=1, method="expectedgradients", budget=10)
        for each in (small(), model)
    )
    assert (plain[0].map != found.map).any()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([1, 2], "is a list, not a floating-point tensor"),
        (torch.zeros(2, 3, 8, 8, dtype=torch.uint8), r"torch.uint8 \(2, 3, 8, 8\), not a"),
        (torch.zeros(3, 8, 8), r"\(3, 8, 8\), not a floating-point tensor \(n, C, H, W\)"),
        (torch.zeros(0, 3, 8, 8), "has no image, or values"),
        (torch.full((1, 3, 8, 8), float("nan")), "has no image, or values"),
    ],
)
def test_what_cannot_be_a_background_is_refused(given: Any, words: str) -> None:
    with pytest.raises(InvalidImages, match=words):
        declare_background(small(), given)


def test_a_background_of_another_size_is_refused() -> None:
    model = small()
    declare_background(model, torch.zeros(2, 3, 9, 8))
    with pytest.raises(InvalidImages, match=r"images of \(3, 9, 8\).* shape \(3, 8, 8\)"):
        explain(model, images(1), method="expectedgradients")
