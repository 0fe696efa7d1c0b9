"""What to explain: the scalar that is differentiated.

A target is resolved against what the model said about an image (its class filled in, its values
checked), and then makes the score y of what the model says about it, or about a changed image.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate

from cam.errors import (
    BoxOutside,
    ClassOutOfRange,
    MaskEmpty,
    NothingDetected,
    SelfContrast,
    TargetMismatch,
)
from cam.likeness import SimilarityTarget as SimilarityTarget
from cam.likeness import UnitTarget as UnitTarget
from cam.outputs.output import Detections, Output

OVERLAP = 0.5
"""Least intersection over union of a detection that is still the same one."""


@dataclass(frozen=True)
class ClassTarget:
    """The number y that is explained, made of what the model said about classes.

    Of a classifier's logits z, y = z_index. With `minus`, "why this class and not that":
    y = z_index − z_minus. With `against`, "what speaks against it": −y, whose gradient is the
    counterfactual one of Grad-CAM (Selvaraju et al. 2017, section 3.3). With
    `of = "probability"`, the model's probabilities stand in for logits: where they are a softmax's,
    what raises the competitors counts, too.

    A model of one output has two classes, the negative one and the positive one: of a logit z their
    logits are −z and z, of a probability p they are 1 − p and p.

    Of a segmenter, the same numbers summed over the pixels of `mask` or `box`; without either,
    over those where the class wins (Vinogradova et al., "Towards Interpretable Semantic
    Segmentation via Gradient-weighted Class Activation Mapping", AAAI 2020, equation 2).

    Of a detector, the score of one detection: the one of the class that overlaps `box` best, by
    half or more; without a box the best of the class, without a class the best of all. A changed
    image in which nothing of the class overlaps it any more has y = 0.
    """

    index: int | None = None
    """The class; None for the predicted one."""
    minus: int | None = None
    """The class that it is contrasted with."""
    against: bool = False
    of: Literal["logit", "probability"] = "logit"
    box: tuple[float, float, float, float] | None = None
    """Left, top, right, bottom in the input's pixels."""
    mask: Tensor | None = field(default=None, compare=False)
    """bool (H, W) of the input's size."""
    rank: int = 0
    """Of a detector, where neither class nor box is named: 0 for the best detection, 1 for the
    second …"""
    background: int | None = None
    """The class of a segmenter that is never the predicted one."""

    layers: tuple[str, ...] = field(default=(), init=False, repr=False)

    def resolve(self, output: Output) -> ClassTarget:
        """The same with its class filled in (and its box, of a detector), given what the model
        said.

        Raises:
            ClassOutOfRange: if an index is not in 0 … C-1.
            SelfContrast: if a class would be contrasted with itself.
            TargetMismatch: if the model says nothing of the kind that is asked about.
            NothingDetected: if there is no such detection.
            MaskEmpty: if no pixel is left to sum over.
            BoxOutside: if the box has no pixel of the image.
        """
        if output.detections is not None:
            return self._detected(output.detections)
        where = self.box is not None or self.mask is not None
        if output.logits is not None and where:
            raise TargetMismatch(
                "the model classifies whole images; a box or mask is for segmenters and detectors"
            )
        values = output.logits if output.segments is None else output.segments
        assert values is not None
        classes = len(values)
        for index in (self.index, self.minus):
            if index is not None and not 0 <= index < classes:
                raise ClassOutOfRange(
                    f"class index {index} is out of range; the model has classes 0 to {classes - 1}"
                )
        found = self._predicted(output) if self.index is None else self.index
        if found == self.minus:
            said = "it is the predicted class" if self.index is None else "name another"
            raise SelfContrast(f"class {found} cannot be contrasted with itself; {said}")
        resolved = replace(self, index=found)
        if output.segments is not None:
            resolved = replace(resolved, mask=resolved._pixels(output))
        return resolved

    def score(self, output: Output) -> Tensor:
        """y, a scalar, of what the model said; only of a resolved target."""
        if output.detections is not None:
            score = self._best(output.detections)
            return -score if self.against else score
        values = output.logits if output.segments is None else output.segments
        if self.of == "probability":
            values = output.probabilities
        assert values is not None
        score = values[self.index]
        if self.minus is not None:
            score = score - values[self.minus]
        if output.segments is not None:
            assert self.mask is not None
            score = (score * self.mask.to(score)).sum()
        return -score if self.against else score

    def probability(self, output: Output) -> float:
        """How sure the model is, 0 … 1: the probability of the class by the model's activation (of
        a segmenter its mean over the mask, of a detector the detection's score)."""
        if output.detections is not None:
            return float(self._best(output.detections))
        probabilities = output.probabilities
        assert probabilities is not None
        found = probabilities[self.index]
        if output.segments is not None:
            assert self.mask is not None
            return float(found[self.mask.to(found.device)].mean())
        return float(found)

    def _predicted(self, output: Output) -> int:
        if output.logits is not None:
            return int(output.logits.argmax())
        assert output.segments is not None
        counts = torch.bincount(output.segments.argmax(0).flatten(), minlength=len(output.segments))
        if self.background is not None and counts.sum() > counts[self.background]:
            counts[self.background] = 0
        return int(counts.argmax())

    def _pixels(self, output: Output) -> Tensor:
        """The pixels to sum over, bool (h, w) of the segments' size."""
        segments = output.segments
        assert segments is not None
        height, width = segments.shape[-2:]
        if self.mask is not None:
            given = self.mask.to(segments.device).float()[None, None]
            found = interpolate(given, size=(height, width), mode="nearest-exact")[0, 0] > 0.5
            if not found.any():
                raise MaskEmpty("the mask has no pixel that the model sees")
            return found
        if self.box is not None:
            seen = output.size or (height, width)
            y, x = height / seen[0], width / seen[1]
            left, right = self.box[0] * x, self.box[2] * x
            top, bottom = self.box[1] * y, self.box[3] * y
            rows = torch.arange(height, device=segments.device)[:, None] + 0.5
            columns = torch.arange(width, device=segments.device)[None, :] + 0.5
            inside = (columns > left) & (columns < right) & (rows > top) & (rows < bottom)
            if not inside.any():
                raise BoxOutside(f"the box has no pixel of the {width} × {height} that are seen")
            return inside
        found = segments.argmax(0).eq(self.index or 0)
        if not found.any():
            raise MaskEmpty(
                f"the model sees class {self.index} at no pixel of this image; name a box or a mask"
            )
        return found

    def _detected(self, found: Detections) -> ClassTarget:
        if self.minus is not None or self.of == "probability" or self.mask is not None:
            raise TargetMismatch(
                "the model detects boxes; a target there has a class, a box and against alone"
            )
        labels = sorted(set(found.labels.tolist()))
        usable = torch.ones_like(found.scores, dtype=torch.bool)
        if self.index is not None:
            usable &= found.labels.eq(self.index)
        if self.box is not None:
            usable &= _overlaps(found.boxes, self.box) >= OVERLAP
        if not usable.any():
            sought = "" if self.index is None else f" of class {self.index}"
            where = "" if self.box is None else " that overlaps the box by half"
            seen = f"it finds classes {', '.join(map(str, labels))}" if labels else "it finds none"
            raise NothingDetected(
                f"the model finds nothing{sought}{where}; {seen}"
                if sought or where
                else "the model detects nothing in this image"
            )
        rank = found.scores if self.box is None else _overlaps(found.boxes, self.box)
        order = torch.where(usable, rank.detach(), -1.0).argsort(descending=True, stable=True)
        if self.rank >= int(usable.sum()):
            raise NothingDetected(
                f"the model finds {int(usable.sum())} of them; there is no number {self.rank + 1}"
            )
        best = int(order[self.rank])
        left, top, right, bottom = (float(edge) for edge in found.boxes[best].tolist())
        box = (left, top, right, bottom)
        return replace(self, index=int(found.labels[best]), box=box, rank=0)

    def find(self, found: Detections) -> int | None:
        """Which of the detections a resolved target is about; None if none of its class overlaps
        its box by half."""
        assert self.box is not None
        overlaps = _overlaps(found.boxes.detach(), self.box)
        usable = (found.labels == self.index) & (overlaps >= OVERLAP)
        if not usable.any():
            return None
        return int(torch.where(usable, overlaps, -1.0).argmax())

    def _best(self, found: Detections) -> Tensor:
        best = self.find(found)
        return found.scores.sum() * 0 if best is None else found.scores[best]


def mask_of(white: NDArray[np.bool_]) -> Tensor:
    """A mask (H, W) over the model's input as `ClassTarget` takes it."""
    return torch.from_numpy(white)


def mirrored(target: Target, width: int) -> Target:
    """The same of an image of `width` pixels that is mirrored left to right."""
    if not isinstance(target, ClassTarget):
        return target
    box, mask = target.box, target.mask
    if box is not None:
        left, top, right, bottom = box
        box = (width - right, top, width - left, bottom)
    return replace(target, box=box, mask=None if mask is None else mask.flip(-1))


Target = ClassTarget | UnitTarget | SimilarityTarget


def _overlaps(boxes: Tensor, box: tuple[float, float, float, float]) -> Tensor:
    """Intersection over union (N,) of boxes (N, 4) with one."""
    other = torch.tensor(box, dtype=boxes.dtype, device=boxes.device)
    low = torch.maximum(boxes[:, :2], other[:2])
    high = torch.minimum(boxes[:, 2:], other[2:])
    shared = (high - low).clamp(min=0).prod(1)
    area = (boxes[:, 2:] - boxes[:, :2]).clamp(min=0).prod(1)
    own = (other[2:] - other[:2]).clamp(min=0).prod()
    return shared / (area + own - shared).clamp(min=1e-9)
