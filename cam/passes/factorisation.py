"""Deep feature factorisation: a layer's activations as a few concepts, each with its map."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cam.errors import MethodUnsuited
from cam.hooks.capture import Capture
from cam.hooks.inference import evaluating
from cam.hooks.replay import Replay
from cam.outputs.output import Output, detached, outputs_of, resolve_reading, size_of
from cam.outputs.reading import AUTO, Reading
from cam.positions.locate import locate

ITERATIONS = 200


@dataclass(frozen=True, eq=False)
class Concept:
    """One pattern that a layer repeats over an image."""

    map: NDArray[np.float32]
    """float32 (h, w), ≥ 0: how much of it is where."""
    share: float
    """Of the activations' sum, 0 … 1."""
    logits: NDArray[np.float32] | None
    """What the model says of the concept alone, at every position: float32 (C,); None if it is no
    classifier."""
    probabilities: NDArray[np.float32] | None = None
    """The probabilities of the logits, by the model's activation."""


def factorise(
    model: nn.Module, image: Tensor, layer: str, count: int, *, reading: Reading = AUTO
) -> list[Concept]:
    """Factorise a layer's activations V (K, h·w) ≈ W H into `count` concepts by non-negative
    matrix factorisation, largest share first.

    Collins, Achanta & Süsstrunk, "Deep Feature Factorization for Concept Discovery", ECCV 2018.
    Where V has values below 0 each channel is lifted by its minimum first, as in pytorch-grad-cam.
    A concept's logits are those of an image that has its column of W (lowered again) everywhere.
    Lee and Seung's multiplicative updates start from the singular vectors (Boutsidis & Gallopoulos
    2008), so the same image gets the same concepts.

    Args:
        image: float (1, C, H, W), preprocessed, on the model's device and in its dtype.
        reading: how the model's output is read; one more pass tells an activation that is `auto`.

    Raises:
        CamError: if the layer cannot be used, or has fewer channels or positions than `count`.
    """
    located = locate(model, image, [layer])
    reading, _ = resolve_reading(model, image, reading)
    with evaluating(model), Capture(model, [layer]) as capture:
        (said,) = outputs_of(model(image), size=size_of(image), reading=reading, batch=1)
        output = capture.activations[layer]
    grid = located.grids({layer: output}, image)[layer]
    features = grid.apply(output)[0].double().cpu()
    channels, height, width = features.shape
    if count > min(channels, height * width):
        raise MethodUnsuited(
            f"layer {layer!r} has {channels} channels at {height * width} positions: at most "
            f"{min(channels, height * width)} concepts, not {count}"
        )
    flat = features.flatten(1)
    offset = flat.amin(1, keepdim=True).clamp(max=0)
    w, h = _factors(flat - offset, count)
    sizes = w.sum(0) * h.sum(1)
    order = sizes.argsort(descending=True)
    alone = [Output()] * count
    if said.logits is not None:
        replay = Replay(model, layer, image)
        columns = (w * h.amax(1) + offset).T[order].to(output)  # as strong as it ever is
        changed = replay.activation.repeat(count, *[1] * (output.ndim - 1))
        changed = grid.put(changed, columns[:, :, None, None].expand(-1, -1, height, width))
        with torch.no_grad():
            raw = replay.output(changed)
            alone = detached(outputs_of(raw, size=size_of(image), reading=reading, batch=count))
    return [
        Concept(
            map=h[index].reshape(height, width).float().numpy(),
            share=float(sizes[index] / sizes.sum().clamp(min=1e-12)),
            logits=_array(alone[turn].logits),
            probabilities=_array(alone[turn].probabilities),
        )
        for turn, index in enumerate(order.tolist())
    ]


def _array(values: Tensor | None) -> NDArray[np.float32] | None:
    return None if values is None else values.numpy()


def _factors(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """W (K, count), H (count, n), both ≥ 0, with W H ≈ `values` (K, n) ≥ 0."""
    left, scale, right = torch.linalg.svd(values, full_matrices=False)
    w, h = [left[:, 0].abs() * scale[0].sqrt()], [right[0].abs() * scale[0].sqrt()]
    for index in range(1, count):
        u, v = left[:, index], right[index]
        sides = [(u.clamp(min=0), v.clamp(min=0)), ((-u).clamp(min=0), (-v).clamp(min=0))]
        best = max(sides, key=lambda side: float(side[0].norm() * side[1].norm()))
        size = (scale[index] * best[0].norm() * best[1].norm()).sqrt()
        w.append(size * best[0] / best[0].norm().clamp(min=1e-12))
        h.append(size * best[1] / best[1].norm().clamp(min=1e-12))
    floor = float(values.mean()) * 1e-2 + 1e-12  # zero would stay zero
    lefts, rights = torch.stack(w, 1) + floor, torch.stack(h) + floor
    for _ in range(ITERATIONS):
        rights *= lefts.T @ values / (lefts.T @ lefts @ rights).clamp(min=1e-12)
        lefts *= values @ rights.T / (lefts @ (rights @ rights.T)).clamp(min=1e-12)
    return lefts, rights
