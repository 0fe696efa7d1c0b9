"""Detections with boxes, classes and scores, from the output of a detector in any known form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any, Final, Literal

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from cam.counts import counted
from cam.detectors.forms import (
    COLUMNS,
    DetectionForm,
    are_corners,
    are_in_order,
    are_labels,
    class_count,
    corners_of,
    described,
    entry_in,
    form_of,
    logits_in,
    rows_in,
    stated_classes,
)
from cam.errors import NotLogits
from cam.outputs.output import Detections
from cam.outputs.reading import Reading, are_shares

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


def read(
    raw: Any, size: tuple[int, int] | None, reading: Reading, model: nn.Module | None
) -> dict[str, Any] | None:
    """Return the detections in a model's output: see `cam.outputs.kind.OutputKind.read`.

    The number of classes is the reading's, or else the one that the model states.
    """
    classes = reading.classes
    if classes is None and model is not None and rows_in(raw) is not None:
        classes = stated_classes(model)
    found = detections_of(raw, size, classes=classes)
    return None if found is None else {"detections": tuple(found)}


def detections_of(
    raw: Any,
    size: tuple[int, int] | None,
    *,
    form: DetectionForm | Literal["auto"] = "auto",
    least: float = LEAST_SCORE,
    classes: int | None = None,
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
        classes: number of the model's classes, if it is known.

    Raises:
        NotLogits: if the output cannot be read in that form, if scores are outside 0 … 1, or if
            "auto" finds no form or several for boxes of that number of classes.
    """
    kind = form_of(raw, classes) if form == "auto" else form
    if kind is None:
        return None
    lowered = _least.get()
    least = least if lowered is None else lowered
    try:
        if kind == "boxes":
            return [_listed(entry, 0.0 if form == "auto" else least) for entry in raw]
        if kind in ("detr", "detr-sigmoid"):
            return _queried(raw, size, kind == "detr", least)
        rows = rows_in(raw)
        if rows is None:
            raise TypeError
        said = rows.float()
        if form == "auto" and kind == "yolov5" and size and are_corners(said[..., :4], size):
            from torchvision.ops import box_convert  # as in `corners_of`

            said = torch.cat([box_convert(said[..., :4], "xyxy", "cxcywh"), said[..., 4:]], 2)
        if kind == "yolo-end2end" or (kind == "rtdetr" and _has_labels(said, classes)):
            return [_labelled(one, kind == "rtdetr", size, least) for one in said]
        return [_yolo(one, kind, size, least, classes) for one in said]
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        why = f"{error}" if isinstance(error, ValueError) else type(error).__name__
        raise NotLogits(
            f"the model's output, {described(raw)}, cannot be read as detections of the form "
            f"{kind!r}: {why}"
        ) from None


def read_detections(
    model: nn.Module,
    form: DetectionForm | Literal["auto"] = "auto",
    *,
    least: float = LEAST_SCORE,
    classes: int | None = None,
) -> RemovableHandle:
    """Make `model` return its detections as a list of dictionaries, as torchvision's detectors do.

    Use it for a model whose output does not show which form it has, or to set another threshold.

    Args:
        form: form of the model's own output.
        least: minimum score of a detection.
        classes: number of the model's classes; None for the number that the model states: see
            `cam.detectors.forms.stated_classes`. Boxes of another number are refused.

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
        count = stated_classes(module) if classes is None else classes
        batch = detections_of(output, size, form=form, least=least, classes=count)
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
    """Make a detector return its boxes whatever their scores.

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
    corners = corners_of(boxes.float()) * pixels.float()
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


def _yolo(
    said: Tensor,
    form: DetectionForm,
    size: tuple[int, int] | None,
    least: float,
    known: int | None,
) -> Detections:
    """Read boxes whose numbers are centre, sides and probabilities of classes: see `COLUMNS`."""
    rows = said.T if form.startswith("yolov8") else said
    before, behind = COLUMNS[form]
    if known is None and behind == 0:
        raise ValueError(
            "the number of classes is not known, and an angle, key points or coefficients of masks "
            "would be read as classes: name the classes, or state their number"
        )
    count = class_count(form, rows.shape[1], known)
    classes = rows[:, before : before + count]
    _check_shares(rows[:, 4 : before + count])
    scores, labels = classes.max(1)
    if before == 5:
        scores = scores * rows[:, 4]
    sure = scores.detach()
    best = sure.topk(min(_CANDIDATES, len(sure))).indices
    best = best[sure[best] >= least]
    boxes = _pixels(rows[best, :4], size) if form == "rtdetr" else rows[best, :4]
    if form == "yolov8-obb":
        boxes = _upright(boxes, rows[best, -1:])
    from torchvision.ops import batched_nms  # as in `corners_of`

    boxes = corners_of(boxes)
    keep = batched_nms(boxes.detach(), sure[best], labels[best], SAME)[:MOST]
    best = best[keep]
    return Detections(boxes[keep], labels[best], scores[best], classes[best])


def _has_labels(said: Tensor, known: int | None) -> bool:
    """Return whether boxes of six numbers in RT-DETR's form end in a score and a label."""
    return said.shape[2] == 6 and known != 2 and are_labels(said.detach()[..., 5])


def _labelled(
    said: Tensor, centred: bool, size: tuple[int, int] | None, least: float
) -> Detections:
    """Read boxes whose fifth and sixth numbers are a score and a label.

    Args:
        centred: whether the first four are centre and sides in 0 … 1, and not edges in pixels.
    """
    if said.shape[1] < 6:
        raise ValueError(f"{counted(said.shape[1], 'number')} of a box, of at least 6")
    boxes, scores, labels = said[:, :4], said[:, 4], said[:, 5].detach()
    _check_shares(scores)
    if not are_labels(labels):
        raise ValueError("the sixth number of a box should be its label, a whole number")
    if centred:
        boxes = corners_of(_pixels(boxes, size))
    elif not are_in_order(boxes.detach()):
        raise ValueError("a right or bottom edge comes before the left or the top one")
    best = scores.detach().topk(min(MOST, len(said))).indices
    best = best[scores[best].detach() >= least]
    return Detections(boxes[best], labels[best].long(), scores[best])


def _pixels(shares: Tensor, size: tuple[int, int] | None) -> Tensor:
    """Return boxes in 0 … 1 as boxes in pixels."""
    if size is None:
        raise ValueError("the size of the image is not known")
    if not are_shares(shares.detach()):
        raise ValueError("centres and sides should be in 0 … 1")
    return shares * shares.new_tensor([size[1], size[0], size[1], size[0]])


def _upright(boxes: Tensor, angles: Tensor) -> Tensor:
    """Return the upright boxes (N, 4) around boxes that are turned by angles (N, 1) in radians."""
    cosine, sine = angles.cos().abs(), angles.sin().abs()
    width, height = boxes[:, 2:3], boxes[:, 3:4]
    sides = [width * cosine + height * sine, width * sine + height * cosine]
    return torch.cat([boxes[:, :2], *sides], 1)


def _check_shares(scores: Tensor) -> None:
    """Check that scores are probabilities.

    Raises:
        ValueError: if one is outside 0 … 1.
    """
    if scores.numel() and not are_shares(scores.detach()):
        least, most = (float(end) for end in scores.detach().float().aminmax())
        raise ValueError(f"scores are from {least:.4g} to {most:.4g}, not in 0 … 1")
