"""Where the heat lies: inside a region that is known to show the object, or outside."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cam.drawing.placement import Float
from cam.errors import InvalidOption
from cam.evaluation.scorer import Forwards, Judged, Scorer

Value = tuple[float | None, dict[str, float]]


def energy(scorer: Scorer, judged: Judged) -> Forwards[Value]:
    """Return the share of the heat above 0 that lies in the region, 0 … 1; None if there is none.

    Wang et al., "Score-CAM", CVPR workshops 2020, section 4.3.
    """
    yield 0
    region = scorer.options.region
    assert region is not None
    return energy_in(judged.values, region), {"region_share": float(region.mean())}


def pointing(scorer: Scorer, judged: Judged) -> Forwards[Value]:
    """Return 1 if the hottest pixel lies in the region, else 0. If several pixels are the hottest,
    it is the share of them that lies there."""
    yield 0
    region = scorer.options.region
    assert region is not None
    return pointing_in(judged.values, region), {"region_share": float(region.mean())}


def energy_in(values: Float, region: NDArray[np.bool_]) -> float | None:
    """Return the share of a map's heat (h, w) in a region (h, w): see `energy`."""
    heat = values.clip(min=0).astype(np.float64)
    total = float(heat.sum())
    return float(heat[region].sum()) / total if total else None


def pointing_in(values: Float, region: NDArray[np.bool_]) -> float:
    """Return whether the hottest pixel of a map (h, w) lies in a region (h, w): see `pointing`."""
    return float(region[values == values.max()].mean())


def completeness(scorer: Scorer, judged: Judged) -> Forwards[Value]:
    """Return the gap between the sum of the attributions and the sum that they should have, as a
    share of the latter.

    Raises:
        InvalidOption: if the method promises no sum.
    """
    yield 0
    sums = judged.completeness
    if sums is None:
        raise InvalidOption("the attributions of this method are not meant to add up to a score")
    gap = abs(sums.attributed - sums.difference)
    value = gap / abs(sums.difference) if sums.difference else None
    return value, {"attributed": sums.attributed, "difference": sums.difference}
