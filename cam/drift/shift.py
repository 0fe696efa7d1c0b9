"""What a comparison found: the statistics that have moved, and what had too few values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

FLAT: Final = "flat"
"""Name of a further statistic: 1 of a map that has no statistics because it is constant, else 0."""
WORDS: Final = {
    "entropy": "the entropy of the heat",
    "centroid_x": "the mean column of the heat, of the width,",
    "centroid_y": "the mean row of the heat, of the height,",
    "spread": "the spread of the heat",
    "border": "the share of the heat on the border",
    "centre": "the share of the heat in the central half of both sides",
    "concentration": "the share of the heat in the hottest tenth",
    "confidence": "the probability of the target",
    "sharpness": "the sharpness of the photo",
    "brightness": "the brightness of the photo",
    "contrast": "the contrast of the photo",
    "red": "the share of red in the photo",
    "blue": "the share of blue in the photo",
    "colourfulness": "the colourfulness of the photo",
    "variety": "the variety of brightness in the photo",
    "softest": "the sharpness of the photo's softest parts",
    FLAT: "the share of flat maps",
}
LEAST: Final = 50
"""Least number of photos of a series, on each side."""
MOST_DIGITS: Final = 6
"""Largest number of decimals in a sentence. Statistics are float32."""
Quartiles = tuple[float, float, float]


@dataclass(frozen=True)
class Shift:
    """How far one statistic of a series has moved."""

    index: int | None
    """The class; None for all classes together."""
    statistic: str
    """A name in `STATISTICS`, or "flat"."""
    psi: float
    """Population stability index less what chance gives it; about 0 without a change."""
    distance: float
    """Kolmogorov's and Smirnov's D, 0 … 1."""
    p: float
    """Probability of such a D without a change, corrected for all tests of the comparison."""
    before: Quartiles
    """Quartiles of the reference. Of "flat" the share of such maps, three times."""
    after: Quartiles
    """The same of the live maps."""
    reference: int
    """Number of photos in the reference."""
    live: int
    """Number of different photos in the window."""
    moved: bool
    """Whether p and psi are beyond the bounds of `cam.drift.comparison`."""
    unsure: bool = False
    """Whether p alone is: it has changed, and whether that matters is not known."""

    def sentence(self, label: str | None = None) -> str:
        """Return what has moved, and by how much, in one sentence; or that it is as before.

        Args:
            label: what the class is called.
        """
        who = _who(self.index, label)
        if not self.moved and not self.unsure:
            return f"{who}: {WORDS[self.statistic]} is as before"
        doubt = "" if self.moved else ", by less than what counts as moved"
        return f"{who}: {self._change()}{doubt}"

    def _change(self) -> str:
        """Return what has changed, as a clause."""
        what = WORDS[self.statistic]
        (low, middle, high), (lower, after, higher) = self.before, self.after
        verb = "rose" if after > middle else "fell"
        if self.statistic == FLAT:
            digits = _digits((middle, after), 0, 100)
            return f"{what} {verb} from {middle:.{digits}%} to {after:.{digits}%}"
        moves = [abs(one - other) for one, other in zip(self.before, self.after, strict=True)]
        if not any(moves):
            return f"{what} has changed only outside its quartiles"
        if 2 * moves[1] >= max(moves):
            digits = _digits((middle, after), 2)
            return f"{what} {verb} from {middle:.{digits}f} to {after:.{digits}f} (median)"
        digits = min(_digits(pair, 2) for pair in ((low, lower), (high, higher)))
        return (
            f"{what} is distributed differently: the middle half of the photos was between "
            f"{low:.{digits}f} and {high:.{digits}f} and is now between {lower:.{digits}f} and "
            f"{higher:.{digits}f}"
        )


def _who(index: int | None, label: str | None) -> str:
    """Return what a series is called."""
    if index is None:
        return "all classes"
    return f"class {label!r}" if label is not None else f"class {index}"


def _digits(values: tuple[float, float], least: int, unit: float = 1.0) -> int:
    """Return the number of decimals by which two values differ when they are rounded, at least
    `least` and at most `MOST_DIGITS`."""
    one, other = (value * unit for value in values)
    for digits in range(least, MOST_DIGITS):
        if f"{one:.{digits}f}" != f"{other:.{digits}f}":
            return digits
    return MOST_DIGITS


@dataclass(frozen=True)
class TooFew:
    """A series, or one statistic of it, that has too few values to be compared."""

    index: int | None
    """The class; None for all classes together."""
    statistic: str | None
    """None for all statistics."""
    reference: int
    """Number of photos that the reference has; of all classes together, as `effective` counts."""
    live: int
    """Number of different photos in the window."""

    def sentence(self, label: str | None = None) -> str:
        """Return what was not compared, how many photos that needs, and which side has fewer, in
        one sentence.

        Args:
            label: what the class is called.
        """
        what = "nothing was"
        if self.statistic is not None:
            what = f"{WORDS[self.statistic].rstrip(',')} was not"
        weighted = ", weighted to the live mix of classes" if self.index is None else ""
        sides = [f"the reference has {self.reference}{weighted}"] if self.reference < LEAST else []
        if self.live < LEAST:
            sides.append(f"the window of live maps has {self.live}")
        return (
            f"{_who(self.index, label)}: {what} compared, because {LEAST} different photos are "
            f"needed on each side and {' and '.join(sides)}"
        )


@dataclass(frozen=True)
class Comparison:
    """What a comparison found."""

    shifts: tuple[Shift, ...]
    """Every test that was made, the greatest population stability index first."""
    too_few: tuple[TooFew, ...]
    """What was not compared."""
    unknown: float | None
    """Share of the latest maps, 0 … 1, whose classes the reference lacks; None if there are no
    maps. "All classes together" leaves them out."""

    @property
    def moved(self) -> tuple[Shift, ...]:
        """The shifts that are worth telling a person."""
        return tuple(shift for shift in self.shifts if shift.moved)

    @property
    def has_moved(self) -> bool | None:
        """Whether a statistic has moved. None if that is not known: none of those that were
        compared has moved, and one of them is unsure, or of all classes together nothing but the
        share of flat maps was compared. See `missing`."""
        if self.moved:
            return True
        if any(shift.unsure for shift in self.shifts):
            return None
        compared = any(shift.index is None and shift.statistic != FLAT for shift in self.shifts)
        return False if compared else None

    @property
    def missing(self) -> str | None:
        """Why it is not known whether a statistic has moved, in one sentence: the statistic that is
        unsure, or what a comparison of all classes together lacks; None if it was made."""
        unsure = [shift for shift in self.shifts if shift.unsure]
        if unsure and not self.moved:
            return min(unsure, key=lambda shift: (shift.index is not None, shift.p)).sentence()
        if any(shift.index is None and shift.statistic != FLAT for shift in self.shifts):
            return None
        lacking = [sample for sample in self.too_few if sample.index is None]
        lacking.sort(key=lambda sample: sample.statistic is not None)
        return lacking[0].sentence() if lacking else None
