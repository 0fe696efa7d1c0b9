"""Compute the maps of a batch from the activations and gradients at its layers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from cam.drawing.placement import Placement
from cam.errors import CamError, MethodUnsuited, NoGradientPath, NonFinite
from cam.explanation import Question
from cam.hooks.capture import no_path
from cam.hooks.grids import Grid
from cam.methods import METHODS
from cam.methods.components import LEAST_GAP, Component, projected
from cam.methods.gradient_weights import weighted_sum
from cam.methods.method import load
from cam.passes.composition import ComputedMap, joined
from cam.positions.flow import ancestors, ends


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


@dataclass(frozen=True, eq=False)
class Maps:
    """The maps of some items by one method at one layer, on the model's device, or the error that
    all of them have."""

    layer: str
    items: list[int]
    values: Tensor | None = None
    """The maps, float32 (n, h, w)."""
    finite: Tensor | None = None
    """Whether a map and its gradients are finite, bool (n,)."""
    reached: Tensor | None = None
    """Whether the score has a gradient there that is not all zero, bool (n,)."""
    ratios: Tensor | None = None
    """`Component.ratio`, (n,), of maps that are components."""
    used: Tensor | None = None
    """`Explanation.used`, float32 (n, K), if it is asked for."""
    way: str = ""
    """The method, or the option by which it was computed, for a warning."""
    dtype: torch.dtype = torch.float32
    """The layer's dtype."""
    placement: Placement | None = None
    error: CamError | None = None

    @property
    def tensors(self) -> list[Tensor]:
        """What an answer is made of, to be copied to the host."""
        every = (self.values, self.finite, self.reached, self.ratios, self.used)
        return [each for each in every if each is not None]


class MapRows:
    """The maps of `Maps` on the host, by item: the next ones of the tensors that were copied."""

    def __init__(self, maps: Maps, copied: Iterator[Tensor]) -> None:
        self._maps, self.layer = maps, maps.layer
        self.places = {item: place for place, item in enumerate(maps.items)}
        """Item → its position among the maps."""
        if maps.error:
            return
        self._values = next(copied).numpy()
        finite, reached = next(copied).tolist(), next(copied).tolist()
        ratios = [0.0] * len(finite) if maps.ratios is None else next(copied).tolist()
        self._facts = list(zip(finite, reached, ratios, strict=True))
        self._used = None if maps.used is None else next(copied).numpy()

    @property
    def unreached(self) -> list[int]:
        """The items whose score has no gradient at the layer."""
        if self._maps.error:
            return []
        facts = zip(self._maps.items, self._facts, strict=True)
        return [item for item, (_, reached, _) in facts if not reached]

    def __getitem__(self, item: int) -> ComputedMap | CamError:
        maps = self._maps
        if maps.error:
            return maps.error
        place = self.places[item]
        finite, reached, ratio = self._facts[place]
        if not finite:
            return NonFinite(f"the gradients or activations at layer {maps.layer!r} are not finite")
        used = None if self._used is None else self._used[place]
        if used is not None and not (used.any() and np.isfinite(used).all()):
            used = None
        return ComputedMap(
            self._values[place],
            warnings=_close(maps.way, maps.layer, ratio, maps.dtype),
            reached=reached,
            placement=maps.placement,
            used=used,
        )


def maps_of(
    signals: Signals,
    grids: dict[str, Grid],
    questions: Sequence[Question],
    items: list[int],
    unrecorded: Collection[str],
    *,
    scales: Tensor | None = None,
) -> list[Maps]:
    """Return the maps of the last backward pass.

    The items that share a method, its options and a layer are computed in one call. Layers that
    are `unrecorded` have no gradient. `scales` (items,) are the factors by which the scores were
    multiplied before that pass; the gradients are divided by them.
    """
    groups: dict[tuple[str, bool, bool, bool, str], list[int]] = defaultdict(list)
    for item in items:
        asked = questions[item]
        way = asked.method, asked.signed, asked.smooth == "eigen", asked.used
        for layer in asked.layers:
            members = groups[*way, layer]
            if not members or members[-1] != item:  # a layer may be named twice
                members.append(item)
    activations, reached = signals.activations, signals.reached
    computed = []
    for (name, signed, eigen, asks, layer), members in groups.items():
        method = METHODS[name]
        differentiates = method.differentiates
        if differentiates and layer not in reached:
            computed.append(Maps(layer, members, error=no_path([layer], unrecorded)))
            continue
        a = _of(members, grids[layer].apply(activations[layer]))
        extremes: list[Tensor] = []
        if not differentiates:
            g = a.new_zeros(()).expand(a.shape)
            some = a.new_ones(len(members), dtype=torch.bool)
        else:
            g = _of(members, grids[layer].apply(reached[layer]))
            if scales is not None:
                g = g.float() / _of(members, scales.to(g.device))[:, None, None, None]
            extremes += _extremes(g)
            some = torch.stack(extremes).any(0)
        if eigen or method.formula == "map":
            # A decomposition of a batch fails for all rows if one is not finite. A weighted sum is
            # not finite where an activation is not.
            extremes += _extremes(a)
            usable = _finite(extremes)[:, None, None, None]
            a, g = (torch.where(usable, each, 0) for each in (a, g))
        try:
            maps, ratios = apply(name, a, g, eigen=eigen)
        except CamError as error:
            computed.append(Maps(layer, members, error=error))
            continue
        finite = _finite([*extremes, *_extremes(maps)])
        used = None
        if asks:
            used = torch.einsum("nkp,nkp->nk", a.flatten(2).float(), g.flatten(2).float())
        computed.append(
            Maps(
                layer,
                members,
                maps if signed else maps.relu(),
                finite,
                some,
                ratios,
                used,
                way=f"smooth={questions[members[0]].smooth}" if eigen else name,
                dtype=a.dtype,
                placement=grids[layer].placement,
            )
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


def of_levels(
    method: str, computed: Mapping[str, ComputedMap | CamError], signals: Signals
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


def _of(members: list[int], values: Tensor) -> Tensor:
    """Return the rows of the members; without a copy if these are all rows."""
    return values if members == list(range(len(values))) else values[members]


def _extremes(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the lowest and the highest number of each row (n, …); NaN where one is NaN."""
    if 0 in values.stride():
        # A gradient that is the same at all positions is one number, repeated by a stride of 0.
        values = values[tuple(slice(0, 1 if stride == 0 else None) for stride in values.stride())]
    axes = tuple(range(1, values.ndim))
    return values.amin(dim=axes), values.amax(dim=axes)


def _finite(extremes: Sequence[Tensor]) -> Tensor:
    """Return whether all numbers of each row are finite: bool (n,)."""
    return torch.stack([each.float() for each in extremes]).isfinite().all(0)
