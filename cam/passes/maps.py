"""Compute the maps of a batch from the activations and gradients at its layers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cam.errors import CamError, MethodUnsuited, NoGradientPath, NonFinite
from cam.explanation import Question
from cam.hooks.capture import no_path
from cam.hooks.grids import Grid
from cam.methods import METHODS
from cam.methods.components import LEAST_GAP, Component, projected
from cam.methods.gradient_weights import weighted_sum
from cam.methods.method import load
from cam.passes.composition import ComputedMap, joined
from cam.positions.levels import ancestors, ends


class Signals(Protocol):
    """Activations at the layers after a forward pass, and gradients after a backward pass."""

    @property
    def activations(self) -> dict[str, Tensor]:
        """Outputs of the layers for the batch, by layer name."""

    @property
    def outputs(self) -> dict[str, Tensor]:
        """Outputs of the layers with their autograd graph, where there is one."""

    @property
    def reached(self) -> dict[str, Tensor]:
        """Gradients of the last `backward`, by the names of the layers that it reached."""

    def backward(self, score: Tensor, *, retain_graph: bool = False) -> None:
        """Differentiate the scalar `score` back to the layers."""


def maps_of(
    signals: Signals,
    grids: dict[str, Grid],
    questions: Sequence[Question],
    items: list[int],
    unrecorded: Collection[str],
    *,
    scales: Tensor | None = None,
) -> dict[int, dict[str, ComputedMap | CamError]]:
    """Return the maps of the last backward pass, by item and layer name.

    The items that share a method, its options and a layer are computed in one call. Layers that
    are `unrecorded` have no gradient. `scales` (items,) are the factors by which the scores were
    multiplied before that pass; the gradients are divided by them.
    """
    groups: dict[tuple[str, bool, bool, str], list[int]] = defaultdict(list)
    for item in items:
        asked = questions[item]
        for layer in asked.layers:
            groups[asked.method, asked.signed, asked.smooth == "eigen", layer].append(item)
    activations, reached = signals.activations, signals.reached
    computed: dict[int, dict[str, ComputedMap | CamError]] = {item: {} for item in items}
    for (name, signed, eigen, layer), members in groups.items():
        a = _of(members, grids[layer].apply(activations[layer]))
        g = a.new_zeros(()).expand(a.shape)
        some = [True] * len(members)
        finite = _finite(a)
        if METHODS[name].differentiates:
            if layer not in reached:
                for item in members:
                    computed[item][layer] = no_path([layer], unrecorded)
                continue
            g = _of(members, grids[layer].apply(reached[layer]))
            if scales is not None:
                g = g.float() / _of(members, scales.to(g.device))[:, None, None, None]
            finite &= _finite(g)
            some = g.flatten(1).any(1).tolist()
        if not finite.all():
            a = torch.where(finite[:, None, None, None], a, 0)
            g = torch.where(finite[:, None, None, None], g, 0)
        try:
            maps, ratios = apply(name, a, g, eigen=eigen)
        except CamError as error:
            for item in members:
                computed[item][layer] = error
            continue
        maps = maps if signed else maps.relu()
        finite &= maps.isfinite().flatten(1).all(1)
        problem = NonFinite(f"the gradients or activations at layer {layer!r} are not finite")
        asks = any(questions[item].used for item in members)
        used = _used(a, maps) if asks else [None] * len(members)
        way = f"smooth={questions[members[0]].smooth}" if eigen else name
        told = [_close(way, layer, ratio, a.dtype) for ratio in _listed(ratios, len(members))]
        for item, values, good, warnings, any_there, channels in zip(
            members, maps.cpu().numpy(), finite.tolist(), told, some, used, strict=True
        ):
            computed[item][layer] = (
                ComputedMap(
                    values,
                    warnings=warnings,
                    reached=any_there,
                    placement=grids[layer].placement,
                    used=channels if questions[item].used else None,
                )
                if good
                else problem
            )
    return computed


def apply(
    method: str, activations: Tensor, gradients: Tensor, *, eigen: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Return the maps of a method of one pass, float32 (n, h, w), and their `Component.ratio`.

    The maps are not normalised. They are computed in float32 or better, whatever the model's
    precision. The relu, which comes last unless the caller asks for a `signed` map, is left to the
    caller. With `eigen`, the maps of a method that returns weights are projections on the first
    principal component of the weighted activations, instead of their sum. The ratio, (n,), is None
    where the maps are not projections on a leading component.

    Raises:
        MethodUnsuited: if the method's function returns another shape.
    """
    computed = load(METHODS[method].function)(activations, gradients)
    count, channels, *cells = activations.shape
    if METHODS[method].formula == "map":
        maps, ratio = computed if isinstance(computed, Component) else (computed, None)
        _require(method, maps, [(count, *cells)])
        return maps, ratio
    _require(method, computed, [tuple(activations.shape), (count, channels, 1, 1)])
    if eigen:
        return projected(computed * activations.float())
    return weighted_sum(computed, activations), None


def _require(method: str, computed: Tensor, shapes: list[tuple[int, ...]]) -> None:
    if tuple(computed.shape) not in shapes:
        raise MethodUnsuited(
            f"the function of {method!r} returned {tuple(computed.shape)}; it must return "
            f"{' or '.join(map(str, shapes))}"
        )


def _used(activations: Tensor, maps: Tensor) -> list[NDArray[np.float32] | None]:
    """Return `Explanation.used` of each item.

    Args:
        activations: (n, K, h, w).
        maps: float32 (n, h, w).
    """
    heat = maps.relu().flatten(1)
    sums = heat.sum(1, keepdim=True)
    shares = heat / sums.where(sums > 0, 1.0)
    means = torch.einsum("nkp,np->nk", activations.flatten(2).float(), shares)
    return [
        values if some and np.isfinite(values).all() else None
        for values, some in zip(means.cpu().numpy(), (sums > 0).flatten().tolist(), strict=True)
    ]


def of_levels(
    method: str, computed: dict[str, ComputedMap | CamError], signals: Signals
) -> dict[str, ComputedMap | CamError]:
    """Make one map of the maps of several layers, named after the layers, by `Method.fusion`. Of a
    detector's levels, those that the score reaches are used."""
    described = METHODS[method]
    assert described.fusion is not None, "a method with levels has one"
    stages = described.levels == "stages"
    failed: dict[str, ComputedMap | CamError] = {
        name: map_
        for name, map_ in computed.items()
        if isinstance(map_, CamError) and (stages or not isinstance(map_, NoGradientPath))
    }
    if failed:
        return failed
    maps = {
        name: map_
        for name, map_ in computed.items()
        if isinstance(map_, ComputedMap) and (stages or map_.reached)
    }
    if not maps:
        names = ", ".join(map(repr, computed))
        return {
            " + ".join(computed): NoGradientPath(
                f"the box's score has no gradient at layer {names}: name the levels that the model "
                "makes its boxes from"
            )
        }
    if not stages:
        last = ends(set(maps), ancestors({name: signals.outputs[name] for name in maps}))
        maps = {name: map_ for name, map_ in maps.items() if name in last}
    return {**joined(maps, load(described.fusion), all)}


def _close(way: str, layer: str, ratio: float, dtype: torch.dtype) -> tuple[str, ...]:
    """Return a warning if the two leading components are too close to be told apart."""
    if 1 - ratio >= LEAST_GAP.get(dtype, LEAST_GAP[torch.bfloat16]):
        return ()
    warning = (
        f"the two leading components of layer {layer!r} are almost equally strong (ratio "
        f"{ratio:.3f}), so the map of {way} is decided by rounding; another layer or method is "
        "better"
    )
    return (warning,)


def _listed(ratios: Tensor | None, count: int) -> list[float]:
    return [0.0] * count if ratios is None else ratios.tolist()


def _of(members: list[int], values: Tensor) -> Tensor:
    """Return the rows of the members; without a copy if these are all rows."""
    return values if members == list(range(len(values))) else values[members]


def _finite(values: Tensor) -> Tensor:
    """Return whether all numbers of each row are finite: bool (n,)."""
    # The sums are a cheap first test: one number that is not finite makes its sum not finite. A sum
    # of finite numbers may overflow, so the numbers themselves are tested if a sum is not finite.
    sums = values.sum(dim=(1, 2, 3)).isfinite()
    return sums if sums.all() else values.isfinite().flatten(1).all(1)
