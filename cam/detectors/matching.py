"""Which detection of a detector a target is about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from torch import Tensor

from cam.errors import NothingDetected, TargetMismatch
from cam.outputs.output import Detections, Output
from cam.targets import ClassTarget

OVERLAP: Final = 0.5
"""Least intersection over union at which a detection counts as the same one."""


def resolved(target: ClassTarget, output: Output) -> ClassTarget:
    """Return the target with the class and the box of the detection that it asks about.

    Raises:
        TargetMismatch: if it asks for what only other models have.
        NothingDetected: if there is no such detection.
    """
    detections = output.detections
    assert detections is not None
    if target.minus is not None or target.of == "probability" or target.mask is not None:
        raise TargetMismatch(
            "the model detects boxes; a target there has a class, a box and against alone"
        )
    labels = sorted(set(detections.labels.tolist()))
    usable = detections.scores.new_ones(len(detections.scores)).bool()
    if target.index is not None:
        usable &= detections.labels.eq(target.index)
    if target.box is not None:
        usable &= overlap_with(detections.boxes, target.box) >= OVERLAP
    if not usable.any():
        sought = "" if target.index is None else f" of class {target.index}"
        where = "" if target.box is None else " that overlaps the box by half"
        seen = f"it finds classes {', '.join(map(str, labels))}" if labels else "it finds none"
        raise NothingDetected(
            f"the model finds nothing{sought}{where}; {seen}"
            if sought or where
            else "the model detects nothing in this image"
        )
    rank = detections.scores if target.box is None else overlap_with(detections.boxes, target.box)
    order = rank.detach().where(usable, -1.0).argsort(descending=True, stable=True)
    if target.rank >= int(usable.sum()):
        raise NothingDetected(
            f"the model finds {int(usable.sum())} of them; there is no number {target.rank + 1}"
        )
    best = int(order[target.rank])
    left, top, right, bottom = (float(edge) for edge in detections.boxes[best].tolist())
    box = (left, top, right, bottom)
    return replace(target, index=int(detections.labels[best]), box=box, rank=0)


def find(target: ClassTarget, detections: Detections) -> int | None:
    """Return the index of the detection that a resolved target is about; None if no detection of
    its class overlaps its box by `OVERLAP`."""
    assert target.box is not None
    overlaps = overlap_with(detections.boxes.detach(), target.box)
    usable = (detections.labels == target.index) & (overlaps >= OVERLAP)
    if not usable.any():
        return None
    return int(overlaps.where(usable, -1.0).argmax())


def overlap_with(boxes: Tensor, box: Sequence[float]) -> Tensor:
    """Return the intersection over union (N,) of boxes (N, 4) with one box, in pixels.

    A side counts as at least one pixel: detectors clip boxes to the image, and a box without an
    area, such as of FCOS, would not overlap even itself.
    """
    first, other = _at_least_a_pixel(boxes), _at_least_a_pixel(boxes.new_tensor(box))
    low = first[..., :2].maximum(other[:2])
    high = first[..., 2:].minimum(other[2:])
    shared = (high - low).clamp(min=0).prod(1)
    area = (first[:, 2:] - first[:, :2]).prod(1)
    own = (other[2:] - other[:2]).prod()
    return shared / (area + own - shared)


def _at_least_a_pixel(boxes: Tensor) -> Tensor:
    """Return boxes (…, 4) whose sides below one pixel are widened to it around their middle."""
    low, high = boxes[..., :2], boxes[..., 2:]
    middle = (low + high) / 2
    widened: Tensor = boxes.clone()
    widened[..., :2], widened[..., 2:] = low.minimum(middle - 0.5), high.maximum(middle + 0.5)
    return widened
