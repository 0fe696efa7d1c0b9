"""Judge from the responses of all layers which grid each of them has, and where it lies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from cam.hooks.calls import Turns
from cam.hooks.grids import Grid, Location, Size, grid_of_map
from cam.positions.measurement import Measured, Measurement
from cam.positions.responses import FOLLOWS, HITS, PLAIN, Fit
from cam.positions.rounding import rounded
from cam.positions.sources import GREAT, Sources, doubted
from cam.positions.views import View, part_view, view_of

TELLING: Final = 25
"""Least number of positions of a feature map that is refused if its responses tell nothing. With
fewer positions, each position sees the whole image many times over, and padding decides where the
output changes most. Such a layer has the view of the layers before it."""
SMALL: Final = 32
"""Least side of an image in pixels on which a patch tells more than the cell where it is."""
PIXEL: Final = 1.0
"""Greatest mean distance, in pixels, of the responses from where they would be without a placement,
at which a layer of a position for each pixel has none. Few channels do not respond evenly to what
lies around a pixel."""
NO_MAP: Final = (
    "its output {shape} does not lie on the image: a taller image makes it wider, as if its rows "
    "were pixels of patches and its columns the patches"
)
"""Why an output does not lie on the image, although it has the shape of a map of few positions."""
LONG: Final = 1.9
"""Least ratio of the sides of a cell of a map of few positions at which it is doubted that the map
has the view of the layers before it."""


def located_by(tests: Measurement) -> dict[str, Location]:
    """Return the locations of the layers that were tested.

    Feature maps are judged first, in execution order: a layer with sharp responses shows its own
    view of the image, and a later layer, whose positions see too much of the image, has the view of
    the layers before it. Where its shape or its responses speak against that, changes of the layer
    before it show its view. Tokens are judged under the views of the feature maps. A network that
    runs several times may see another part of the image each time, so a view counts only for layers
    in the same turn.
    """
    judge = _Judge(tests)
    for name in tests.layers:
        judge.add(name)
    judge.add_tokens()
    return judge.found


class _Judge:
    """Locations of layers, which are added in the order of execution."""

    def __init__(self, tests: Measurement) -> None:
        self.tests, self.size = tests, tests.size
        self.found: dict[str, Location] = {}
        self.views: dict[str, View] = {}
        """The view of the layers before each layer of tokens."""
        self.shown_in: list[tuple[Turns, View]] = []
        """The views that layers have shown so far, the latest last."""
        self.sources = Sources(tests)

    def add(self, name: str) -> None:
        measured, shape = self.tests.layers[name], self.tests.shapes[name]
        turns = self.tests.within[name]
        around = [view for earlier, view in self.shown_in if earlier == turns[: len(earlier)]]
        parts = self.tests.parts
        own = not (turns or turns in parts) or any(earlier == turns for earlier, _ in self.shown_in)
        known = around if own else []  # the first layer of a turn may see another part
        before = around[-1] if around else PLAIN
        if not own and (part := parts.get(turns)):
            own, before = True, part_view(part.region, self.size)
        near = self.sources.nearest(name)
        if near:
            own, before = True, near[0].view
            known = known or [before]
        if len(shape) == 2:
            self.views[name] = before
            return
        doubtful = doubted(measured, self.size, near, known)
        shown = None if doubtful else _shown_by(measured, self.size, before, known, first=not near)
        source = doubtful or next(iter(near), None)
        if shown is None and source and measured.moves:
            told = self.sources.told(name, source)
            if told:
                self._place(name, *told, turns=turns)
                return
            odd = source in self.sources.tested and not any(map(source.fits, measured.grids))
            if odd and (behind := self.tests.behind(source)[name]).moves:
                why = _why_not(behind, shape, source.cells)
                self.found[name] = Location(shape, None, why)
                return
            if doubtful:
                shown = _shown_by(measured, self.size, before, known, first=not near)
        no_map = ""
        if shown is None and own and (shown := _assumed(measured, shape, self.size, before)):
            tall = self.tests.of_tall_image.get(name, shape)
            if len(tall) == 3 and shown[0].width != _width(shown[0], tall):
                shown, no_map = None, NO_MAP.format(shape=shape)
        if shown is None:
            why = no_map or _why_not(measured, shape, self.size)
            self.found[name] = Location(shape, None, why)
            return
        grid, view, sharp = shown
        if view != before and view not in known and view.shows_a_part:
            view = view.widened(self.tests.seen(turns).region, self.size)
        self._place(name, grid, view, turns=turns if sharp else None)

    def add_tokens(self) -> None:
        """Locate the layers of tokens, under the views of the layers before them."""
        layers, shapes, size = self.tests.layers, self.tests.shapes, self.size
        for view in dict.fromkeys(self.views.values()):
            behind = {name: layers[name] for name, shown in self.views.items() if shown == view}
            for name, grid in _tokens_under(view, behind, shapes, size).items():
                self.found[name] = Location(shapes[name], _placed(grid, view, size))
        for name in self.views.keys() - self.found.keys():
            turned = _turned_tokens(layers[name], size)
            why = None if turned else _why_not(layers[name], shapes[name], size)
            self.found[name] = Location(shapes[name], turned, why)

    def _place(self, name: str, grid: Grid, view: View, *, turns: Turns | None) -> None:
        """Give a layer its place, which later layers of these turns may have, too."""
        self.found[name] = Location(self.tests.shapes[name], _placed(grid, view, self.size))
        self.sources.add(name, grid, view)
        if turns is not None:
            others = [pair for pair in self.shown_in if pair != (turns, view)]
            self.shown_in = [*others, (turns, view)]


def _shown_by(
    measured: Measured, size: Size, before: View, known: Sequence[View], *, first: bool
) -> tuple[Grid, View, bool] | None:
    """Return the grid and the view that a feature map's responses show, and whether they are narrow
    enough to show it to later layers; None if they show none.

    Args:
        first: whether the layer is computed from the image and from no other layer.
    """
    fits = []
    for grid in measured.grids:
        fitting = measured.fit(grid, size, before)
        if fitting is None:
            continue
        centres = measured.centres(grid, size)
        own = view_of(centres) if centres else None
        view: View | None = None
        fitted = own and measured.fit(grid, size, own)
        if fitted and fitted.hits < HITS:
            own = None
        if min(size) < SMALL and (known or not fitted or not fitted.exact or fitting.hits >= HITS):
            own, centres = None, None
        of_pixels = (grid.height, grid.width) == size
        near = of_pixels and centres is not None and centres.residual(before) <= PIXEL
        if own and near and fitting.good:
            view = before
        elif own and (not known or (own.differs(before) > GREAT and fitting.hits < HITS)):
            view = rounded(
                own, grid, before, known, single=first and bool(centres and centres.single)
            )
        elif fitting.good and (own or not centres or not centres.narrow or fitting.hits >= HITS):
            view = before
        elif centres is None:
            view = _turned(measured, grid, size, before)
        if view is not None:
            shown = centres is not None and centres.narrow
            fits.append((measured.distance(grid, size, view), grid, view, shown))
    return min(fits, key=lambda fit: fit[0])[1:] if fits else None


def _turned(measured: Measured, grid: Grid, size: Size, before: View) -> View | None:
    """Return the mirrored or transposed form of a view that fits a layer well, if one does."""
    if min(grid.height, grid.width) == 1:  # it has no sides to turn
        return None
    for view in before.turned():
        fitting = measured.fit(grid, size, view)
        if fitting and fitting.hits >= HITS and fitting.follows >= FOLLOWS:
            return view
    return None


def _assumed(
    measured: Measured, shape: tuple[int, ...], size: Size, before: View
) -> tuple[Grid, View, bool] | None:
    """Return the grid of a feature map of few positions, whose responses tell nothing, from its
    shape; None if there is none."""
    clear = grid_of_map((1, *shape), size)
    if clear is None or clear.height * clear.width >= TELLING:
        return None
    if min(clear.height, clear.width) > 1 and not before.transposed:
        # A stripe of a map, under the view of the whole map, would have long cells.
        height = size[0] / abs(before.rows.scale) / clear.height
        width = size[1] / abs(before.columns.scale) / clear.width
        if max(height, width) >= LONG * min(height, width):
            return None
    return None if measured.centres(clear, size) else (clear, before, False)


def _width(grid: Grid, shape: tuple[int, ...]) -> int:
    """Return the number of columns of an output of this shape, (K, h, w) or (h, w, K)."""
    return shape[1] if grid.kind == "channels last" else shape[2]


def _tokens_under(
    view: View, layers: Mapping[str, Measured], shapes: Mapping[str, tuple[int, ...]], size: Size
) -> dict[str, Grid]:
    """Choose a grid for each layer of tokens under a view. Layers that have none are left out.

    Layers with the same number of tokens get the same grid. The early layers show it better than
    the late layers, in which every token has seen all others. So a grid that an early layer
    contradicts, and that no layer fits exactly, is not chosen for the late layers either.
    """
    fits: dict[str, dict[Grid, Fit]] = {}
    missed: set[tuple[int, Grid]] = set()
    exact: set[tuple[int, Grid]] = set()
    votes: dict[int, dict[Grid, list[float]]] = defaultdict(lambda: defaultdict(list))
    for name, measured in layers.items():
        every = {grid: measured.fit(grid, size, view) for grid in measured.grids}
        fits[name] = {grid: fit for grid, fit in every.items() if fit and fit.good}
        count = shapes[name][0]
        missed |= {(count, grid) for grid, fit in every.items() if fit and fit.missed}
        exact |= {(count, grid) for grid, fit in every.items() if fit and fit.exact}
    for name, good in fits.items():
        count = shapes[name][0]
        fits[name] = {
            grid: fit for grid, fit in good.items() if (count, grid) not in missed - exact
        }
        for grid, fit in fits[name].items():
            votes[shapes[name][0]][grid].append(fit.distance)
    likely = {shapes[name][0]: measured.grids for name, measured in layers.items()}
    elected = {_elected(of_count, likely[count]) for count, of_count in votes.items()}
    chosen = {}
    for name, good in fits.items():
        # The order of tokens may change between layers: then the fit of a layer must be exact.
        usable = [
            (grid not in elected, fit.distance, turn, grid)
            for turn, (grid, fit) in enumerate(good.items())
            if grid in elected or fit.exact
        ]
        if usable:
            chosen[name] = min(usable)[-1]
    return chosen


def _elected(votes: Mapping[Grid, Sequence[float]], likely: Sequence[Grid]) -> Grid:
    """Choose a grid among those that fit at least half as many layers as any other grid.

    The chosen grid has the likeliest rows and columns, which leave the fewest tokens over, and
    among these the arrangement that fits best. Fewer rows and columns can always be placed among
    more tokens, and one of the many ways to place them fits by chance.
    """
    most = max(map(len, votes.values()))
    often = {grid: sum(gaps) / len(gaps) for grid, gaps in votes.items() if 2 * len(gaps) >= most}
    first = next(grid for grid in likely if grid in often)
    alike = [grid for grid in often if (grid.height, grid.width) == (first.height, first.width)]
    return min(alike, key=lambda grid: often[grid])


def _turned_tokens(measured: Measured, size: Size) -> Grid | None:
    """Return the grid of a layer of tokens that show a view of their own, such as tokens column by
    column; None unless all patches show the same one."""
    first = measured.grids[0]
    for grid in measured.grids:
        if (grid.height, grid.width) != (first.height, first.width):
            continue
        centres = measured.centres(grid, size)
        own = view_of(centres) if centres else None
        fitting = own and measured.fit(grid, size, own)
        if own and fitting and fitting.hits == 1 and fitting.follows >= FOLLOWS:
            return _placed(grid, own, size)
    return None


def _placed(grid: Grid, view: View, size: Size) -> Grid:
    """Return the upright grid of a layer whose rows and columns have that view."""
    placement = view.placement(size)
    if placement is None:
        return grid
    height, width = grid.height, grid.width
    if placement.transposed:
        height, width = width, height
    return replace(grid, height=height, width=width, placement=placement)


def _why_not(measured: Measured, shape: tuple[int, ...], size: Size) -> str:
    """Return the reason why a layer has no grid, as a clause."""
    if not measured.moves:
        return f"its output {shape} does not change with the image"
    if any(measured.centres(grid, size) for grid in measured.grids):
        return (
            f"its output {shape} does not lie on the image: no scale, shift or turn explains where "
            "it changes, as if its positions were rolled, repeated or in windows, or as if the "
            "part that they show depended on the image"
        )
    return (
        f"its output {shape} does not lie on the image: a change at one place of the image does "
        "not show at one place of the output"
    )
