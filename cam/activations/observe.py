"""Observe layers during a pass: their inputs, outputs and gradients."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from cam.activations.observations import Observation
from cam.hooks.capture import Capture
from cam.hooks.grids import Grid
from cam.hooks.inference import evaluating
from cam.outputs.meaning import resolve_reading
from cam.outputs.outputs import forward
from cam.outputs.reading import AUTO, Reading
from cam.positions.locate import locate
from cam.targets import Target


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
    with evaluating(model), Capture(model, layers, inputs=True) as capture:
        (output,) = forward(model, image, reading, layers=target.layers, located=located)
        said = output.detached()
        score = target.resolve(said).score(output)
        if score.requires_grad:
            capture.backward(score)
        inputs, gradients = capture.inputs, capture.reached
        return [
            _observed(
                layer,
                types[layer],
                inputs.get(layer),
                output,
                gradients.get(layer),
                located.grid(layer),
            )
            for layer, output in capture.activations.items()
        ]


def _observed(
    layer: str,
    type_: str,
    given: Tensor | None,
    output: Tensor,
    gradient: Tensor | None,
    grid: Grid | None,
) -> Observation:
    shown = _of_one(output)
    maps, weights = None, None
    if grid is not None:
        # Feature maps that the output holds as they are share its memory.
        plain = grid.kind == "channels first" and grid.placement is None
        maps = shown if plain else _of_one(grid.apply(output))
        if gradient is not None:
            weights = _of_one(grid.apply(gradient)).mean(axis=(1, 2))
    return Observation(
        layer=layer,
        type=type_,
        input=_array(given),
        output=shown,
        gradient=_array(gradient),
        maps=maps,
        weights=weights,
    )


def _array(tensor: Tensor | None) -> NDArray[np.float32] | None:
    return None if tensor is None else _of_one(tensor)


def _of_one(tensor: Tensor) -> NDArray[np.float32]:
    """Return a tensor of one image as an array, without the batch axis if its length is 1.

    A longer first axis counts windows of the image, and all of them are kept.
    """
    values: NDArray[np.float32] = tensor.float().cpu().numpy()
    return values[0] if values.ndim and len(values) == 1 else values
