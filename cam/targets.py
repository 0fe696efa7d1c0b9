"""Targets: the scalar score that is explained and differentiated.

A target is first resolved against the model's output for an image: its class is filled in and its
values are checked. The resolved target then computes the score y from the model's output for this
image or for a changed version of it. The module computes with tensors, but imports no torch: a
process that only reads requests makes targets, too.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from cam.errors import (
    BoxOutside,
    ClassOutOfRange,
    MaskEmpty,
    NoHead,
    SelfContrast,
    TargetMismatch,
)
from cam.likeness import SimilarityTarget as SimilarityTarget
from cam.likeness import TextTarget as TextTarget
from cam.likeness import UnitTarget as UnitTarget
from cam.outputs.kind import kinds

if TYPE_CHECKING:
    from torch import Tensor

    from cam.outputs.output import Detections, Output


@dataclass(frozen=True)
class ClassTarget:
    """A target whose score y is computed from the model's output for a class.

    For a classifier with logits z, y = z_index. With `minus` the target is a contrast, "why this
    class and not that one": y = z_index − z_minus. With `against` the score is −y; its gradient is
    that of Grad-CAM's counterfactual explanations (Selvaraju et al. 2017, section 3.3). With
    `of = "probability"` the model's probabilities are used instead of logits. If they are a
    softmax's, evidence for the competing classes changes the score, too.

    A model with one output has two classes, the negative and the positive one. For a logit z their
    logits are −z and z; for a probability p they are 1 − p and p.

    For a regression y is the value of the output `index`, 0 if there is none; `against` explains −y
    and `minus` the difference of two outputs. A value has no probability.

    For a segmenter the score is the same number summed over the pixels of `mask` or `box`. Without
    either, the sum is over the pixels where the class is predicted (Vinogradova et al., "Towards
    Interpretable Semantic Segmentation via Gradient-weighted Class Activation Mapping", AAAI 2020,
    equation 2).

    For a detector y is the score of one detection: the detection of the class that overlaps `box`
    best, with an intersection over union of at least one half; without a box the best detection of
    the class; without a class the best detection of all. If no detection of the class in a changed
    image overlaps the box that much, y = 0.
    """

    index: int | None = None
    """Index of the class; None for the predicted class."""
    minus: int | None = None
    """Index of the class that is subtracted for a contrast."""
    against: bool = False
    """Whether the score is −y, for evidence against the target."""
    of: Literal["logit", "probability"] = "logit"
    """Whether the score is made of logits or of probabilities."""
    box: tuple[float, float, float, float] | None = None
    """Left, top, right and bottom edges in the input's pixels."""
    mask: NDArray[np.bool_] | None = field(default=None, compare=False)
    """Mask of the pixels to sum over: bool (H, W) of the input's size; in a resolved target, (h, w)
    of the segments' size."""
    rank: int = 0
    """For a detector, the position of the detection among those that fit the class and the box: 0
    for the best one, 1 for the second, and so on."""
    background: int | None = None
    """Index of a segmenter's background class. It is the predicted class only if no pixel has
    another class."""

    layers: tuple[str, ...] = field(default=(), init=False, repr=False)

    def resolve(self, output: Output) -> ClassTarget:
        """Return the target with its class filled in from the model's output; for a detector also
        its box, for a segmenter also its mask.

        Raises:
            ClassOutOfRange: if an index is not in 0 … C-1.
            SelfContrast: if a class would be contrasted with itself.
            TargetMismatch: if the model's output is not of the kind that the target needs.
            NothingDetected: if there is no such detection.
            MaskEmpty: if no pixel is left to sum over.
            BoxOutside: if the box has no pixel of the image.
            NoHead: if the model returns features.
        """
        if output.features is not None:
            raise NoHead(
                "the model has no head: it returns features, not scores of classes; explain what "
                "makes an image like another one with a SimilarityTarget, or take a model with a "
                "head; if its outputs are scores, set activation"
            )
        kind = output.kind
        if known := kinds().get(kind):
            found: ClassTarget = known.resolve(self, output)
            return found
        value = kind == "value"
        where = self.box is not None or self.mask is not None
        if output.logits is not None and where:
            does = "computes values of" if value else "classifies"
            raise TargetMismatch(
                f"the model {does} whole images; a box or mask is for segmenters and detectors"
            )
        if value and self.of == "probability":
            raise TargetMismatch("the model's outputs are values, which have no probability")
        values = output.logits if output.segments is None else output.segments
        assert values is not None
        classes = len(values)
        for index in (self.index, self.minus):
            if index is not None and not 0 <= index < classes:
                what, all_ = ("output", "outputs") if value else ("class index", "classes")
                raise ClassOutOfRange(
                    f"{what} {index} is out of range; the model has {all_} 0 to {classes - 1}"
                )
        chosen = self._predicted(output) if self.index is None else self.index
        if chosen == self.minus:
            said = "it is the predicted class" if self.index is None else "name another"
            if value:
                raise SelfContrast(
                    f"output {chosen} cannot be contrasted with itself; name another"
                )
            raise SelfContrast(f"class {chosen} cannot be contrasted with itself; {said}")
        resolved = replace(self, index=chosen)
        if output.segments is not None:
            resolved = replace(resolved, mask=resolved._pixels(output))
        return resolved

    def score(self, output: Output) -> Tensor:
        """Return y, a scalar, for the model's output. The target must be resolved."""
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
            score = (score * score.new_tensor(self.mask)).sum()
        return -score if self.against else score

    def probability(self, output: Output) -> float | None:
        """Return the probability of the class, 0 … 1, by the model's activation.

        For a segmenter this is the mean probability over the mask, for a detector the score of the
        detection. A value has none, and neither has a score outside 0 … 1. The target must be
        resolved.
        """
        if output.detections is not None:
            score = float(self._best(output.detections))
            return score if 0 <= score <= 1 else None
        probabilities = output.probabilities
        if probabilities is None:
            return None
        probability = probabilities[self.index]
        if output.segments is not None:
            assert self.mask is not None
            return float(probability[probability.new_tensor(self.mask).bool()].mean())
        return float(probability)

    def find(self, detections: Detections) -> int | None:
        """Return the index of the detection that a resolved target is about; None if no detection
        of its class overlaps its box by one half."""
        found: int | None = kinds()["detections"].find(self, detections)
        return found

    def _best(self, detections: Detections) -> Tensor:
        best = self.find(detections)
        return detections.scores.sum() * 0 if best is None else detections.scores[best]

    def _predicted(self, output: Output) -> int:
        if output.logits is not None:
            return 0 if output.meaning == "value" else output.best
        assert output.segments is not None
        counts = np.bincount(output.wins.ravel(), minlength=len(output.segments))
        if self.background is not None and counts.sum() > counts[self.background]:
            counts[self.background] = 0
        return int(counts.argmax())

    def _pixels(self, output: Output) -> NDArray[np.bool_]:
        """Return the mask of the pixels to sum over, bool (h, w) of the segments' size."""
        segments = output.segments
        assert segments is not None
        height, width = segments.shape[-2:]
        if self.mask is not None:
            given = np.asarray(self.mask, bool)
            rows, columns = (
                ((np.arange(size) + 0.5) * pixels / size).astype(int)  # the nearest pixel
                for size, pixels in zip((height, width), given.shape, strict=True)
            )
            mask: NDArray[np.bool_] = given[rows][:, columns]
            if not mask.any():
                raise MaskEmpty("the mask has no pixel that the model sees")
            return mask
        if self.box is not None:
            seen = output.size or (height, width)
            y, x = height / seen[0], width / seen[1]
            left, right = self.box[0] * x, self.box[2] * x
            top, bottom = self.box[1] * y, self.box[3] * y
            inside = pixels_in((left, top, right, bottom), height, width)
            if not inside.any():
                raise BoxOutside(f"the box has no pixel of the {width} × {height} that are seen")
            return inside
        predicted: NDArray[np.bool_] = output.wins == (self.index or 0)
        if not predicted.any():
            raise MaskEmpty(
                f"the model sees class {self.index} at no pixel of this image; name a box or a mask"
            )
        return predicted


def pixels_in(box: tuple[float, float, float, float], height: int, width: int) -> NDArray[np.bool_]:
    """Return the mask of the pixels whose centres lie in a box (left, top, right, bottom)."""
    left, top, right, bottom = box
    down = np.arange(height)[:, None] + 0.5
    along = np.arange(width)[None, :] + 0.5
    inside: NDArray[np.bool_] = (along > left) & (along < right) & (down > top) & (down < bottom)
    return inside


def mirrored(target: Target, width: int) -> Target:
    """Return the same target for the image, `width` pixels wide, mirrored left to right."""
    if not isinstance(target, ClassTarget):
        return target
    box, mask = target.box, target.mask
    if box is not None:
        left, top, right, bottom = box
        box = (width - right, top, width - left, bottom)
    return replace(target, box=box, mask=None if mask is None else mask[:, ::-1])


Target = ClassTarget | UnitTarget | SimilarityTarget | TextTarget
