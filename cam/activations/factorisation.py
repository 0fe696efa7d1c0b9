"""Deep feature factorisation: split a layer's activations into a few concepts with one map each."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cam.activations.observations import Concept
from cam.counts import counted
from cam.errors import MethodUnsuited
from cam.explanation import Map
from cam.hooks.capture import Capture
from cam.hooks.grids import Grid
from cam.hooks.inference import evaluating
from cam.hooks.replay import Replay
from cam.outputs.meaning import resolve_reading
from cam.outputs.output import Output
from cam.outputs.outputs import forward, outputs_of, size_of
from cam.outputs.reading import AUTO, Reading
from cam.positions.locate import locate

ITERATIONS = 200


def factorise(
    model: nn.Module, image: Tensor, layer: str, count: int, *, reading: Reading = AUTO
) -> list[Concept]:
    """Factorise a layer's activations V (K, h·w) ≈ W H into `count` concepts by non-negative
    matrix factorisation, largest share first.

    Collins, Achanta & Süsstrunk, "Deep Feature Factorization for Concept Discovery", ECCV 2018.
    A channel of V with values below 0 is first shifted up by its minimum, as in pytorch-grad-cam.
    A concept's logits are computed with its column of W (shifted down again) at every position of
    the layer. Lee and Seung's multiplicative updates start from the singular vectors (Boutsidis &
    Gallopoulos 2008), so the same image always has the same concepts.

    Args:
        image: float (1, C, H, W), preprocessed, on the model's device and in its dtype.
        reading: how the model's output is read. An `auto` activation takes one more pass.

    Raises:
        CamError: if the layer cannot be used, or has fewer channels or positions than `count`.
    """
    located = locate(model, image, [layer])
    reading, _ = resolve_reading(model, image, reading)
    with evaluating(model), Capture(model, [layer]) as capture:
        (said,) = forward(model, image, reading)
        output = capture.activations[layer]
    grid = located.grids({layer: output}, image)[layer]
    features = grid.apply(output)[0].double().cpu()
    channels, height, width = features.shape
    if count > min(channels, height * width):
        raise MethodUnsuited(
            f"layer {layer!r} has {counted(channels, 'channel')} at "
            f"{counted(height * width, 'position')}: at most "
            f"{counted(min(channels, height * width), 'concept')}, not {count}"
        )
    flat = features.flatten(1)
    offset = flat.amin(1, keepdim=True).clamp(max=0)
    w, h = _factors(flat - offset, count)
    sizes = w.sum(0) * h.sum(1)
    order = sizes.argsort(descending=True)
    alone = [Output()] * count
    if said.logits is not None:
        replay = Replay(model, layer, image)
        # Each concept is shown at the greatest strength that it has in this image.
        columns = (w * h.amax(1) + offset).T[order].to(output)
        changed = replay.activation.repeat(count, *[1] * (output.ndim - 1))
        changed = grid.put(changed, columns[:, :, None, None].expand(-1, -1, height, width))
        with torch.no_grad():
            raw = replay.output(changed)
            outputs = outputs_of(raw, size=size_of(image), reading=reading, batch=count)
            alone = list(outputs.told)
    return [
        Concept(
            map=_placed(h[index].reshape(height, width).float().numpy(), grid),
            share=float(sizes[index] / sizes.sum().clamp(min=1e-12)),
            logits=_array(alone[turn].logits),
            probabilities=_array(alone[turn].probabilities),
        )
        for turn, index in enumerate(order.tolist())
    ]


def _placed(values: Map, grid: Grid) -> Map:
    return grid.placement.on_input(values) if grid.placement else values


def _array(values: Tensor | None) -> NDArray[np.float32] | None:
    return None if values is None else values.numpy()


def _factors(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return W (K, count) and H (count, n), both ≥ 0, with W H ≈ `values` (K, n) ≥ 0."""
    left, scale, right = torch.linalg.svd(values, full_matrices=False)
    w, h = [left[:, 0].abs() * scale[0].sqrt()], [right[0].abs() * scale[0].sqrt()]
    for index in range(1, count):
        u, v = left[:, index], right[index]
        sides = [(u.clamp(min=0), v.clamp(min=0)), ((-u).clamp(min=0), (-v).clamp(min=0))]
        best = max(sides, key=lambda side: float(side[0].norm() * side[1].norm()))
        size = (scale[index] * best[0].norm() * best[1].norm()).sqrt()
        w.append(size * best[0] / best[0].norm().clamp(min=1e-12))
        h.append(size * best[1] / best[1].norm().clamp(min=1e-12))
    floor = float(values.mean()) * 1e-2 + 1e-12  # the updates multiply, so a zero would stay
    lefts, rights = torch.stack(w, 1) + floor, torch.stack(h) + floor
    for _ in range(ITERATIONS):
        rights *= lefts.T @ values / (lefts.T @ lefts @ rights).clamp(min=1e-12)
        lefts *= values @ rights.T / (lefts @ (rights @ rights.T)).clamp(min=1e-12)
    return lefts, rights
