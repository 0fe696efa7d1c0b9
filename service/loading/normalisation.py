"""Normalisation of pixels: the last step of the preprocessing, on the model's device."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from service.models.preprocessing import Preprocessing


class Normalisation:
    """Normalises pixels on the model's device. Copying uint8 pixels to the device takes a quarter
    of the bytes of a float32 input.

    Args:
        device: the device that holds the mean and the standard deviation.
    """

    def __init__(self, preprocessing: Preprocessing, device: torch.device) -> None:
        most = 1 if preprocessing.byte_range else 255
        scale = [1 / (most * std) for std in preprocessing.std]
        pairs = zip(preprocessing.mean, preprocessing.std, strict=True)
        shift = [-mean / std for mean, std in pairs]
        self._reversed = preprocessing.reversed
        self._device = device
        self._scale = torch.tensor(scale, device=device).view(3, 1, 1)
        self._shift = torch.tensor(shift, device=device).view(3, 1, 1)

    def __call__(self, pixels: NDArray[np.uint8]) -> Tensor:
        """Normalise a batch in one fused step.

        Args:
            pixels: RGB (N, H, W, 3), all of one size.

        Returns:
            float32 (N, 3, H, W) on the device: (pixels / 255 − mean) / std, without the division
            by 255 for a model that takes 0 … 255. The memory layout is channels-last.
        """
        planes = torch.from_numpy(pixels).to(self._device).permute(0, 3, 1, 2)
        normalised = torch.addcmul(self._shift, planes, self._scale)
        return normalised.flip(1) if self._reversed else normalised
