"""What makes a cluster suspect: criteria with formulas and thresholds.

A cluster of maps proves nothing by itself. Clean photos make clusters, too: objects in the lower
left corner, padding at the right edge, crops of one photo. So a cluster is suspect only if four
things come together:

- it is of a fair size: at least `LEAST_MEMBERS` maps and at most half of the class;
- it is separate: its conductance in the graph of similar maps is at most `SEPARATE`;
- its place is its own: at the places where it is hot, other maps have at most `OWN` of its heat;
- and there is evidence of one cause at one place. Either the photos show the same thing under the
  heat and differ elsewhere (`SAME`, `DIFFERENT`). Or, as photos may be missing and a watermark may
  be translucent, the maps alone are extraordinary: they have the same pattern there, much more
  alike than those of the class's other clusters (`STEADY`, `STEADIER`), at the border
  (`AT_BORDER`), and are nearly cut off from other maps (`CUT_OFF`). An object that lies here and
  there by a few pixels makes patterns that differ. Maps of photos that are known to be copies or
  crops of one photo are no evidence.

Of a cluster whose photos show the same thing, members whose photos lack it are left out.

The thresholds were set on Grad-CAM's maps of clean photos and of photos with a planted watermark
(seeds 0 to 5 of `python -m bench.clusters`), and tried on others (seeds 6 to 13). In the
clusters that were found the pixels' spread is 0.00, and in others 0.5 or more, except among crops
of one photo; the unsteadiness is 0.02 to 0.08, and of clean clusters that meet the first three
conditions 0.05 or more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from cam.clusters.appearance import Appearance, hot_place
from cam.drawing.heatmap import Float, border

Reason = Literal["isolated", "own place", "same pattern", "same thing", "one colour", "border"]

LEAST_MEMBERS: Final = 8
ISOLATED: Final = 0.1
SEPARATE: Final = 0.2
"""Largest conductance at which photos that show the same thing are evidence."""
OWN: Final = 1 / 3
CUT_OFF: Final = 0.05
STEADY: Final = 0.08
STEADIER: Final = 0.5
"""Largest unsteadiness, relative to the median of the class's clusters in the finest division."""
LEAST_HOT: Final = 6
"""Least number of hot positions of which a pattern can be compared: with one position, every
pattern is the same."""
SAME: Final = 1 / 3
"""Largest spread of the pixels under the heat, relative to the spread of the others."""
DIFFERENT: Final = 0.4
"""Least spread of the pixels elsewhere, so that the photos are not copies of one photo."""
ONE_COLOUR: Final = 1 / 3
AT_BORDER: Final = 1.4
"""Least share of the heat near the border, relative to the class's other maps."""

SENTENCES: Final[dict[Reason, str]] = {
    "isolated": "few other maps of the class resemble these",
    "own place": "the heat lies where other maps of the class have little",
    "same pattern": "the heat has one pattern at one fixed place",
    "same thing": "the photos show the same thing under the heat and differ elsewhere",
    "one colour": "the heat lies on one colour",
    "border": "the heat lies at the border more than in other maps of the class",
}
"""Reason → sentence about a cluster."""


@dataclass(frozen=True)
class Evidence:
    """Measurements of a cluster, from which its suspicion follows."""

    size: int
    share: float
    """Its maps as a share of the class's, above 0, at most 1."""
    conductance: float
    """Share of its members' affinity that leads to other maps, 0 … 1."""
    foreign: float
    """Mean heat of other maps at its hot positions, relative to its own mean heat there: 0 if
    others have none, about 1 if its place is everybody's."""
    hot: int
    """Number of its hot positions, at least 1."""
    unsteadiness: float
    """How much its maps' patterns differ there, at least 0: see `unsteadiness`."""
    relative_unsteadiness: float
    """The same, divided by the median of the class's clusters in the finest division; inf if there
    is no such median."""
    border: float
    """Mean share of its maps' heat near the border, relative to other maps'."""
    appearance: Appearance | None
    """None without photos, or if other conditions are not met, so that no photo was read."""

    @property
    def worth_a_look(self) -> bool:
        """Whether the maps meet the conditions that need no evidence of the cause."""
        return (
            self.size >= LEAST_MEMBERS
            and self.share <= 0.5
            and self.conductance <= SEPARATE
            and self.foreign <= OWN
        )

    @property
    def same_pattern(self) -> bool:
        return (
            self.hot >= LEAST_HOT
            and self.unsteadiness <= STEADY
            and self.relative_unsteadiness <= STEADIER
        )

    @property
    def same_thing(self) -> bool:
        seen = self.appearance
        return seen is not None and not self.copies and seen.inside <= SAME * seen.outside

    @property
    def copies(self) -> bool:
        """Whether the photos are known to be copies or crops of one photo."""
        return self.appearance is not None and self.appearance.outside < DIFFERENT

    @property
    def at_border(self) -> bool:
        return self.border >= AT_BORDER

    @property
    def suspect(self) -> bool:
        extraordinary = self.same_pattern and self.at_border and self.conductance <= CUT_OFF
        return self.worth_a_look and (self.same_thing or (extraordinary and not self.copies))

    @property
    def suspicion(self) -> float:
        """A number to sort clusters by, 0 … 1: (1 − conductance) (1 − foreign) times the stronger
        evidence of one cause: 1 − unsteadiness, or 1 − inside / outside. Half of it unless the
        cluster is suspect, so that suspects come first."""
        steady = max(1 - self.unsteadiness, 0.0) if self.hot >= LEAST_HOT else 0.0
        seen, same = self.appearance, 0.0
        if seen is not None and not self.copies:
            same = max(1 - seen.inside / seen.outside, 0.0)
        own = max(1 - self.foreign, 0.0)
        found = (1 - self.conductance) * own * max(steady, same)
        return (1 + found) / 2 if self.suspect else found / 2

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """What is true of the cluster. Reasons alone make no suspect; without other maps to
        compare it with there are none."""
        if self.share == 1:
            return ()
        seen = self.appearance
        holds: dict[Reason, bool] = {
            "same thing": self.same_thing,
            "same pattern": self.same_pattern,
            "own place": self.foreign <= OWN,
            "border": self.at_border,
            "one colour": seen is not None and not self.copies and seen.colour <= ONE_COLOUR,
            "isolated": self.conductance <= ISOLATED,
        }
        return tuple(reason for reason, true in holds.items() if true)


def foreign_heat(shares: Float, members: NDArray[np.bool_], hot: NDArray[np.bool_]) -> float:
    """Return the mean heat of other maps at the hot positions, relative to the members'.

    Args:
        shares: each map divided by its sum, float32 (m, h, w).
        members: bool (m,).
        hot: bool (h, w), see `hot_place`.

    Returns:
        At least 0; 1 if all maps are members.
    """
    if members.all():
        return 1.0
    there = shares[:, hot].sum(1, dtype=np.float64)
    return float(there[~members].mean() / there[members].mean())


def unsteadiness(maps: Float) -> float:
    """Return how much the patterns of maps differ at their common hot positions.

    Each map's values at the hot positions (`hot_place`) are divided by their mean. The result is
    the mean over the positions of these values' median absolute deviation, divided by the mean of
    their medians: 0 for equal patterns, whatever their strength.

    Args:
        maps: float32 (m, h, w), 0 … 1.

    Returns:
        At least 0; inf if fewer than half of the maps have heat there.
    """
    values = maps[:, hot_place(maps)].astype(np.float64)
    means = values.mean(1, keepdims=True)
    patterns = np.divide(values, means, out=np.zeros_like(values), where=means > 0)
    middle = np.median(patterns, axis=0)
    if not middle.any():
        return math.inf
    return float(np.median(np.abs(patterns - middle), axis=0).mean() / middle.mean())


def border_shares(maps: Float) -> NDArray[np.float64]:
    """Return the share of each map's heat near its border, float64 (m,): see
    `cam.drawing.heatmap.border`."""
    return np.array([border(each) for each in maps])


def relative(value: float, values: Sequence[float]) -> float:
    """Return an unsteadiness divided by the median of all clusters'; inf with fewer than three
    clusters, or if the median is 0."""
    middle = float(np.median(values)) if len(values) > 2 else 0.0
    return value / middle if middle else math.inf
