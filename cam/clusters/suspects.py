"""What makes a cluster suspect: criteria with formulas and thresholds.

A cluster of maps proves nothing by itself. Clean photos make clusters, too: objects in the lower
left corner, padding at the right edge, crops of one photo. So a cluster is suspect only if four
things come together:

- it is of a fair size: at least `LEAST_MEMBERS` maps and at most half of the class;
- it is separate: its conductance in the graph of similar maps is at most `SEPARATE`;
- its place is its own: at the places where it is hot, other maps have at most `OWN` of its heat;
- and there is evidence that one cause lies there, which is not what other maps lie on. There are
  four kinds, each of which is enough:

  - the photos show the same thing under the heat and differ elsewhere (`Appearance.same_thing`);
  - the photos differ from others at this place, more than elsewhere, and what lies under their heat
    is not what lies under the heat of the others (`Appearance.stands_out`): a translucent mark,
    artefacts of a compression, digits that vary;
  - the model used something else (`APART`): Fisher's discriminant tells the members from other
    photos by the channels on which their maps lie (`Explanation.used`), as Anders et al. rank
    clusters ("Finding and removing Clever Hans", Information Fusion 2022). Objects at one place
    are not told from the same objects at other places. The photos must be at hand, and as others
    elsewhere (`Appearance.another_kind`), as kinds of photos are told from each other, too;
  - the maps alone, as photos may be missing: they are separate and of one pattern at the same time
    (`REGULAR`). Objects make separate clusters whose patterns differ, or small parts of these with
    patterns that are alike but have neighbours.

A cluster of photos in which the model used similar channels needs no place of its own, if it is far
apart (`FAR_APART`): this finds marks at varying places.

Photos that are known to be copies or crops of one photo are no evidence, and neither are their
maps.

Of a cluster whose photos show the same thing, members whose photos lack it are left out.

The thresholds were set on 15 kinds of marks (seed 0 of `bench/shortcuts.py`) and tried on other
seeds and three other kinds: `python -m bench.clusters --only shortcuts` and the figures in
`docs/batch-and-jobs.md`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from cam.clusters.appearance import Appearance, hot_place
from cam.drawing.heatmap import Float, border

Reason = Literal[
    "isolated",
    "own place",
    "same pattern",
    "same thing",
    "stands out",
    "other use",
    "one colour",
    "border",
]

LEAST_MEMBERS: Final = 8
ISOLATED: Final = 0.1
SEPARATE: Final = 0.2
"""Largest conductance at which photos that show the same thing are evidence."""
OWN: Final = 0.6
APART: Final = 3.0
"""Least separation of what the model used in a cluster of similar maps, in standard deviations."""
FAR_APART: Final = 6.0
"""The same of a cluster of similar uses, wherever the maps have their heat. The clusters are chosen
for their separation, and kinds of objects have up to 5.4."""
REGULAR: Final = 0.0015
"""Largest conductance times unsteadiness of maps that are evidence without photos."""
LEAST_HOT: Final = 3
"""Least number of hot positions of which a pattern can be compared: with one position, every
pattern is the same."""
ONE_COLOUR: Final = 1 / 3
AT_BORDER: Final = 1.4
"""Least share of the heat near the border, relative to the class's other maps."""

SENTENCES: Final[dict[Reason, str]] = {
    "isolated": "few other maps of the class resemble these",
    "own place": "the heat lies where other maps of the class have little",
    "same pattern": "the heat has one pattern at one fixed place",
    "same thing": "the photos show the same thing under the heat and differ elsewhere",
    "stands out": "the photos show something there that other photos of the class lack",
    "other use": "the model used something there that it uses in no other photo of the class",
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
    border: float
    """Mean share of its maps' heat near the border, relative to other maps'."""
    appearance: Appearance | None
    """None without photos, or if other conditions are not met, so that no photo was read."""
    apart: float | None = None
    """How far what the model used is from what it used in other photos of the class:
    `discriminant.separation`. None if it is not known."""
    by_use: bool = False
    """Whether the cluster is one of similar uses, and not of similar maps."""

    @property
    def worth_a_look(self) -> bool:
        """Whether the maps meet the conditions that need no evidence of the cause."""
        return (
            self.size >= LEAST_MEMBERS
            and self.share <= 0.5
            and self.conductance <= SEPARATE
            and (self.foreign <= OWN or self._far_apart)
        )

    @property
    def _far_apart(self) -> bool:
        return self.apart is not None and self.apart >= FAR_APART

    @property
    def same_pattern(self) -> bool:
        """Whether the maps are separate and of one pattern, and not of another kind of photo."""
        if self.appearance is not None and self.appearance.another_kind:
            return False
        return self.hot >= LEAST_HOT and self.conductance * self.unsteadiness <= REGULAR

    @property
    def same_thing(self) -> bool:
        return self.appearance is not None and self.appearance.same_thing

    @property
    def stands_out(self) -> bool:
        return self.appearance is not None and self.appearance.stands_out

    @property
    def other_use(self) -> bool:
        seen = self.appearance
        if self.apart is None or seen is None or seen.another_kind or seen.copies:
            return False
        return self.apart >= (FAR_APART if self.by_use else APART)

    @property
    def copies(self) -> bool:
        """Whether the photos are known to be copies or crops of one photo."""
        return self.appearance is not None and self.appearance.copies

    @property
    def at_border(self) -> bool:
        return self.border >= AT_BORDER

    @property
    def suspect(self) -> bool:
        caused = self.same_thing or self.stands_out or self.same_pattern
        own = self.foreign <= OWN and caused and not self.copies
        return self.worth_a_look and (own or self.other_use)

    @property
    def suspicion(self) -> float:
        """A number to sort clusters by, 0 … 1: (1 − conductance) (1 − foreign) times the strongest
        evidence of one cause: 1 − unsteadiness, 1 − inside / outside, or 2 unlike − 1 of a place
        that stands out; or (1 − conductance) apart / (3 + apart), if that is more. Half of it
        unless the cluster is suspect, so that suspects come first."""
        evidence = [max(1 - self.unsteadiness, 0.0) if self.hot >= LEAST_HOT else 0.0]
        seen = self.appearance
        if seen is not None and not seen.copies:
            evidence.append(max(1 - seen.inside / seen.outside, 0.0))
            evidence.append(2 * seen.unlike - 1 if seen.stands_out else 0.0)
        own = max(1 - self.foreign, 0.0) * max(evidence)
        use = max(self.apart or 0.0, 0.0)
        suspicion = (1 - self.conductance) * max(own, use / (APART + use))
        return (1 + suspicion) / 2 if self.suspect else suspicion / 2

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """What is true of the cluster. Reasons alone make no suspect; without other maps to
        compare it with there are none."""
        if self.share == 1:
            return ()
        seen = self.appearance
        holds: dict[Reason, bool] = {
            "same thing": self.same_thing,
            "stands out": self.stands_out,
            "other use": self.other_use,
            "same pattern": self.same_pattern,
            "own place": self.foreign <= OWN,
            "border": self.at_border,
            "one colour": seen is not None and not seen.copies and seen.colour <= ONE_COLOUR,
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
    return np.array([border(map_) for map_ in maps])
