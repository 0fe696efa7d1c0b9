"""Judge from the responses of all layers which grid each of them has, and where it lies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Final

from torch import Tensor

from cam.hooks.calls import Turns
from cam.hooks.grids import Grid, Location, Size, grid_of_map
from cam.positions.responses import FOLLOWS, HITS, PLAIN, Fit, Patch, Peaks, peaks_of
from cam.positions.views import Centres, View, centres_of, part_view, view_of

TELLING: Final = 25
"""Least number of positions of a feature map that is refused if its responses tell nothing. With
fewer positions, each position sees the whole image many times over, and padding decides where the
output changes most. Such a layer has the view of the layers before it."""
NEAR: Final = 0.8
"""Greatest difference in cells between a layer's view and a usual one that is taken for rounding in
strides and padding, and for the responses' own size."""
SMALL: Final = 32
"""Least side of an image in pixels on which a patch tells more than the cell where it is."""
LONG: Final = 1.9
"""Least ratio of the sides of a cell of a map of few positions at which it is doubted that the map
has the view of the layers before it."""
FEW_CELLS: Final = 16
"""Number of rows or columns below which it is `BEHIND`: few patches lie away from the borders."""
BEHIND: Final = 1.25
"""The same for the view of the layers before it: strided convolutions with padding shift their
output by up to half a cell."""
GREAT: Final = 0.25
"""Least difference, as a share of the side, at which a layer's own view is taken instead of that of
the layers before it. Random weights let late layers respond beside the patch."""
SHIFT: Final = 0.08
"""Greatest difference, as a share of the side, between a layer's view and that of the layers before
it that is taken for the sum of such roundings (Inception's convolutions without padding)."""


@dataclass(frozen=True, eq=False)
class Measured:
    """What is known of one layer from the changes of the image."""

    grids: Sequence[Grid]
    """The grids that its shape allows, the likeliest first."""
    moved: Mapping[str, Tensor]
    """Kind of grid → responses, as `cam.positions.responses.responses` returns them."""
    patches: Sequence[Patch]
    peaks: dict[Grid, Peaks] = field(default_factory=dict)

    def fit(self, grid: Grid, size: Size, view: View = PLAIN) -> Fit | None:
        """Return how well a grid fits under a view; None if the layer did not respond."""
        if grid.kind not in self.moved:
            return None
        if grid not in self.peaks:
            self.peaks[grid] = peaks_of(grid, self.moved[grid.kind], self.patches)
        return self.peaks[grid].fit(size, view)

    def distance(self, grid: Grid, size: Size, view: View) -> float:
        """Return the mean distance of the responses from their patches, in positions."""
        found = self.fit(grid, size, view)
        return found.distance if found else inf

    def centres(self, grid: Grid, size: Size) -> Centres | None:
        """Return where the layer responds on a grid; None if its responses are not sharp."""
        if grid.kind not in self.moved:
            return None
        moved = self.moved[grid.kind]
        if grid.kind == "tokens":
            moved = grid.apply(moved[..., None])[:, 0]
        found = centres_of(moved, [patch.centre(size) for patch in self.patches])
        return found if found.sharp else None


def located_by(
    layers: Mapping[str, Measured],
    shapes: Mapping[str, tuple[int, ...]],
    size: Size,
    seen: Callable[[Turns], Patch],
    within: Mapping[str, Turns],
    parts: Mapping[Turns, Patch],
) -> dict[str, Location]:
    """Return the locations of layers.

    Feature maps are judged first, in execution order: a layer with sharp responses shows its own
    view of the image, and a later layer, whose positions see too much of the image, has the view of
    the layers before it. Tokens are judged under the views of the feature maps. A network that runs
    several times may see another part of the image each time, so a view counts only for layers in
    the same turn.

    Args:
        layers: name → what was measured, in execution order.
        shapes: name → shape of the output without the batch dimension.
        size: height and width of the image.
        seen: returns the part of the image at which the layers of a turn look. It is called if a
            layer shows a part of the image.
        within: name → the turns in which the layer runs, see `cam.hooks.calls.turns_of`.
        parts: turns → the part of the image at which its layers look, as far as known.
    """
    found: dict[str, Location] = {}
    views: dict[str, View] = {}
    """The view of the layers before each layer of tokens."""
    shown_in: list[tuple[Turns, View]] = []
    """The views that layers have shown so far, the latest last."""
    for name, measured in layers.items():
        turns = within[name]
        around = [view for each, view in shown_in if each == turns[: len(each)]]
        own = not (turns or turns in parts) or any(each == turns for each, _ in shown_in)
        known = around if own else []  # the first layer of a turn may see another part
        before = around[-1] if around else PLAIN
        if not own and (part := parts.get(turns)):
            own, before = True, part_view(part.region, size)
        if len(shapes[name]) == 2:
            views[name] = before
            continue
        shown = _shown_by(measured, size, before, known)
        if shown is None:
            shown = _assumed(measured, shapes[name], size, before) if own else None
        if shown is None:
            found[name] = Location(shapes[name], None, _why_not(measured, shapes[name], size))
            continue
        grid, view, sharp = shown
        if view != before and view not in known and view.shows_a_part:
            view = view.widened(seen(turns).region, size)
        found[name] = Location(shapes[name], _placed(grid, view, size))
        if sharp:
            shown_in = [*(each for each in shown_in if each != (turns, view)), (turns, view)]
    for view in dict.fromkeys(views.values()):
        behind = {name: layers[name] for name, each in views.items() if each == view}
        grids = _tokens_under(view, behind, shapes, size)
        found |= {name: Location(shapes[name], _placed(grids[name], view, size)) for name in grids}
    for name in views.keys() - found.keys():
        turned = _turned_tokens(layers[name], size)
        why = None if turned else _why_not(layers[name], shapes[name], size)
        found[name] = Location(shapes[name], turned, why)
    return found


def _shown_by(
    measured: Measured, size: Size, before: View, known: Sequence[View]
) -> tuple[Grid, View, bool] | None:
    """Return the grid and the view that a feature map's responses show, and whether they are narrow
    enough to show it to later layers; None if they show none."""
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
        if own and (not known or (own.differs(before) > GREAT and fitting.hits < HITS)):
            view = _rounded(own, grid, before, known)
        elif fitting.good and (own or not centres or not centres.narrow or fitting.hits >= HITS):
            view = before
        elif centres is None:
            view = _turned(measured, grid, size, before)
        if view is not None:
            shown = centres is not None and centres.narrow
            fits.append((measured.distance(grid, size, view), grid, view, shown))
    return min(fits, key=lambda each: each[0])[1:] if fits else None


def _rounded(own: View, grid: Grid, before: View, known: Sequence[View]) -> View:
    """Return the known view from which a layer's own view differs by rounding alone, or the own
    view if there is none."""
    for view in dict.fromkeys((before, *reversed(known), PLAIN, *PLAIN.turned())):
        behind = bool(known) and view == before
        shift = SHIFT if behind else 0.0
        axes = ((own.rows, view.rows, grid.height), (own.columns, view.columns, grid.width))
        if own.transposed == view.transposed and all(
            one.differs(other) <= max(_near(cells, behind) / cells + 0.01, shift)
            for one, other, cells in axes
        ):
            return view
    return own


def _near(cells: int, behind: bool) -> float:
    return BEHIND if behind or cells < FEW_CELLS else NEAR


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


def _tokens_under(
    view: View, layers: Mapping[str, Measured], shapes: Mapping[str, tuple[int, ...]], size: Size
) -> dict[str, Grid]:
    """Choose a grid for each layer of tokens under a view. Layers that have none are left out.

    Layers with the same number of tokens get the same grid. The early layers show it better than
    the late layers, in which every token has seen all others.
    """
    fits: dict[str, dict[Grid, Fit]] = {}
    votes: dict[int, dict[Grid, list[float]]] = defaultdict(lambda: defaultdict(list))
    for name, measured in layers.items():
        every = {grid: measured.fit(grid, size, view) for grid in measured.grids}
        fits[name] = {grid: each for grid, each in every.items() if each and each.good}
        for grid, each in fits[name].items():
            votes[shapes[name][0]][grid].append(each.distance)
    likely = {shapes[name][0]: measured.grids for name, measured in layers.items()}
    elected = {_elected(of_count, likely[count]) for count, of_count in votes.items()}
    found = {}
    for name, good in fits.items():
        # The order of tokens may change between layers: then the fit of a layer must be exact.
        usable = [
            (grid not in elected, each.distance, turn, grid)
            for turn, (grid, each) in enumerate(good.items())
            if grid in elected or each.exact
        ]
        if usable:
            found[name] = min(usable)[-1]
    return found


def _elected(votes: Mapping[Grid, Sequence[float]], likely: Sequence[Grid]) -> Grid:
    """Choose a grid among those that fit at least half as many layers as any other grid.

    The chosen grid has the likeliest rows and columns, which leave the fewest tokens over, and
    among these the arrangement that fits best. Fewer rows and columns can always be placed among
    more tokens, and one of the many ways to place them fits by chance.
    """
    most = max(map(len, votes.values()))
    often = {grid: sum(each) / len(each) for grid, each in votes.items() if 2 * len(each) >= most}
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
    if not any(bool(each.any()) for each in measured.moved.values()):
        return f"its output {shape} does not change with the image"
    if any(measured.centres(grid, size) for grid in measured.grids):
        return (
            f"its output {shape} does not lie on the image: no scale, shift or turn explains where "
            "it changes, as if its positions were rolled, repeated or in windows"
        )
    return (
        f"its output {shape} does not lie on the image: a change at one place of the image does "
        "not show at one place of the output"
    )
