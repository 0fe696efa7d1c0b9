"""Which differences between the views of layers are rounding, in strides, padding and responses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cam.hooks.grids import Grid
from cam.positions.responses import PLAIN
from cam.positions.views import View

NEAR: Final = 0.8
"""Greatest difference in cells between a layer's view and a usual one that is taken for rounding in
strides and padding, and for the responses' own size."""
NEAR_SINGLE: Final = 0.7
"""The same for a first layer in which a patch of the image changes a single position. A convolution
of patches that overlap moves the middle of a cell by up to half of it."""
FEW_CELLS: Final = 16
"""Number of rows or columns below which it is `BEHIND`: few patches lie away from the borders."""
BEHIND: Final = 1.25
"""The same for the view of the layers before it: strided convolutions with padding shift their
output by up to half a cell."""
SHIFT: Final = 0.08
"""Greatest difference, as a share of the side, between a layer's view and that of the layers before
it that is taken for the sum of such roundings (Inception's convolutions without padding)."""


def rounded(own: View, grid: Grid, before: View, known: Sequence[View], *, single: bool) -> View:
    """Return the known view from which a layer's own view differs by rounding alone, or the own
    view if there is none.

    Args:
        single: whether a patch changes one position, as in a transformer's embedding of patches,
            where nothing is rounded.
    """
    for view in dict.fromkeys((before, *reversed(known), PLAIN, *PLAIN.turned())):
        behind = bool(known) and view == before
        shift = SHIFT if behind else 0.0
        axes = ((own.rows, view.rows, grid.height), (own.columns, view.columns, grid.width))
        if own.transposed == view.transposed and all(
            one.differs(other)
            <= (NEAR_SINGLE / cells if single else max(_near(cells, behind) / cells + 0.01, shift))
            for one, other, cells in axes
        ):
            return view
    return own


def _near(cells: int, behind: bool) -> float:
    return BEHIND if behind or cells < FEW_CELLS else NEAR


def evened(view: View, grid: Grid) -> View:
    """Return the view without a scale and an offset if it differs from that by rounding alone."""
    for plain in (PLAIN, *PLAIN.turned()):
        if (
            view.transposed == plain.transposed
            and view.rows.differs(plain.rows) <= 1 / grid.height + 0.01
            and view.columns.differs(plain.columns) <= 1 / grid.width + 0.01
        ):
            return plain
    return view
