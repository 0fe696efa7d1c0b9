"""Compose an image's answer from its resolved targets, the model's output, and the maps."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from cam.drawing.heatmap import fuse
from cam.drawing.placement import Placement
from cam.errors import CamError
from cam.explanation import ExplainedImage, Explanation, Map, Question
from cam.methods import INPUT, METHODS
from cam.methods.method import load
from cam.outputs.logit_layers import no_evidence
from cam.outputs.output import Output
from cam.progress import Completeness, Passes
from cam.targets import Target, TextTarget

COMPLETE: Final = 0.1
"""Largest relative difference between the sum of attributions and its expected value."""
PARTS: Final = {
    1: "places apart along one side of the image alone",
    2: "halves of the image apart, and no more",
    3: "thirds of the image apart, and no more",
}
"""Number of positions along a map's shorter side → what so coarse a map can tell."""


@dataclass(frozen=True, eq=False)
class ComputedMap:
    """A computed map and its facts, from which `compose` makes an explanation."""

    map: Map
    completeness: Completeness | None = None
    warnings: tuple[str, ...] = ()
    """See `Explanation.warnings`."""
    reached: bool = True
    """Whether the gradient of the score at the layer is not all zero."""
    passes: Passes | None = None
    """See `Explanation.passes`."""
    placement: Placement | None = None
    """See `Explanation.placement`. `map` still has the layer's resolution."""
    used: NDArray[np.float32] | None = None
    """See `Explanation.used`."""

    @property
    def placed(self) -> Map:
        """The map, placed on the model's input."""
        return self.placement.on_input(self.map) if self.placement else self.map


def joined(
    maps: Mapping[str, ComputedMap],
    fusion: Callable[[dict[str, Map]], Map],
    reached: Callable[[Iterable[bool]], bool],
) -> dict[str, ComputedMap]:
    """Join the maps of several layers into one map, under the joined names of the layers. The maps
    are first placed on the model's input if their placements differ.

    Args:
        maps: layer name → map.
        fusion: joins the maps.
        reached: `any` or `all`: at how many of the layers the score must have a gradient.
    """
    values = {name: map_.map for name, map_ in maps.items()}
    placement, *others = {map_.placement for map_ in maps.values()}
    if others:
        values, placement = {name: map_.placed for name, map_ in maps.items()}, None
    one = ComputedMap(
        fusion(values),
        warnings=tuple(warning for map_ in maps.values() for warning in map_.warnings),
        reached=reached(map_.reached for map_ in maps.values()),
        passes=_together([map_.passes for map_ in maps.values() if map_.passes is not None]),
        placement=placement,
    )
    return {" + ".join(maps): one}


def _incomplete(question: Question, completeness: Completeness | None) -> tuple[str, ...]:
    """Return a warning if the attributions do not add up to their expected sum."""
    if completeness is None:
        return ()
    gap = abs(completeness.attributed - completeness.difference)
    if gap <= COMPLETE * max(abs(completeness.difference), abs(completeness.attributed)):
        return ()
    more = METHODS[question.method].budget
    reason = (
        "a larger budget reduces the difference"
        if more
        else "not all of the model is made of rectifiers"
    )
    sums = f"{completeness.attributed:.4g} instead of {completeness.difference:.4g}"
    return (f"the attributions add up to {sums}: {reason}",)


def _blind(question: Question) -> tuple[str, ...]:
    """Return a warning if the method's map hardly depends on the target, or not at all."""
    warning = METHODS[question.method].warning
    return (warning,) if warning else ()


def _partial(passes: Passes | None) -> tuple[str, ...]:
    """Return a warning if fewer passes were made than the method's formula needs."""
    warning = passes and passes.warning
    return (warning,) if warning else ()


def _together(passes: Sequence[Passes]) -> Passes | None:
    """Return the sum of the passes of several layers."""
    if not passes:
        return None
    made, of = sum(count.made for count in passes), sum(count.of for count in passes)
    return Passes(made, of, any(count.stopped for count in passes), passes[0].chosen)


def _coarse(values: Map) -> tuple[str, ...]:
    """Return a warning if a map has too few positions to tell places apart well."""
    height, width = values.shape
    few = min(height, width)
    if few not in PARTS:
        return ()
    return (f"{height} × {width} positions: the map tells {PARTS[few]}; an earlier layer has more",)


def _words(target: Target, output: Output) -> tuple[tuple[str, float], ...]:
    if not isinstance(target, TextTarget):
        return ()
    return tuple(zip(target.words, target.importances(output), strict=True))


def score_of(question: Question, target: Target, output: Output) -> Tensor:
    """Return the score that the question's method explains: the method's own score if it defines
    one, otherwise the target's score.

    Raises:
        CamError: if the method cannot be used with this target.
    """
    own = METHODS[question.method].score
    score: Tensor = load(own)(target, output) if own else target.score(output)
    return score


def compose(
    question: Question,
    targets: list[Target] | CamError,
    output: Output,
    computed: Sequence[Mapping[str, ComputedMap | CamError]],
    own: Collection[str] = (),
    numbers: Sequence[tuple[float, float | None]] | None = None,
) -> ExplainedImage | CamError:
    """Compose an image's answer from its resolved targets, the model's output, and the map of each
    layer for each target. If some of these are errors, return the first one.

    Args:
        computed: for each target, layer name → map.
        own: the layers that return the model's own output: see `logit_layers`.
        numbers: each target's score and probability, if they are already known.
    """
    if isinstance(targets, CamError):
        return targets
    explanations = []
    how = question.fuse
    for turn, (target, at) in enumerate(zip(targets, computed, strict=True)):
        names = [INPUT] if INPUT in at else list(dict.fromkeys(question.layers))
        if METHODS[question.method].levels:
            names = list(at)  # one map of all layers, or errors instead
        good: dict[str, ComputedMap] = {}
        for name in names:
            map_ = at[name]
            if isinstance(map_, CamError):
                return map_
            good[name] = map_
        if how != "none" and len(good) > 1:
            good = joined(good, lambda maps: fuse([*maps.values()], how, question.signed), any)
        if numbers is None:
            score = float(score_of(question, target, output))
            probability = target.probability(output)
        else:
            score, probability = numbers[turn]
        explanations += [
            Explanation(
                target=target,
                score=score,
                probability=probability,
                method=question.method,
                layer=name,
                map=map_.placed,
                placement=map_.placement,
                signed=question.signed,
                completeness=map_.completeness,
                warnings=(
                    *_blind(question),
                    *map_.warnings,
                    *(_coarse(map_.map) if name != INPUT else ()),
                    *(no_evidence(layer) for layer in name.split(" + ") if layer in own),
                    *_incomplete(question, map_.completeness),
                    *_partial(map_.passes),
                    *(target.doubts if isinstance(target, TextTarget) else ()),
                ),
                reached=map_.reached,
                turn=turn,
                passes=map_.passes,
                used=map_.used,
                words=_words(target, output),
            )
            for name, map_ in good.items()
        ]
    return ExplainedImage(output, tuple(explanations))
