"""How often maps that know nothing of a photo are called better, or worse, than chance.

    python -m bench.chance [--maps 200] [--metrics energy pointing …] [--things] [--write]

Random parts of nine photos, explained by the embedded model with Grad-CAM of the predicted class;
with `--things`, photos of 64 × 64 pixels with a disc, a cross or a triangle at any place, explained
by a small network that was trained on them, of which metrics of many passes take seconds a photo.
Each wrong map is judged on a photo by every metric that gives a verdict on chance:

- `another photo`: the map of a part of another photo, of another class
- `shifted`: the photo's own map, moved along both sides by a random number of pixels, around the
  edges; of things, by a quarter of each side or more
- `mirrored`: the photo's own map from left to right
- `rotated`: the photo's own map, turned by a random angle

The region of `energy` and `pointing` is the box around what is hot in the photo's own map. Called
better should be 5 % of them; `own` is how often the photo's own map is, which should be many.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from bench.drift_photos import Pixels, crops, load_model, photos
from bench.record import record
from bench.shortcuts import things, trained
from cam import ClassTarget, Question, evaluate, explain_batch
from cam.drawing.heatmap import hot_region, minmax
from cam.drawing.placement import Float, resize
from cam.evaluation.baselines import turned
from cam.evaluation.metrics import METRICS, MetricOptions
from cam.evaluation.verdict import verdict
from cam.outputs.reading import Reading
from tests.cam.clusters.scenes import batch_of

Change = Callable[[Float, np.random.Generator], Float]
GIVING: Final = [
    name
    for name, metric in METRICS.items()
    if "random" in metric.baselines and not metric.maps(MetricOptions())
]
"""Metrics with a verdict on chance that score a map alone."""


def shifted(values: Float, rng: np.random.Generator) -> Float:
    by = [int(rng.integers(0, side)) for side in values.shape]
    return np.roll(values, by, (0, 1))


def shifted_far(values: Float, rng: np.random.Generator) -> Float:
    """Move a map by a quarter of each side or more: by less it lies on its small object still."""
    by = [int(rng.integers(side // 4, side - side // 4 + 1)) for side in values.shape]
    return np.roll(values, by, (0, 1))


def mirrored(values: Float, rng: np.random.Generator) -> Float:
    return np.ascontiguousarray(values[:, ::-1])


def rotated(values: Float, rng: np.random.Generator) -> Float:
    return turned(values, float(rng.uniform(0, 2 * np.pi)), mirrored=False)


CHANGES: Final[dict[str, Change]] = {
    "shifted": shifted,
    "mirrored": mirrored,
    "rotated": rotated,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--maps", type=int, default=200)
    parser.add_argument("--metrics", nargs="*", choices=GIVING, default=GIVING)
    parser.add_argument("--things", action="store_true")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = [
        {"maps": kind, "metric": metric, "better": better, "worse": worse, "of": arguments.maps}
        for kind, found in calibrated(
            of_things(arguments.maps) if arguments.things else of_photos(arguments.maps),
            arguments.metrics,
        ).items()
        for metric, (better, worse) in found.items()
    ]
    table = Table("maps", "metric", "better", "worse")
    for row in rows:
        shares = (f"{row[side] / row['of']:.1%}" for side in ("better", "worse"))
        table.add_row(row["maps"], row["metric"], *shares)
    Console(width=100).print(table)
    if arguments.write:
        record("chance-things" if arguments.things else "chance", rows=rows)


@dataclass(frozen=True, eq=False)
class Judged:
    """A model and the photos on which metrics are judged."""

    module: nn.Module
    normalise: Callable[[NDArray[np.uint8]], Tensor]
    """Makes the model's input of photos (N, H, W, 3)."""
    layer: str
    reading: Reading
    pictures: Sequence[Pixels]
    sources: int
    """Every so many pictures are parts of the same photo; 1 if none are."""
    rng: np.random.Generator


def of_photos(count: int) -> Judged:
    rng, served, sources = np.random.default_rng(0), load_model(), photos()
    pictures = [crops(each, rng)[0] for each in islice(cycle(sources), count)]
    return Judged(
        served.module, served.normalise, served.default, served.reading, pictures, len(sources), rng
    )


def of_things(count: int) -> Judged:
    parts = [things(kind, -(-count // 3), 7) for kind in range(3)]
    pictures = [each for three in zip(*parts, strict=True) for each in three][:count]
    return Judged(
        trained(things, 0, ()), batch_of, "11", Reading(), pictures, 1, np.random.default_rng(0)
    )


def calibrated(judged: Judged, metrics: Sequence[str]) -> dict[str, dict[str, tuple[int, int]]]:
    """Return how many of the wrong maps of each kind, and of the own ones, each metric calls better
    and worse than chance."""
    rng, count = judged.rng, len(judged.pictures)
    maps, classes = explained(judged)
    found: dict[str, dict[str, tuple[int, int]]] = {}
    changes = CHANGES if judged.sources > 1 else {**CHANGES, "shifted": shifted_far}
    for kind in ("own", "another photo", *changes):
        counts = {metric: [0, 0] for metric in metrics}
        for number, pixels in enumerate(judged.pictures):
            values = maps[number]
            if kind == "another photo":
                others = [
                    each
                    for each in range(count)
                    if classes[each] != classes[number]
                    and (judged.sources == 1 or (each - number) % judged.sources)
                ]
                values = maps[int(rng.choice(others))]
            elif kind != "own":
                values = changes[kind](values, rng)
            said = verdicts(judged, pixels, values, classes[number], box_of(maps[number]), metrics)
            for metric, words in said.items():
                counts[metric][0] += words == "better than chance"
                counts[metric][1] += words == "worse than chance"
        found[kind] = {metric: (one, other) for metric, (one, other) in counts.items()}
    return found


def explained(judged: Judged) -> tuple[list[Float], list[int]]:
    """Return the map of each photo at its size, and the predicted class."""
    question, pictures = Question((ClassTarget(),), "gradcam", (judged.layer,)), judged.pictures
    maps, classes = [], []
    for start in range(0, len(pictures), 16):
        images = judged.normalise(np.stack(pictures[start : start + 16])).contiguous()
        for answer in explain_batch(judged.module, images, [question] * len(images)):
            assert not isinstance(answer, Exception)
            (found,) = answer.explanations
            assert isinstance(found.target, ClassTarget)
            assert found.target.index is not None
            maps.append(resize(found.map, *images.shape[-2:]))
            classes.append(found.target.index)
    return maps, classes


def box_of(values: Float) -> NDArray[np.bool_]:
    """Return the pixels in the box around what is hot in a map."""
    region = np.zeros(values.shape, np.bool_)
    hot = hot_region(minmax(values), 0.5)
    assert hot is not None
    region[hot.slices] = True
    return region


def verdicts(
    judged: Judged,
    pixels: Pixels,
    values: Float,
    index: int,
    region: NDArray[np.bool_],
    metrics: Sequence[str],
) -> dict[str, str]:
    """Return what each metric says of a map beside chance."""
    image = judged.normalise(np.ascontiguousarray(pixels)[None])[0]
    options = MetricOptions(baselines=("random",), region=region)
    scores = evaluate(
        judged.module,
        image,
        values,
        target=index,
        metrics=metrics,
        options=options,
        reading=judged.reading,
    )
    return {name: verdict(name, score) or "" for name, score in scores.items()}


if __name__ == "__main__":
    main()
