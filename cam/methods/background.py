"""The background of expected gradients: the images with which a photo is compared."""

from __future__ import annotations

from functools import lru_cache
from typing import Final
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from cam.drawing.samples import samples
from cam.errors import InvalidImages

PICTURES: Final = 16
"""Number of drawn pictures that are the background of a model for which none is declared."""
_DECLARED: WeakKeyDictionary[nn.Module, Tensor] = WeakKeyDictionary()
"""Model → the background that the user declared: see `declare_background`."""


def declare_background(model: nn.Module, images: Tensor) -> None:
    """Declare the background of a model for `expectedgradients`, for as long as the model exists.

    Args:
        images: float (n, C, H, W), n ≥ 1, preprocessed as the images that are explained, and of
            their size: a sample of the photos with which the model was trained, as in Erion et
            al., Nature Machine Intelligence 2021.

    Raises:
        InvalidImages: if they are not such a tensor, or not finite.
    """
    if not (isinstance(images, Tensor) and images.is_floating_point() and images.ndim == 4):
        what = f"{images.dtype} {tuple(images.shape)}" if isinstance(images, Tensor) else ""
        raise InvalidImages(
            f"the background is a {type(images).__name__} {what}".rstrip()
            + ", not a floating-point tensor (n, C, H, W)"
        )
    if not images.numel() or not images.isfinite().all():
        raise InvalidImages("the background has no image, or values that are NaN or infinite")
    _DECLARED[getattr(model, "_orig_mod", model)] = images.detach()


def background_of(model: nn.Module, image: Tensor) -> Tensor:
    """Return the background of a model for an image (1, C, H, W): (n, C, H, W), in its dtype.

    If none is declared, the images are `PICTURES` seeded pictures with the statistics of photos,
    see `cam.drawing.samples`. Together they have the mean and the standard deviation of the image
    in each colour, whatever its preprocessing is.

    Raises:
        InvalidImages: if the declared images have another size than the image.
    """
    declared = _DECLARED.get(model)
    if declared is None:
        values, (_, channels, height, width) = image.float(), image.shape
        deviation, mean = torch.std_mean(values, (0, 2, 3), correction=0, keepdim=True)
        return (mean + deviation * _drawn(channels, height, width).to(values)).to(image)
    if declared.shape[1:] != image.shape[1:]:
        raise InvalidImages(
            f"the declared background has images of {tuple(declared.shape[1:])}; the image that is "
            f"explained has the shape {tuple(image.shape[1:])}"
        )
    return declared.to(image)


def draws(images: int, count: int) -> tuple[Tensor, Tensor]:
    """Draw images of a background of so many, and as many numbers α in 0 … 1, from a fixed seed.

    Erion et al. draw both alone. Here the images take turns, and one α lies in each of `count`
    equal parts of 0 … 1, in random order (a Latin hypercube: McKay et al., Technometrics 1979):
    each α is as probable as before, and the mean over the draws has less noise.

    Returns:
        The numbers of the images, int64 (count,), and α, float32 (count,), on the CPU.
    """
    rng = torch.Generator().manual_seed(0)
    turns = torch.randperm(images, generator=rng)[torch.arange(count) % images]
    alphas = (torch.randperm(count, generator=rng) + torch.rand(count, generator=rng)) / count
    return turns, alphas


@lru_cache(maxsize=4)
def _drawn(channels: int, height: int, width: int) -> Tensor:
    """Return drawn pictures, float32 (PICTURES, channels, height, width), which together have a
    mean of 0 and a standard deviation of 1 in each channel."""
    drawn = samples(PICTURES * -(-channels // 3), height, width)
    values = torch.from_numpy(drawn).float().movedim(-1, 1)
    values = values.reshape(PICTURES, -1, height, width)[:, :channels]
    deviation, mean = torch.std_mean(values, (0, 2, 3), correction=0, keepdim=True)
    return (values - mean) / deviation
