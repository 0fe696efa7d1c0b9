"""Test a layer by changes of the layers from which it is computed, whose places are known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cam.hooks.grids import Grid, Size
from cam.positions.measurement import LocatedLayer, Measured, Measurement
from cam.positions.responses import HITS, LEAST_FOLLOWS, PLAIN, Patch
from cam.positions.rounding import NEAR, SHIFT, evened, rounded
from cam.positions.views import LEAST_CELLS, View, part_view, view_of

EXACT: Final = 0.5
"""Greatest mean distance, in positions, of the responses from where a layer's own view expects
them."""
MOST_UNCLEAR: Final = 4
"""Number of layers about which changes of another layer may show nothing. Then no more layers are
tested in this way."""
LATEST: Final = 3
"""Number of changed layers whose changes are looked up for a later layer, before another one is
changed."""
MOST_SOURCES: Final = 12
"""Maximum number of layers that are changed. Each takes nine passes."""
CLEARLY: Final = 0.5
"""Least difference in positions by which a layer's own view must fit better than the usual one.
Attention in windows moves the centres within a window."""
GREAT: Final = 0.25
"""Least difference, as a share of the side, at which a layer's own view is taken instead of that of
the layers before it. Random weights let late layers respond beside the patch."""


class Sources:
    """The layers of one model whose places are known, and what changes of them show."""

    def __init__(self, tests: Measurement) -> None:
        self._tests = tests
        self._known: dict[str, LocatedLayer] = {}
        self.tested: list[LocatedLayer] = []
        """The sources that were changed, the latest last."""
        self._unclear = 0
        """Number of layers about which changes of a source showed nothing."""

    def add(self, name: str, grid: Grid, view: View) -> None:
        self._known[name] = LocatedLayer(name, grid, view)

    def nearest(self, name: str) -> list[LocatedLayer]:
        """Return the nearest layers with a known place from which a layer's output is computed, the
        one with the most positions first."""
        feeding, sources = self._tests.feeding, []
        seen, waiting = {name}, list(feeding.get(name, ()))
        while waiting:
            candidate = waiting.pop()
            if candidate in self._known and candidate not in seen:
                sources.append(self._known[candidate])
            elif candidate not in seen:
                waiting.extend(feeding.get(candidate, ()))
            seen.add(candidate)
        sources = [source for source in sources if min(source.cells) >= LEAST_CELLS] or sources
        return sorted(
            sources,
            key=lambda source: (
                -source.cells[0] * source.cells[1],
                not source.view.plain,
                source.name,
            ),
        )

    def told(self, name: str, source: LocatedLayer) -> tuple[Grid, View] | None:
        """Return the grid and the view of a layer that changes of a source show, or of an earlier
        source that was changed already; None if they show none."""
        if self._unclear >= MOST_UNCLEAR:
            return None
        latest = [earlier for earlier in self.tested[: -LATEST - 1 : -1] if earlier != source]
        another = None
        for other in ([source] if source in self.tested else []) + latest:
            told = self._shown_behind(name, other, nearest=other == source)
            if told and (other == source or told[1] == other.view):
                return told
            another = another or told
        told = None
        new = source not in self.tested and len(self.tested) < MOST_SOURCES
        if new and min(source.cells) >= LEAST_CELLS:
            self.tested.append(source)
            told = self._shown_behind(name, source, nearest=True)
        # Where a source further away shows another view, the nearest one shows it more precisely.
        told = told or another
        self._unclear += told is None
        return told

    def _shown_behind(
        self, name: str, source: LocatedLayer, *, nearest: bool
    ) -> tuple[Grid, View] | None:
        """Return the grid and the view of a layer that changes of a source show; None if they show
        none."""
        whole = self._tests.behind(source)[name]
        if not whole.moves:
            return None
        part: Patch | None = None
        shown = None
        for grid in sorted(whole.grids, key=source.fits, reverse=True):
            measured, usual = whole, PLAIN
            if not source.fits(grid) and grid.kind != source.grid.kind:
                continue
            if not source.fits(grid):  # as if it were cropped or padded: it is tested inside
                part = part or self._tests.part_of(source, name)
                measured = self._tests.behind(source, part)[name]
                usual = part_view(part.region, source.cells)
            if view := _view_behind(measured, grid, source, usual, nearest=nearest):
                shown = grid, view
                break
        if shown is None:
            return None
        grid, view = shown
        if view.shows_a_part:
            part = part or self._tests.part_of(source, name)
            view = view.widened(part.region, source.cells)
        return grid, evened(view, grid).behind(source.view)


def _view_behind(
    measured: Measured, grid: Grid, source: LocatedLayer, usual: View, *, nearest: bool
) -> View | None:
    """Return the view of a source that a layer shows on a grid; None if it shows none.

    Args:
        usual: the view that it is expected to have. Another one must explain the responses better
            by more than `CLEARLY`.
        nearest: whether no other source lies between them. Else the responses must be narrow.
    """
    fits = measured.fit(grid, source.cells, usual)
    good = bool(fits and fits.good and fits.follows >= LEAST_FOLLOWS)
    centres = measured.centres(grid, source.cells)
    if centres is None or not centres.narrow:
        return usual if good and nearest else None
    beside, view = centres.residual(usual), view_of(centres)
    own = view and measured.fit(grid, source.cells, view)
    if view and own and own.hits >= HITS:
        residual = centres.residual(view)
        better = not good or residual + CLEARLY < beside
        # Convolutions of an even size, padded on one side, move their output by half a position.
        away = view.differs(usual) > SHIFT and rounded(view, grid, usual, (), single=False) != usual
        if residual <= EXACT and better and (away or not source.fits(grid)):
            return view
    return usual if good and (nearest or beside <= NEAR) else None


def doubted(
    measured: Measured, size: Size, near: Sequence[LocatedLayer], known: Sequence[View]
) -> LocatedLayer | None:
    """Return the source from whose place that of a layer may differ; None if there is no doubt."""
    large = [source for source in near if min(source.cells) >= LEAST_CELLS]
    for source in large:
        alike = [grid for grid in measured.grids if grid.kind == source.grid.kind]
        if not any(map(source.fits, alike)):
            return source
    for source in large[:1]:
        for grid in measured.grids:
            centres = measured.centres(grid, size)
            own = view_of(centres) if centres else None
            fitting = measured.fit(grid, size, source.view)
            if not centres or own is None or fitting is None:
                continue
            away = own.differs(source.view) > GREAT and fitting.hits < HITS
            usual = rounded(own, grid, source.view, known, single=False)
            if away or (centres.narrow and usual != source.view):
                return source
    return None
