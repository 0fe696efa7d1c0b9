"""ODAM beside D-RISE on a small detector that this script trains, on photos that it composes.

    python -m bench.detectors

For every object that is found: how much of ODAM's energy lies in its own box and in any other
object's, forward passes a box, and the insertion score (the area under the box's score as pixels
come back, hottest first, into the blurred photo) of both methods.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torchvision.ops import box_iou
from torchvision.transforms.v2.functional import gaussian_blur

import cam
from cam.drawing.placement import resize
from cam.layers import level_layers
from cam.outputs.outputs import outputs_of, size_of
from tests.zoo.detectors import scenes, trained

STEPS = 20
"""Of an insertion curve."""


def objects(model: nn.Module, image: Tensor, truth: Tensor) -> list[cam.ClassTarget]:
    """The best detection of each true box that one overlaps by half."""
    with torch.no_grad():
        (said,) = outputs_of(model(image[None]), size=size_of(image[None]))
    assert said.detections is not None
    found = []
    for overlaps in box_iou(truth, said.detections.boxes):
        if len(overlaps) and overlaps.max() >= 0.5:
            best = int(overlaps.argmax())
            left, top, right, bottom = said.detections.boxes[best].tolist()
            index = int(said.detections.labels[best])
            found.append(cam.ClassTarget(index, box=(left, top, right, bottom)))
    return found


def energy(heat: np.ndarray, box: tuple[float, ...]) -> float:
    """The share of the heat that lies in a box."""
    left, top, right, bottom = (round(edge) for edge in box)
    return float(heat[max(top, 0) : bottom, max(left, 0) : right].sum() / heat.sum())


def insertion(model: nn.Module, image: Tensor, target: cam.ClassTarget, heat: np.ndarray) -> float:
    """The mean score of the box while the photo's pixels replace blurred ones, hottest first."""
    configuration = np.argsort(-heat, axis=None, kind="stable")
    ranks = np.empty(configuration.size)
    ranks[configuration] = np.arange(configuration.size) / configuration.size
    rank = torch.tensor(ranks.reshape(heat.shape))
    blurred = gaussian_blur(image, [31, 31], [10.0, 10.0])
    shares = torch.linspace(0, 1, STEPS + 1)
    images = torch.stack([torch.where(rank < share, image, blurred) for share in shares])
    with torch.no_grad():
        said = outputs_of(model(images), size=size_of(images))
    return float(torch.stack([target.score(each) for each in said]).mean())


def measure(model: nn.Module, count: int, masks: int) -> Iterator[dict[str, float]]:
    """One record for each object found in `count` scenes."""
    images, truths = scenes(count, seed=1000)
    levels = level_layers(cam.survey(model, images[:1]))
    for image, truth in zip(images, truths, strict=True):
        targets = objects(model, image, truth["boxes"])
        if len(targets) < 2:
            continue
        passes = 0

        def counted(*_: object) -> None:
            nonlocal passes
            passes += 1

        cam.explain(model, image[None], target=targets, layer=levels, method="odam")
        handle = model.register_forward_pre_hook(counted)
        maps = cam.explain(model, image[None], target=targets, layer=levels, method="odam")
        handle.remove()
        black = cam.explain(model, image[None], target=targets, method="drise", budget=masks)
        for turn, target in enumerate(targets):
            heat, other = resize(maps[turn].map, *image.shape[-2:]), black[turn].map
            own = energy(heat, target.box or ())
            rest = [energy(heat, each.box or ()) for each in targets if each is not target]
            yield {
                "own": own,
                "other": max(rest),
                "passes": passes / len(targets),
                "odam": insertion(model, image, target, heat),
                "drise": insertion(model, image, target, other),
            }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenes", type=int, default=12)
    parser.add_argument("--masks", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    records = list(measure(trained(given.steps), given.scenes, given.masks))
    found = {
        "objects": len(records),
        "own energy, median": float(np.median([each["own"] for each in records])),
        "own energy at least 0.8, share": float(np.mean([each["own"] >= 0.8 for each in records])),
        "own above every other, share": float(
            np.mean([each["own"] > each["other"] for each in records])
        ),
        "forward passes a box": float(np.mean([each["passes"] for each in records])),
        "insertion, odam": float(np.mean([each["odam"] for each in records])),
        "insertion, drise": float(np.mean([each["drise"] for each in records])),
        "drise masks": given.masks,
    }
    print(json.dumps(found, indent=2))
    if given.out:
        given.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
