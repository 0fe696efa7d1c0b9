"""What makes a cluster suspect: criteria with formulas and thresholds.

A cluster of maps proves nothing by itself. Clean photos make clusters, too: objects in the lower
left corner, padding at the right edge, crops of one photo. So a cluster is suspect only if it meets
all four criteria:

- it has a fair size: at least `LEAST_MEMBERS` maps and at most half of the class;
- it is separate: its conductance in the graph of similar maps is at most `SEPARATE`;
- it has a place of its own: where it is hot, other maps have at most `OWN` of its heat;
- there is evidence that its heat has one cause, which other maps do not have. Each of four kinds of
  evidence is enough:

  - the photos show the same thing under the heat and differ elsewhere (`Appearance.same_thing`);
  - the photos differ from others at this place, hardly elsewhere, and their heat lies on something
    else than the heat of the others (`Appearance.stands_out`): a translucent mark, compression
    artefacts, digits that vary;
  - the model used something else (`APART`): Fisher's discriminant tells the members from other
    photos by the channels on which their maps lie (`Explanation.used`), as Anders et al. rank
    clusters ("Finding and removing Clever Hans", Information Fusion 2022). It does not tell objects
    at one place from the same objects at other places. The photos must be available. They must look
    like others elsewhere (`Appearance.another_kind`), because the discriminant also tells kinds of
    photos from each other;
  - the maps alone, because photos may be missing: the cluster is separate and its maps have one
    pattern (`REGULAR`). Clusters of objects are separate but have different patterns, or they are
    small parts of such clusters, which have one pattern but are not separate. If there are photos,
    they must not contradict it (`SHARED`): objects from another viewpoint have one pattern at one
    place, too.

A group of photos in which the model used similar channels does not need a place of its own. Kinds
of the object are such groups, too: in a red disc a model finds other evidence than in a blue one,
instead of it. A mark that the model learned is evidence beside the object. So the group is suspect
if its contributions to the score add to those of the other photos and take little from them
(`Evidence.added_use`). It is also suspect if it is far apart (`FAR_APART`), its scores are no
lower, and its photos look like others elsewhere. This finds marks at varying places, and some that
cover the photo.

A mark that covers the photo hides some of the object, so that it takes more from the other evidence
and is less far apart. Less is enough if the photos of the group differ from the others by one
change that all of them share (`Appearance.look`), and no longer once it is undone
(`Appearance.scene`): photos of other things still do.

Photos that are known to be copies or crops of one photo are not evidence, and neither are their
maps.

If the photos of a cluster show the same thing, members whose photos lack it are left out.

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

from cam.clusters.appearance import DIFFERENT, Appearance, hot_place
from cam.clusters.use import Difference
from cam.drawing.heatmap import border
from cam.drawing.placement import Float

Reason = Literal[
    "isolated",
    "own place",
    "same pattern",
    "same thing",
    "stands out",
    "other use",
    "added use",
    "whole photo",
    "one colour",
    "border",
]

LEAST_MEMBERS: Final = 8
ISOLATED: Final = 0.1
SEPARATE: Final = 0.2
"""Largest conductance at which photos that show the same thing are evidence."""
OWN: Final = 0.6
APART: Final = 3.0
"""Least separation at which what the model used in a cluster of similar maps is something else, in
standard deviations."""
FAR_APART: Final = 6.0
"""The same for a group of similar uses, wherever its heat is. It is larger because the groups are
chosen for their separation: kinds of objects whose scores are not lower reach 5.4."""
ADDED: Final = 4.5
"""Least separation of a group whose contributions only add to those of others. Such groups of clean
photos reach 4.3."""
LEAST_USES: Final = 20
"""Least number of photos in a group of similar uses. The separation of fewer is too uncertain."""
MOST_USES: Final = 0.4
"""Largest share of such a group in its class. Halves of a class are kinds of the object."""
LOST: Final = 0.1
"""Largest share of the differences in which such a group has less than others."""
RAISED: Final = 0.8
"""Least chance that a photo of such a group has a higher score than another photo."""
COVERED: Final = 4.0
"""Least separation of a group whose photos one change covers. Clean photos reach 3.9."""
COVERED_LOST: Final = 0.17
"""Largest share of the differences in which such a group has less: a veil hides the object."""
LOOK: Final = 0.95
"""Least `Appearance.look` of photos that one change covers."""
SCENE: Final = 0.7
"""Largest `Appearance.scene` of photos that show the same things as others but for the change."""
REGULAR: Final = 0.0015
"""Largest product of conductance and unsteadiness at which maps alone are evidence."""
SHARED: Final = 0.75
"""Largest spread of the pixels under the heat, relative to the spread elsewhere, that does not
contradict one cause. Clean photos have 0.98 to 1.2."""
LEAST_HOT: Final = 3
"""Least number of hot positions for comparing patterns: with one position, every pattern is the
same."""
ONE_COLOUR: Final = 1 / 3
AT_BORDER: Final = 1.4
"""Least share of the heat near the border, relative to the class's other maps, at which the heat
lies at the border."""

SENTENCES: Final[dict[Reason, str]] = {
    "isolated": "few other maps of the class resemble these",
    "own place": "the heat lies where other maps of the class have little",
    "same pattern": "the heat has one pattern at one fixed place",
    "same thing": "the photos show the same thing under the heat and differ elsewhere",
    "stands out": "the photos show something there that other photos of the class lack",
    "other use": "the model used something there that it uses in no other photo of the class",
    "added use": "the model found evidence there beside what it uses in other photos of the class",
    "whole photo": "one change covers the whole photos, and the model found evidence in it",
    "one colour": "the heat lies on one colour",
    "border": "the heat lies at the border more than in other maps of the class",
}
"""Reason → what it says about a cluster, as a clause."""


@dataclass(frozen=True)
class Evidence:
    """Measurements of a cluster that decide whether it is suspect."""

    size: int
    share: float
    """Its maps as a share of the class's maps, above 0, at most 1."""
    conductance: float
    """Share of its members' affinity that is to other maps, 0 … 1."""
    foreign: float
    """Mean heat of other maps at its hot positions, relative to its own mean heat there: 0 if
    other maps have none there, about 1 if they have as much."""
    hot: int
    """Number of its hot positions, at least 1."""
    unsteadiness: float
    """How much its maps' patterns differ at the hot positions, at least 0: see `unsteadiness`."""
    border: float
    """Mean share of its maps' heat near the border, relative to that of other maps."""
    appearance: Appearance | None
    """None without photos, or if photos were not read because other conditions are not met."""
    difference: Difference | None = None
    """How what the model used in these photos differs from what it used in the class's other
    photos; None if that is not known."""
    by_use: bool = False
    """Whether the cluster is a group of similar uses instead of similar maps."""

    @property
    def worth_a_look(self) -> bool:
        """Whether the cluster meets the conditions that can be checked before looking for a
        cause."""
        return (
            self.size >= (LEAST_USES if self.by_use else LEAST_MEMBERS)
            and self.share <= (MOST_USES if self.by_use else 0.5)
            and self.conductance <= SEPARATE
            and (self._apart if self.by_use else self._at_own_place)
        )

    @property
    def _at_own_place(self) -> bool:
        """Whether other maps have little heat at this place, or the place does not matter because
        the model used something far apart."""
        return self.foreign <= OWN or self._far_apart

    @property
    def _apart(self) -> bool:
        """Whether what the model used in a group of similar uses may be evidence."""
        return self._far_apart or self._adds or self.may_be_covered

    @property
    def _far_apart(self) -> bool:
        """Whether what the model used is far apart from the other photos, and the scores are no
        lower."""
        found = self.difference
        return found is not None and found.apart >= FAR_APART and found.raised >= 0.5

    @property
    def _adds(self) -> bool:
        return self._is_more(ADDED, LOST)

    @property
    def may_be_covered(self) -> bool:
        """Whether what the model used allows that one change covers the members' photos."""
        return self.by_use and self._is_more(COVERED, COVERED_LOST)

    def _is_more(self, apart: float, lost: float) -> bool:
        """Whether the contributions differ by `apart` standard deviations, take at most the share
        `lost` from those of other photos, and raise the scores."""
        found = self.difference
        return (
            found is not None
            and found.apart >= apart
            and found.lost <= lost
            and found.raised >= RAISED
        )

    @property
    def same_pattern(self) -> bool:
        """Whether the maps are separate and have one pattern, and the photos do not contradict one
        cause. Photos contradict it if they are of another kind, or if what they show under the heat
        differs as much as in other photos. Such maps may otherwise come from objects that are at
        another place in one photo of four or seven, for example from another viewpoint."""
        seen = self.appearance
        if seen is not None and (
            seen.another_kind or seen.inside > SHARED * min(seen.outside, 1.0)
        ):
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
        if self.difference is None or seen is None or seen.another_kind or seen.copies:
            return False
        return self._far_apart if self.by_use else self.difference.apart >= APART

    @property
    def added_use(self) -> bool:
        """Whether the model found evidence in the members' photos in addition to all that it uses
        in other photos. The photos may be of another kind, because a mark may cover them."""
        return self._adds and self.appearance is not None and not self.appearance.copies

    @property
    def covered(self) -> bool:
        """Whether one change covers the members' photos, in which the model found evidence: their
        overall look tells them from the other photos, and what they show does not, once the change
        is undone."""
        seen = self.appearance
        return (
            self.may_be_covered
            and seen is not None
            and seen.middle >= DIFFERENT
            and seen.look >= LOOK
            and seen.scene <= SCENE
        )

    @property
    def copies(self) -> bool:
        """Whether the photos are known to be copies or crops of one photo."""
        return self.appearance is not None and self.appearance.copies

    @property
    def suspect(self) -> bool:
        if not self.worth_a_look:
            return False
        if self.other_use or self.added_use or self.covered:
            return True
        caused = self.same_thing or self.stands_out or self.same_pattern
        return not self.by_use and self.foreign <= OWN and caused and not self.copies

    @property
    def suspicion(self) -> float:
        """A number to sort clusters by, 0 … 1.

        It is made of s, the greater of two numbers:

        - (1 − conductance) (1 − foreign) times the strongest evidence of one cause: 1 −
          unsteadiness, 1 − inside / outside, or 2 unlike − 1 if the place stands out;
        - (1 − conductance) apart / (3 + apart).

        It is (1 + s) / 2 for a suspect cluster and s / 2 for any other, so suspects come first."""
        evidence = [max(1 - self.unsteadiness, 0.0) if self.hot >= LEAST_HOT else 0.0]
        seen = self.appearance
        if seen is not None and not seen.copies:
            evidence.append(max(1 - seen.inside / seen.outside, 0.0))
            evidence.append(2 * seen.unlike - 1 if seen.stands_out else 0.0)
        own = max(1 - self.foreign, 0.0) * max(evidence)
        use = max(self.difference.apart, 0.0) if self.difference else 0.0
        suspicion = (1 - self.conductance) * max(own, use / (APART + use))
        return (1 + suspicion) / 2 if self.suspect else suspicion / 2

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """What is true of the cluster. A cluster with reasons need not be suspect. There are no
        reasons if the class has no other maps to compare with."""
        if self.share == 1:
            return ()
        seen = self.appearance
        holds: dict[Reason, bool] = {
            "same thing": self.same_thing,
            "stands out": self.stands_out,
            "other use": self.other_use,
            "added use": self.added_use,
            "whole photo": self.covered,
            "same pattern": self.same_pattern,
            "own place": self.foreign <= OWN,
            "border": self.border >= AT_BORDER,
            "one colour": seen is not None and not seen.copies and seen.colour <= ONE_COLOUR,
            "isolated": self.conductance <= ISOLATED,
        }
        return tuple(reason for reason, true in holds.items() if true)


def foreign_heat(shares: Float, members: NDArray[np.bool_], hot: NDArray[np.bool_]) -> float:
    """Return the mean heat of other maps at the hot positions, relative to that of the members.

    Args:
        shares: each map divided by its sum, float32 (m, h, w).
        members: which maps are members, bool (m,).
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

    Each map's values at the hot positions (`hot_place`) are divided by their mean. Each position
    then has a median over the maps and a median absolute deviation. The result is the mean
    deviation over the positions, divided by the mean median: 0 for equal patterns, whatever their
    strength.

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
