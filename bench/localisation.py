"""The grid pointing game: whether the heat is on the photo that shows the class; and what a map
costs.

    python -m bench.localisation [--model shapes] [--photos 24] [--layer blocks.5]
                                 [--write docs/methods.md] [METHOD …]

Böhle et al., CVPR 2021: four photos of different classes, of each of which the model is sure, are
one image of 2 × 2 cells, and a map of the class of one of them should have its heat in that cell.
Each photo is asked for once, at a random place, beside three photos of other classes and other
sources. For each method at its default layer: the share of the heat above 0 in the right cell, as a
mean over the photos with its bootstrap interval of 95 %, and the worst (chance is 0.25); and the
time on the CPU, in predictions of the same image. `--write` replaces the model's table in a
document, row by row.

The models (`bench/grid_cells.py`): the embedded one, on parts of the photos that scikit-image and
scikit-learn ship, and a small network that this command trains on drawn shapes.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from pathlib import Path
from time import process_time
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console

from bench.grid_cells import Asked, Cell, Pixels, asked_of
from cam import METHODS, explain
from cam.drawing.placement import resize
from cam.errors import CamError
from service.models.catalog import EMBEDDED

BUDGETS: Final = {
    "rise": 256,
    "scorecam": 128,
    "opticam": 50,
    "occlusion": 100,
    "integratedgradients": 25,
    "smoothgrad": 10,
    "smoothgradcam++": 10,
}
"""Passes of methods of many passes, fewer than their own budgets: 24 images of 448 × 448 pixels are
explained."""
LEFT_OUT: Final = (
    *("sscam", "iscam", "odam", "drise", "lrp"),
    *("rollout", "chefer", "agcam", "legrad", "gradeclip", "attnlrp"),
)
"""Methods of 2,560 passes, and those of detectors and transformers."""
RESAMPLES: Final = 2000


@dataclass(frozen=True)
class Grid:
    """An image of 2 × 2 cells."""

    pixels: Pixels
    index: int
    """The class that is asked for."""
    row: int
    column: int


@dataclass(frozen=True)
class Measured:
    """What one method's maps are like."""

    method: str
    layer: str
    shares: list[float]
    times: float
    """Time on the CPU, in predictions."""

    @property
    def interval(self) -> tuple[float, float]:
        """Interval of the mean share that holds 95 % of the means of resampled photos."""
        rng = np.random.default_rng(0)
        shares = np.array(self.shares)
        means = shares[rng.integers(len(shares), size=(RESAMPLES, len(shares)))].mean(1)
        low, high = np.quantile(means, [0.025, 0.975]).tolist()
        return low, high


def grids(cells: list[Cell]) -> list[Grid]:
    """Return a grid for each cell."""
    found = []
    for number, cell in enumerate(cells):
        rng = np.random.default_rng([0, number])
        chosen = [cell]
        for other in rng.permutation(len(cells)):
            each = cells[other]
            taken = {one.index for one in chosen}, {one.source for one in chosen}
            if len(chosen) < 4 and each.index not in taken[0] and each.source not in taken[1]:
                chosen.append(each)
        assert len(chosen) == 4, "too few classes or sources"
        place = int(rng.integers(4))
        chosen[0], chosen[place] = chosen[place], chosen[0]
        rows = [np.concatenate([one.pixels for one in chosen[at : at + 2]], 1) for at in (0, 2)]
        found.append(Grid(np.concatenate(rows), cell.index, place // 2, place % 2))
    return found


def share_inside(heat: NDArray[np.float32], grid: Grid) -> float:
    """Return the share of the heat above 0 in the right cell; 0 if there is none."""
    height, width = grid.pixels.shape[:2]
    large = resize(heat, height, width).clip(min=0).astype(np.float64)
    total = float(large.sum())
    high, wide = height // 2, width // 2
    top, left = grid.row * high, grid.column * wide
    return float(large[top : top + high, left : left + wide].sum()) / total if total else 0.0


def measure(asked: Asked, images: list[Grid], method: str, layer: str) -> Measured | None:
    """Measure a method; None if the model is not suited."""
    shares: list[float] = []
    took = plain = 0.0
    named = asked.layers(method) if layer == "auto" else (layer,)
    used = "input"
    for grid in images:
        batch = asked.batch(grid.pixels[None])
        started = process_time()
        with torch.inference_mode():
            asked.model(batch)
        between = process_time()
        try:
            (found,) = explain(
                asked.model,
                batch,
                target=grid.index,
                method=method,
                layer=named or "auto",
                budget=BUDGETS.get(method),
            )
        except CamError as error:
            Console().print(f"{method}: {error}")
            return None
        plain += between - started
        took += process_time() - between
        shares.append(share_inside(found.map, grid))
        used = found.layer
    return Measured(method, used, shares, took / plain)


def written(found: list[Measured], former: str) -> str:
    """As a table in Markdown, with the rows of the former one that were not measured anew."""
    rows = {
        row.split("`")[1]: f"| `{row.partition('`')[2]}"
        for row in former.splitlines()
        if "| `" in row
    }
    for each in found:
        low, high = each.interval
        rows[each.method] = (
            f"| `{each.method}` | `{each.layer}` | {np.mean(each.shares):.2f} | "
            f"{low:.2f} … {high:.2f} | {min(each.shares):.2f} | {each.times:.1f} × |"
        )
    head = [
        "| tier | method | layer | mean | 95 % | worst | time |",
        "|---|---|---|---|---|---|---|",
    ]
    lines = [f"| {tier} {row}" for tier, row in in_tiers(list(rows.values()))]
    return "\n".join([*head, *lines]) + "\n"


def in_tiers(rows: list[str]) -> list[tuple[int, str]]:
    """Return rows of the table, each with its tier, the quickest of a tier first.

    A tier has the best of the methods that are left, and those whose interval reaches its interval:
    their order would be another one for other photos. Methods whose time is not known come last.
    """
    left = sorted(rows, key=lambda row: -float(row.split("|")[3]))
    found: list[tuple[int, str]] = []
    tier = 0
    while left:
        tier += 1
        least = float(left[0].split("|")[4].split("…")[0])
        alike = [row for row in left if float(row.split("|")[4].split("…")[1]) >= least]
        left = [row for row in left if row not in alike]
        alike.sort(key=times_of)
        found += [(tier, row) for row in alike]
    return found


def times_of(row: str) -> float:
    """Return the time in a row, in predictions; infinity if it is not known."""
    time = row.split("|")[6].strip().removesuffix(" ×")
    return float(time) if time[0].isdigit() else math.inf


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("methods", nargs="*", metavar="METHOD")
    parser.add_argument("--model", default=EMBEDDED.name, choices=(EMBEDDED.name, "shapes"))
    parser.add_argument("--photos", type=int, default=24)
    parser.add_argument("--layer", default="auto")
    parser.add_argument("--write", type=Path, metavar="DOCUMENT")
    given = parser.parse_args()
    asked = asked_of(given.model, given.photos)
    images = grids(asked.cells)
    console = Console()
    console.print(f"{len(images)} photos of {len({each.index for each in asked.cells})} classes")
    begin, end = f"<!-- localisation {given.model} -->\n", "<!-- end of localisation -->"
    for method in given.methods or [name for name in METHODS if name not in LEFT_OUT]:
        each = measure(asked, images, method, given.layer)
        if each is None:
            continue
        low, high = each.interval
        console.print(
            f"{method} {each.layer}: {np.mean(each.shares):.3f} ({low:.3f} … {high:.3f}), worst "
            f"{min(each.shares):.3f}, {each.times:.1f} ×"
        )
        if given.write:  # it takes a while, and may be stopped
            before, _, rest = given.write.read_text().partition(begin)
            former, _, after = rest.partition(end)
            given.write.write_text(f"{before}{begin}{written([each], former)}{end}{after}")


if __name__ == "__main__":
    main()
