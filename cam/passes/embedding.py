"""The embedding of an image: a layer's output, averaged over positions."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cam.hooks.inference import evaluating
from cam.likeness import embedding_of
from cam.outputs.outputs import looked_at, watching
from cam.positions.locate import locate


def embed(model: nn.Module, image: Tensor, layer: str) -> NDArray[np.float32]:
    """Return a layer's output for one image (1, C, H, W) as a vector (D,), averaged over positions,
    for a `SimilarityTarget` to compare.

    Raises:
        CamError: if the layer is unknown or returns no tensor.
    """
    located = locate(model, image, [layer])
    with evaluating(model), torch.no_grad(), watching(model, [layer]) as seen:
        model(image.clone())
        embedding = embedding_of(looked_at(seen, [layer], image, located)[layer][0])
    vector: NDArray[np.float32] = embedding.cpu().numpy()
    return vector
