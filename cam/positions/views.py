"""Measure which part of the image a layer's positions show, and how it is turned.

A model may resize, crop, pad, mirror, rotate or transpose its image before or between its layers.
Then a share of the image's height and width corresponds to another share of the layer's rows and
columns. All of these are affine along the axes: a `View` has one scale and one offset for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

import numpy as np
import torch
from torch import Tensor

from cam.drawing.placement import Box, Placement, Region
from cam.hooks.grids import Size

SHARP: Final = 0.15
"""Greatest standard deviation of a layer's response to a patch, as a share of the layer's rows or
columns, at which the centre of the response tells where the patch is."""
NARROW: Final = 0.09
"""The same for a layer whose view may differ from that of the layers before it. Wider responses are
cut off at the borders, and their centres lie too far inside."""
SINGLE: Final = 0.6
"""Greatest standard deviation of a response, in positions, of a patch that changes two neighbours
at most."""
LEAST_CELLS: Final = 4
"""Least number of rows and columns of a layer that tells its view."""
LARGEST: Final = 2.5
"""Largest size of a layer's rows or columns on the image, in sides of the image, unless at least
`LEAST_CELLS` of them lie on it."""
LEAST_PATCHES: Final = 4
"""Least number of patches that must agree on a view."""
AGREEING: Final = 0.85
"""Least share of the patches away from the layer's borders that must agree on a view."""
EDGE: Final = 0.02
"""Greatest share of a side that a model may leave out at each edge and still look at the whole
image: a stride may leave out a few pixels."""
STRONG: Final = 0.25
"""Responses below this share of the strongest one are ignored: normalisations and attention spread
a little of a change over all positions."""


@dataclass(frozen=True)
class Axis:
    """Where shares u of one axis of the image lie on one axis of a layer: at scale · u + offset."""

    scale: float = 1.0
    offset: float = 0.0

    def at(self, share: float) -> float:
        return self.scale * share + self.offset

    def behind(self, before: Axis) -> Axis:
        """Return the axis of a layer that lies at this axis of a layer with the axis `before`."""
        return Axis(self.scale * before.scale, self.scale * before.offset + self.offset)

    def differs(self, other: Axis) -> float:
        """Return the greatest difference between two axes over the image, as a share of the
        layer's axis."""
        return max(abs(self.at(end) - other.at(end)) for end in (0.0, 1.0))

    @property
    def whole(self) -> Axis:
        """The axis of the same direction that covers the image."""
        return Axis() if self.scale > 0 else Axis(-1.0, 1.0)

    def edges(self) -> tuple[float, float]:
        """Return the shares of the image at the layer's two edges, the smaller one first."""
        low, high = sorted((-self.offset / self.scale, (1 - self.offset) / self.scale))
        return low, high


@dataclass(frozen=True)
class View:
    """Which part of the image a layer's rows and columns show."""

    rows: Axis = Axis()
    columns: Axis = Axis()
    transposed: bool = False
    """Whether the rows follow the image's columns."""

    @property
    def plain(self) -> bool:
        """Whether the rows and columns cover the image evenly and upright."""
        return self == View()

    def shares(self, y: float, x: float) -> tuple[float, float]:
        """Return the shares of the rows and columns at which a point of the image lies."""
        return (
            (self.rows.at(x), self.columns.at(y))
            if self.transposed
            else (self.rows.at(y), self.columns.at(x))
        )

    def placement(self, size: Size) -> Placement | None:
        """Return where the layer's positions lie on an image of `size`; None if the view is
        plain."""
        if self.plain:
            return None
        down, across = (self.columns, self.rows) if self.transposed else (self.rows, self.columns)
        (top, bottom), (left, right) = down.edges(), across.edges()
        box = Box(left * size[1], top * size[0], right * size[1], bottom * size[0])
        return Placement(box, *size, self.transposed, down.scale < 0, across.scale < 0)

    def differs(self, other: View) -> float:
        """Return the greatest difference between two views over the image, as a share of the
        sides."""
        if self.transposed != other.transposed:
            return 1.0
        return max(self.rows.differs(other.rows), self.columns.differs(other.columns))

    @property
    def shows_a_part(self) -> bool:
        """Whether the rows or the columns end before the image does."""
        return max(abs(self.rows.scale), abs(self.columns.scale)) > 1

    def widened(self, seen: Region, size: Size) -> View:
        """Return the view of a layer that looks at the part `seen` of an image of `size`: where
        that reaches from edge to edge, the layer covers the image, and convolutions without padding
        alone have left out the positions at its edges."""
        down = max(seen.top, size[0] - seen.top - seen.height) <= EDGE * size[0]
        across = max(seen.left, size[1] - seen.left - seen.width) <= EDGE * size[1]
        rows, columns = (across, down) if self.transposed else (down, across)
        return View(
            self.rows.whole if rows and abs(self.rows.scale) > 1 else self.rows,
            self.columns.whole if columns and abs(self.columns.scale) > 1 else self.columns,
            self.transposed,
        )

    def behind(self, before: View) -> View:
        """Return the view of a layer that shows this part of a layer with the view `before`."""
        along = (before.rows, before.columns)
        rows, columns = along[::-1] if self.transposed else along
        return View(
            self.rows.behind(rows),
            self.columns.behind(columns),
            self.transposed != before.transposed,
        )

    def turned(self) -> list[View]:
        """Return the same view mirrored, turned upside down and transposed in all other ways."""
        views = []
        for transposed in (self.transposed, not self.transposed):
            swapped = transposed != self.transposed
            axes = (self.columns, self.rows) if swapped else (self.rows, self.columns)
            for rows in (axes[0], _flipped(axes[0])):
                for columns in (axes[1], _flipped(axes[1])):
                    views.append(View(rows, columns, transposed))
        return views[1:]


def part_view(seen: Region, size: Size) -> View:
    """Return the upright view of a layer that covers the part `seen` of an image of `size`."""
    return View(
        Axis(size[0] / seen.height, -seen.top / seen.height),
        Axis(size[1] / seen.width, -seen.left / seen.width),
    )


def _flipped(axis: Axis) -> Axis:
    return Axis(-axis.scale, 1 - axis.offset)


@dataclass(frozen=True)
class Centres:
    """Where a layer responds to each of n patches, as shares of its rows and columns."""

    patches: Tensor
    """float64 (n, 2): the patches' centres, as shares of the image's height and width."""
    places: Tensor
    """float64 (n, 2): the centres of the responses, as shares of the rows and columns."""
    spread: Tensor
    """float64 (n, 2): the responses' standard deviations."""
    whole: Tensor
    """bool (n, 2): whether a response ends before the layer's border, so that its centre is not
    shifted inwards."""
    cells: Size

    @property
    def sharp(self) -> bool:
        """Whether the responses are narrow enough to tell a view."""
        few = min(self.cells) < LEAST_CELLS or len(self.patches) < LEAST_PATCHES
        return not few and self._spread <= SHARP

    @property
    def narrow(self) -> bool:
        """Whether the responses are narrow enough to tell a view unlike that of other layers."""
        return self.sharp and self._spread <= NARROW

    def residual(self, view: View) -> float:
        """Return the mean distance of the responses from where a view expects them, in positions,
        along the axis on which it is greater. Responses that the borders cut off do not count."""
        wanted = torch.tensor([view.shares(y, x) for y, x in self.patches.tolist()])
        away = (self.places - wanted).abs() * torch.tensor(self.cells)
        sure = self.whole | ~self.whole.any(0)
        return float(((away * sure).sum(0) / sure.sum(0)).max())

    @property
    def single(self) -> bool:
        """Whether most patches change one position, or two neighbours, so that a shift by half a
        position shows."""
        spread = self.spread.median(0).values
        return bool((spread * torch.tensor(self.cells) <= SINGLE).all())

    @property
    def _spread(self) -> float:
        return float(self.spread.median(0).values.max())


def centres_of(moved: Tensor, centres: Sequence[tuple[float, float]]) -> Centres:
    """Return where a layer responds to patches.

    Args:
        moved: float32 (patches, h, w): how much each position changes with each patch.
        centres: the patches' centres, as shares of the image's height and width.
    """
    moving = moved.flatten(1).any(1)
    at = torch.tensor(centres, dtype=torch.float64).reshape(-1, 2)[moving]
    # A change that every patch causes does not show where a patch is.
    shares = moved[moving].double()
    shares = shares / shares.sum((1, 2), keepdim=True)
    if len(shares) > 1:
        shares = shares - (shares.sum(0) - shares) / (len(shares) - 1)
    peak = shares.amax((1, 2), keepdim=True) if len(shares) else shares
    weights = torch.where(shares >= STRONG * peak, shares, 0.0).clamp(min=0)
    weights = weights / weights.sum((1, 2), keepdim=True).clamp(min=1e-30)
    places, spread, whole = [], [], []
    for axis in (1, 2):
        along = weights.sum(3 - axis)
        positions = (torch.arange(along.shape[1], dtype=torch.float64) + 0.5) / along.shape[1]
        centre = along @ positions
        places.append(centre)
        spread.append(((along * (positions - centre[:, None]) ** 2).sum(1)).sqrt())
        whole.append((along[:, 0] == 0) & (along[:, -1] == 0))
    return Centres(
        at,
        torch.stack(places, 1),
        torch.stack(spread, 1),
        torch.stack(whole, 1),
        (moved.shape[1], moved.shape[2]),
    )


def view_of(centres: Centres) -> View | None:
    """Return the view that a sharp layer shows, or None if no view explains its responses: its
    positions lie in another order, such as window by window, or are rolled."""
    best, most = None, 0
    for transposed in (False, True):
        axes = []
        agreeing = 0
        for axis in (0, 1):
            along = centres.patches[:, 1 - axis if transposed else axis]
            fitted = _axis(along, centres, axis)
            if fitted is None:
                break
            axes.append(fitted[0])
            agreeing += fitted[1]
        if len(axes) == 2 and agreeing > most:
            best, most = View(axes[0], axes[1], transposed), agreeing
    return best


def _axis(along: Tensor, centres: Centres, axis: int) -> tuple[Axis, int] | None:
    """Return the scale and offset along one axis of a layer on which most patches agree, and how
    many do; None if too few agree."""
    cells = centres.cells[axis]
    tolerance = 0.6 / cells + 0.01
    x, y = along.numpy(), centres.places[:, axis].numpy()
    sure = centres.whole[:, axis].numpy()
    if sure.sum() < LEAST_PATCHES:
        sure = np.ones(len(x), bool)
    best, most = None, 0
    for one, other in combinations(np.flatnonzero(sure), 2):
        if abs(x[one] - x[other]) < 0.1:
            continue
        scale = (y[one] - y[other]) / (x[one] - x[other])
        agree = sure & (np.abs(y - y[one] - scale * (x - x[one])) <= tolerance)
        if abs(scale) > min(1 / LARGEST, LEAST_CELLS / cells) and agree.sum() > most:
            best, most = agree, int(agree.sum())
    if best is None or most < max(LEAST_PATCHES, AGREEING * int(sure.sum())):
        return None
    dx, dy = x[best] - x[best].mean(), y[best] - y[best].mean()
    scale = float((dx * dy).sum() / (dx * dx).sum())
    axis_ = Axis(scale, float(y[best].mean() - scale * x[best].mean()))
    # A response at the border has its centre inside: it may lie further in, by its own extent.
    slack = 3 * centres.spread[:, axis].numpy() + 2 * tolerance
    wanted = (scale * x + axis_.offset).clip(0, 1)
    if (np.abs(wanted - y) > slack).any():
        return None
    return axis_, most
