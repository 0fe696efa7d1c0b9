"""What the hooks see: inputs, outputs and gradients of layers, their statistics, a gallery."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cam.hooks.capture import Capture
from cam.hooks.grids import Grid
from cam.hooks.inference import evaluating
from cam.likeness import embedding_of
from cam.outputs.output import detached, looked_at, outputs_of, resolve_reading, size_of, watching
from cam.outputs.reading import AUTO, Reading
from cam.positions.locate import locate
from cam.targets import Target


@dataclass(frozen=True)
class Statistics:
    """Of all numbers in a tensor."""

    mean: float
    std: float
    """Of the population."""
    minimum: float
    maximum: float
    zeros: float
    """The share of exact zeros, 0 … 1: behind a ReLU, of dead units."""


@dataclass(frozen=True, eq=False)
class Observation:
    """One layer in one forward pass of one image, and in the backward pass of one target."""

    layer: str
    type: str
    """The module's class name."""
    input: NDArray[np.float32] | None
    """The first floating-point tensor that went in, without the batch; None if there was none."""
    output: NDArray[np.float32]
    """What came out, without the batch."""
    gradient: NDArray[np.float32] | None
    """∂score/∂output; None where the target does not depend on the layer."""
    grid: Grid | None
    """Where in the output the positions are; None if it does not lie on the image."""

    def channels(self) -> NDArray[np.float32] | None:
        """The output as feature maps (K, h, w), if it lies on the image."""
        return None if self.grid is None else self._maps(self.grid, self.output)

    def strongest(self, count: int, by: str) -> list[int]:
        """The indices of at most `count` channels, strongest first: those of the greatest mean
        activation, or `by` = "gradient" those that Grad-CAM weights most, either way."""
        values = self.gradient if by == "gradient" else self.output
        if self.grid is None or values is None:
            return []
        strength = self._maps(self.grid, values).mean(axis=(1, 2))
        if by == "gradient":
            strength = np.abs(strength)
        return [int(index) for index in np.argsort(-strength, kind="stable")[:count]]

    @staticmethod
    def _maps(grid: Grid, values: NDArray[np.float32]) -> NDArray[np.float32]:
        maps: NDArray[np.float32] = grid.apply(torch.from_numpy(values)[None])[0].numpy()
        return maps


def observe(
    model: nn.Module,
    image: Tensor,
    layers: Sequence[str],
    target: Target,
    *,
    reading: Reading = AUTO,
) -> list[Observation]:
    """Look at `layers` while `model` sees `image`, and while `target` is differentiated.

    Args:
        image: float (1, C, H, W), preprocessed, on the model's device and in its dtype.
        reading: how the model's output is read; one more pass tells an activation that is `auto`.

    Raises:
        CamError: if a layer or the target cannot be looked at. The model is left as found.
    """
    located = locate(model, image, [*layers, *target.layers])
    reading, _ = resolve_reading(model, image, reading)
    types = {name: type(module).__name__ for name, module in model.named_modules()}
    with (
        evaluating(model),
        Capture(model, layers, inputs=True) as capture,
        watching(model, target.layers) as seen,
    ):
        raw = model(image)
        looked = looked_at(seen, target.layers, image, located)
        (output,) = outputs_of(raw, looked, size=size_of(image), reading=reading, batch=1)
        (said,) = detached([output])
        score = target.resolve(said).score(output)
        if score.requires_grad:
            capture.backward(score)
        inputs, gradients = capture.inputs, capture.reached
        return [
            Observation(
                layer=layer,
                type=types[layer],
                input=_array(inputs.get(layer)),
                output=_of_one(output),
                gradient=_array(gradients.get(layer)),
                grid=located.grid(layer),
            )
            for layer, output in capture.activations.items()
        ]


def embed(model: nn.Module, image: Tensor, layer: str) -> Tensor:
    """A layer's output for one image (1, C, H, W) as a vector (D,), averaged over its positions:
    what a `SimilarityTarget` compares.

    Raises:
        CamError: if the layer is unknown or returns no tensor.
    """
    located = locate(model, image, [layer])
    with evaluating(model), torch.no_grad(), watching(model, [layer]) as seen:
        model(image)
        return embedding_of(looked_at(seen, [layer], image, located)[layer][0])


def statistics(values: NDArray[np.float32]) -> Statistics:
    return Statistics(
        mean=float(values.mean(dtype=np.float64)),
        std=float(values.std(dtype=np.float64)),
        minimum=float(values.min()),
        maximum=float(values.max()),
        zeros=float((values == 0).mean()),
    )


def _array(tensor: Tensor | None) -> NDArray[np.float32] | None:
    return None if tensor is None else _of_one(tensor)


def _of_one(tensor: Tensor) -> NDArray[np.float32]:
    """Of one image: without the batch, where there is one; windows of it are all there."""
    values: NDArray[np.float32] = tensor.float().cpu().numpy()
    return values[0] if values.ndim and len(values) == 1 else values
