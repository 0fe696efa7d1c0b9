"""Detections with boxes, classes and scores, from the output of a detector in any known form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, Literal

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from torchvision.ops import batched_nms, box_convert

from cam.errors import NotLogits
from cam.outputs.detection_forms import (
    DetectionForm,
    are_corners,
    described,
    entry_in,
    form_of,
    logits_in,
    tensor_in,
)

LEAST_SCORE: Final = 0.05
"""Minimum score of a detection, the same as in torchvision's detectors."""
MOST: Final = 100
"""Maximum number of detections of an image in the forms of DETR and YOLO; the best are kept.

torchvision's detectors have the same maximum.
"""
SAME: Final = 0.5
"""Intersection over union above which the worse of two boxes of one class is suppressed."""
_CANDIDATES: Final = 1000
"""Maximum number of YOLO's boxes that are compared with each other; the best are compared."""
_least: ContextVar[float | None] = ContextVar("least score", default=None)


@dataclass(frozen=True, eq=False)
class Detections:
    """The boxes that a detector found in one image, best first."""

    boxes: Tensor
    """float (N, 4): left, top, right, bottom in the input's pixels."""
    labels: Tensor
    """int (N,), the class of each box."""
    scores: Tensor
    """float32 (N,), 0 … 1."""
    classes: Tensor | None = None
    """float32 (N, C), the probability of each class; None if the model does not return it."""

    def rows(self, chosen: list[int]) -> Detections:
        """Return the chosen detections, in the order of `chosen`."""
        classes = None if self.classes is None else self.classes[chosen]
        return Detections(self.boxes[chosen], self.labels[chosen], self.scores[chosen], classes)

    def detached(self) -> Detections:
        """Return the detections without a graph, on the CPU."""
        classes = None if self.classes is None else self.classes.detach().cpu()
        boxes, scores = self.boxes.detach().cpu(), self.scores.detach().cpu()
        return Detections(boxes, self.labels.cpu(), scores, classes)


def detections_of(
    raw: Any,
    size: tuple[int, int] | None,
    *,
    form: DetectionForm | Literal["auto"] = "auto",
    least: float = LEAST_SCORE,
) -> list[Detections] | None:
    """Return the detections of each image of a batch; None if the output is not a detector's.

    Scores and boxes keep their graph; the selection of boxes is not part of it. YOLO's boxes of one
    class that overlap by more than `SAME` are suppressed, as YOLO's own tools do.

    Args:
        size: height and width of the input; forms with boxes in 0 … 1 need it.
        form: form of the output; "auto" uses the form that `form_of` finds, and for `yolov5` tells
            by the boxes whether they are corners, see `are_corners`.
        least: minimum score of a detection. If "auto" finds the form `boxes`, it is not applied,
            because the model has a threshold of its own.

    Raises:
        NotLogits: if the output cannot be read in that form, or if "auto" finds several forms.
    """
    kind = form_of(raw) if form == "auto" else form
    if kind is None:
        return None
    lowered = _least.get()
    least = least if lowered is None else lowered
    try:
        if kind == "boxes":
            return [_listed(entry, 0.0 if form == "auto" else least) for entry in raw]
        if kind in ("detr", "detr-sigmoid"):
            return _queried(raw, size, kind == "detr", least)
        said = tensor_in(raw).float()
        if form == "auto" and kind == "yolov5" and size and are_corners(said[..., :4], size):
            said = torch.cat([box_convert(said[..., :4], "xyxy", "cxcywh"), said[..., 4:]], 2)
        return [_yolo(rows, kind, least) for rows in said]
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        raise NotLogits(
            f"the model's output, {described(raw)}, cannot be read as detections of the form "
            f"{kind!r}: {type(error).__name__}"
        ) from None


def read_detections(
    model: nn.Module,
    form: DetectionForm | Literal["auto"] = "auto",
    *,
    least: float = LEAST_SCORE,
) -> RemovableHandle:
    """Make `model` return its detections as a list of dictionaries, as torchvision's detectors do.

    Use it for a model whose output does not show which form it has, or to set another threshold.

    Args:
        form: form of the model's own output.
        least: minimum score of a detection.

    Returns:
        The handle of the forward hook that converts the output; `.remove()` restores the model.

    Raises:
        NotLogits: in a forward pass, if the output cannot be read in that form.
    """

    def convert(module: nn.Module, args: Any, output: Any) -> list[dict[str, Tensor]]:
        image = next(
            (value for value in args if isinstance(value, Tensor) and value.ndim == 4), None
        )
        size = None if image is None else (int(image.shape[-2]), int(image.shape[-1]))
        batch = detections_of(output, size, form=form, least=least)
        if batch is None:
            raise NotLogits(f"the model's output, {described(output)}, holds no detections")
        return [
            {"boxes": detections.boxes, "labels": detections.labels, "scores": detections.scores}
            | ({} if detections.classes is None else {"classes": detections.classes})
            for detections in batch
        ]

    return model.register_forward_hook(convert)


@contextmanager
def unfiltered(model: nn.Module) -> Iterator[None]:
    """Make a detector return its boxes whatever their scores, to find the layers behind the boxes.

    In the block, the score thresholds that torchvision's detectors keep as `score_thresh` are 0,
    and so is the threshold of `detections_of`.
    """
    with ExitStack() as scope:
        for module in model.modules():
            own = vars(module).get("score_thresh")
            if isinstance(own, float):
                scope.callback(setattr, module, "score_thresh", own)
                setattr(module, "score_thresh", 0.0)  # noqa: B010  # no field of nn.Module
        token = _least.set(0.0)
        scope.callback(_least.reset, token)
        yield


def _listed(said: Mapping[str, Tensor], least: float) -> Detections:
    scores = said["scores"].float()
    order = scores.detach().argsort(descending=True, stable=True)
    order = order[scores.detach()[order] >= least]
    classes = said.get("classes")
    return Detections(
        said["boxes"][order],
        said["labels"][order],
        scores[order],
        None if classes is None else classes[order].float(),
    )


def _queried(
    raw: Any, size: tuple[int, int] | None, softmax: bool, least: float
) -> list[Detections]:
    logits, boxes = logits_in(raw), entry_in(raw, "pred_boxes")
    if logits is None or boxes is None or size is None:
        raise TypeError
    pixels = boxes.new_tensor([size[1], size[0], size[1], size[0]])
    # In half precision the boxes would be wrong by pixels.
    corners = box_convert(boxes.float(), "cxcywh", "xyxy") * pixels.float()
    classes = logits.float().softmax(-1)[..., :-1] if softmax else logits.float().sigmoid()
    batch = []
    for own, where in zip(classes, corners, strict=True):
        # With softmax a query is one object; with sigmoid it may be one object of each class.
        scores, labels = own.max(-1) if softmax else (own.flatten(), None)
        best = scores.detach().topk(min(MOST, len(scores))).indices
        best = best[scores.detach()[best] >= least]
        query = best if softmax else best // own.shape[-1]
        label = best % own.shape[-1] if labels is None else labels[best]
        batch.append(Detections(where[query], label, scores[best], own[query]))
    return batch


def _yolo(said: Tensor, form: str, least: float) -> Detections:
    channels = said.shape[0 if form == "yolov8" else 1]
    if channels < (5 if form == "yolov8" else 6):
        raise ValueError(f"{channels} channels")
    if form == "yolo-end2end":
        best = said[:, 4].detach().topk(min(MOST, len(said))).indices
        best = best[said[best, 4].detach() >= least]
        return Detections(said[best, :4], said[best, 5].detach().long(), said[best, 4])
    rows = said if form == "yolov5" else said.T
    classes = rows[:, 5:] if form == "yolov5" else rows[:, 4:]
    scores, labels = classes.max(1)
    if form == "yolov5":
        scores = scores * rows[:, 4]
    sure = scores.detach()
    best = sure.topk(min(_CANDIDATES, len(sure))).indices
    best = best[sure[best] >= least]
    boxes = box_convert(rows[best, :4], "cxcywh", "xyxy")
    keep = batched_nms(boxes.detach(), sure[best], labels[best], SAME)[:MOST]
    best = best[keep]
    return Detections(boxes[keep], labels[best], scores[best], classes[best])
