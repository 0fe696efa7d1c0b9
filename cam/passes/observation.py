"""Observe layers during a pass: their inputs, outputs and gradients, and statistics of these."""

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
    """Statistics of all numbers in a tensor."""

    mean: float
    std: float
    """Population standard deviation."""
    minimum: float
    maximum: float
    zeros: float
    """Share of exact zeros, 0 … 1; behind a ReLU this is the share of dead units."""


@dataclass(frozen=True, eq=False)
class Observation:
    """One layer in one forward pass of one image, and in the backward pass of one target."""

    layer: str
    type: str
    """The module's class name."""
    input: NDArray[np.float32] | None
    """The first floating-point tensor among the layer's inputs, without the batch axis; None if
    there is none."""
    output: NDArray[np.float32]
    """The layer's output, without the batch axis."""
    gradient: NDArray[np.float32] | None
    """∂score/∂output; None if the target does not depend on the layer."""
    grid: Grid | None
    """Where the positions are in the output; None if the output does not lie on the image."""

    def channels(self) -> NDArray[np.float32] | None:
        """Return the output as feature maps (K, h, w); None if it does not lie on the image."""
        return None if self.grid is None else self._maps(self.grid, self.output)

    def strongest(self, count: int, by: str) -> list[int]:
        """Return the indices of at most `count` channels, strongest first.

        The strength of a channel is its mean activation; if `by` is "gradient", it is the absolute
        value of its Grad-CAM weight. The list is empty if the output does not lie on the image or
        there is no gradient.
        """
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
    """Record `layers` in a forward pass of `image` and in the backward pass of `target`.

    The model is left as found.

    Args:
        image: float (1, C, H, W), preprocessed, on the model's device and in its dtype.
        reading: how the model's output is read. An `auto` activation takes one more pass.

    Raises:
        CamError: if a layer or the target cannot be used.
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
    """Return a layer's output for one image (1, C, H, W) as a vector (D,), averaged over positions,
    for a `SimilarityTarget` to compare.

    Raises:
        CamError: if the layer is unknown or returns no tensor.
    """
    located = locate(model, image, [layer])
    with evaluating(model), torch.no_grad(), watching(model, [layer]) as seen:
        model(image)
        return embedding_of(looked_at(seen, [layer], image, located)[layer][0])


def statistics(values: NDArray[np.float32]) -> Statistics:
    """Return statistics of all numbers in an array."""
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
    """Return a tensor of one image as an array, without the batch axis if its length is 1.

    A longer first axis counts windows of the image, and all of them are kept.
    """
    values: NDArray[np.float32] = tensor.float().cpu().numpy()
    return values[0] if values.ndim and len(values) == 1 else values
