"""The models, photos and maps of `bench/evaluation.py`."""

from __future__ import annotations

import numpy as np
import skimage.data
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import interpolate

from service.loading.served_model import ServedModel, load
from service.models.catalog import EMBEDDED, ModelEntry

Map = NDArray[np.float32]
MODELS = (EMBEDDED.name, "resnet50", "vit_b_16")
"""All but the first have seeded random weights."""
PHOTOS = ("chelsea", "coffee", "astronaut", "rocket")
CELLS = 7
"""Height and width of a random map before it is enlarged."""


def loaded(name: str) -> ServedModel:
    """Load a model for the CPU, in float32."""
    if name == EMBEDDED.name:
        return load(EMBEDDED.model_copy(update={"device": "cpu", "mode": "exact"}))
    source, kept = f"torchvision:{name}", {"device": "cpu", "mode": "exact"}
    return load(ModelEntry(name=name, source=source, weights="none", **kept))


def photos(served: ServedModel, count: int) -> Tensor:
    """Return preprocessed photos, float32 (count, 3, H, W)."""
    pictures = [Image.fromarray(getattr(skimage.data, name)()) for name in PHOTOS[:count]]
    pixels = [served.preprocessing.apply(each, "squash").pixels for each in pictures]
    return served.normalise(np.stack(pixels)).contiguous()


def smooth_map(height: int, width: int, seed: int) -> Map:
    """Return a smooth random map (height, width) whose values are ranks, 0 … 1, so that no two are
    equal, not even after a subtraction from 1."""
    generator = torch.Generator().manual_seed(seed)
    small = torch.rand((1, 1, CELLS, CELLS), generator=generator)
    smooth = interpolate(small, size=(height, width), mode="bicubic").flatten()
    ranks = torch.empty(smooth.numel(), dtype=torch.float64)
    ranks[smooth.argsort(stable=True)] = torch.arange(smooth.numel(), dtype=torch.float64)
    values: Map = (ranks / (len(ranks) - 1)).float().reshape(height, width).numpy()
    return values


def tell_apart(model: nn.Module, images: Tensor) -> None:
    """Shift and scale the head of a model with random weights, so that its probabilities depend on
    the image. The images then have a mean probability of one half.

    Before that, every image has the same class, with a probability of 1, or of 1 / 1000.
    """
    *_, head = (each for each in model.modules() if isinstance(each, nn.Linear))
    if not head.weight.any():
        nn.init.normal_(head.weight, std=0.02, generator=torch.Generator().manual_seed(0))
    height, width = images.shape[-2:]
    masked = images * torch.from_numpy(smooth_map(height, width, seed=len(images)))
    with torch.no_grad():
        logits = model(images)
        mean = torch.cat([logits, model(masked)]).mean(0)
        low, high = 0.0, 1e6
        for _ in range(100):
            scale = (low + high) / 2
            likely = (scale * (logits - mean)).softmax(1).amax(1).mean()
            low, high = (scale, high) if likely < 0.5 else (low, scale)
        head.weight *= scale
        head.bias.copy_(scale * (head.bias - mean))
