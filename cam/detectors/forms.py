"""The forms in which models return their detections, and how to recognise them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import torch
from torch import Tensor, nn

from cam.counts import counted
from cam.errors import NotLogits
from cam.outputs.reading import are_shares

DetectionForm = Literal[
    "boxes",
    "detr",
    "detr-sigmoid",
    "rtdetr",
    "yolov5",
    "yolov5-seg",
    "yolov8",
    "yolov8-seg",
    "yolov8-pose",
    "yolov8-obb",
    "yolo-end2end",
]
"""The form in which a model returns its detections, for B images, N boxes and C classes:

- `boxes`: a dictionary for each image with "boxes" (left, top, right, bottom in pixels), "labels"
  and "scores": torchvision.
- `detr`: `.logits` (B, N, C + 1), the last class for "no object", and `.pred_boxes` (B, N, 4),
  centre, width and height in 0 … 1; the score is a softmax: DETR, YOLOS.
- `detr-sigmoid`: the same with (B, N, C) logits and a sigmoid: Conditional and Deformable DETR,
  RT-DETR, D-FINE.
- `rtdetr`: (B, N, 4 + C): centre, width and height in 0 … 1, class probabilities; or (B, N, 6): the
  same four, score, label: RT-DETR of Ultralytics.
- `yolov5`: (B, N, 5 + C): centre, width and height in pixels, objectness, class probabilities:
  YOLOv5, YOLOv7, YOLOX. If the form is found automatically, the four numbers are read as left,
  top, right, bottom where these alone fit the image: see `are_corners`.
- `yolov5-seg`: (B, N, 5 + C + 32): the same, and coefficients of masks, which are not read.
- `yolov8`: (B, 4 + C, N): centre, width and height in pixels, class probabilities.
- `yolov8-seg`: (B, 4 + C + 32, N): the same, and coefficients of masks, which are not read.
- `yolov8-pose`: (B, 4 + C + K, N): the same, and K numbers of key points, which are not read.
- `yolov8-obb`: (B, 4 + C + 1, N): the same, and the angle in radians by which the box is turned; it
  is read as the upright box around the turned one.
- `yolo-end2end`: (B, N, 6): left, top, right, bottom in pixels, score, label; overlapping
  boxes are suppressed already. Further columns, such as coefficients of masks, are not read.
"""
MASKS: Final = 32
"""Number of coefficients of a mask."""
COLUMNS: Final[Mapping[DetectionForm, tuple[int, int | None]]] = {
    "rtdetr": (4, 0),
    "yolov5": (5, 0),
    "yolov5-seg": (5, MASKS),
    "yolov8": (4, 0),
    "yolov8-seg": (4, MASKS),
    "yolov8-pose": (4, None),
    "yolov8-obb": (4, 1),
}
"""Form → how many numbers of a box come before those of its classes and how many behind them; None
for any number of key points of two or three numbers each."""
STATING: Final = ("nc", "num_classes", "num_labels")
"""Attributes in which detectors and their heads keep the number of their classes."""
NEARLY: Final = 0.95
"""Least share of the boxes that must fit a reading of their four numbers."""
SLACK: Final = 0.05
"""Greatest distance of a box's edges from the image, as a share of the image's sides."""
_SOFTMAX: Final = ("Detr", "Yolos", "TableTransformer")
_SIGMOID: Final = (
    *("ConditionalDetr", "DeformableDetr", "DabDetr", "RTDetr", "RTDetrV2", "DFine", "Deimv2"),
    *("LwDetr", "RfDetr"),
)
"""Hugging Face's models, by how their own `post_process_object_detection` computes scores."""


def form_of(raw: Any, classes: int | None = None) -> DetectionForm | None:
    """Return the form of the detections in a model's output; None if it holds no detections.

    For Hugging Face's outputs, the class of the output shows the form. For YOLO-like tensors, the
    shape, the number of classes and the values show it: all values must be in the ranges of the
    form. Without the number of classes, an angle or a visibility in 0 … 1 could be a class, so only
    forms that hold labels are recognised.

    Args:
        classes: number of the model's classes, if it is known: see `stated_classes`.

    Raises:
        NotLogits: if the output fits several forms, or if it holds boxes of an unknown number of
            classes, or of another number.
    """
    if isinstance(raw, list | tuple) and raw and all(isinstance(entry, Mapping) for entry in raw):
        return (
            "boxes" if all({"boxes", "labels", "scores"} <= set(entry) for entry in raw) else None
        )
    if entry_in(raw, "pred_boxes") is not None and logits_in(raw) is not None:
        name = type(raw).__name__.removesuffix("ObjectDetectionOutput").removesuffix("For")
        if name in _SOFTMAX:
            return "detr"
        if name in _SIGMOID:
            return "detr-sigmoid"
        raise NotLogits(
            f"the model's output, {described(raw)}, has pred_boxes, but whether its scores are "
            "made by softmax or sigmoid is not known: read it as 'detr' or as 'detr-sigmoid'"
        )
    rows = rows_in(raw)
    if rows is None:
        return None
    values = rows.detach()
    if _is_end2end(values):
        boxes = values[..., :4]
        return "rtdetr" if are_shares(boxes) and bool(boxes.any()) else "yolo-end2end"
    fits = [form for form in COLUMNS if _fits(values, form, classes)]
    if not fits:
        return None
    what = f"the model's output, {described(values)}"
    if classes is None:
        raise NotLogits(
            f"{what}, can be read as detections, as {' or as '.join(map(repr, fits))}, but the "
            "number of classes is not known, and what follows them (an angle, key points, "
            "coefficients of masks) would be read as further classes: name the classes (labels in "
            "models.toml, or an attribute `names` of the model), or call "
            "cam.outputs.detection.read_detections with the form and the number of classes"
        )
    if len(fits) > 1:
        raise NotLogits(f"{what}, can be read as {' or as '.join(map(repr, fits))}: name one")
    return fits[0]


def stated_classes(model: nn.Module) -> int | None:
    """Return the number of classes that a detector states: the length of its `names`, or an
    attribute of `STATING` that is the same wherever it occurs; None if it states none."""
    modules = list(model.modules())
    for module in modules:
        names = getattr(module, "names", None)
        if isinstance(names, Mapping | list | tuple) and names:
            return len(names)
    for attribute in STATING:
        said = {getattr(module, attribute, None) for module in modules} - {None}
        numbers = {count for count in said if isinstance(count, int) and count > 0}
        if len(numbers) == 1:
            return numbers.pop()
    return None


def class_count(form: DetectionForm, channels: int, known: int | None) -> int:
    """Return the number of classes of YOLO-like boxes of so many numbers.

    Args:
        known: the number that the model, its labels or the caller state.

    Raises:
        ValueError: if the boxes have another number, or if it is not known and the form does not
            tell it; the message is half a sentence.
    """
    before, behind = COLUMNS[form]
    if behind is None:
        if known is None:
            raise ValueError("the number of classes is not known; name the classes")
        points = channels - before - known
        if points <= 0 or (points % 2 and points % 3):
            raise ValueError(
                f"of {counted(channels, 'number')} of a box, {before} are the box and "
                f"{counted(known, 'class', 'classes')}, so {points} would be key points of 2 or 3 "
                "numbers each"
            )
        return known
    count = channels - before - behind
    if count < 1 or known not in (None, count):
        have = "none of them classes"
        if count > 0:
            have = counted(count, "of them a class", "of them classes")
        many = "" if known is None else f", but the model has {known}"
        raise ValueError(f"its boxes have {counted(channels, 'number')}, {have}{many}")
    return count


def _fits(values: Tensor, form: DetectionForm, classes: int | None) -> bool:
    """Return whether a tensor can hold boxes of a form, by its shape and its values."""
    across = form.startswith("yolov8")
    rows = values.transpose(1, 2) if across else values
    count, channels = rows.shape[1:]
    before, behind = COLUMNS[form]
    if count <= channels or (classes is None and (behind != 0 or form == "rtdetr")):
        return False
    try:
        own = class_count(form, channels, classes)
    except ValueError:
        return False
    if behind is None and channels - before - own == MASKS:
        return False
    shares = rows[..., 4 : before + own]
    if form == "rtdetr":
        return are_shares(rows[..., :4]) and are_shares(shares)
    return are_shares(shares) and _are_sides(rows[..., 2:4])


def _is_end2end(values: Tensor) -> bool:
    """Return whether boxes are four numbers, a score and a label: edges in order, or centres and
    sides in 0 … 1."""
    if values.shape[2] != 6:
        return False
    boxes, scores, labels = values[..., :4], values[..., 4], values[..., 5]
    placed = are_in_order(boxes) or are_shares(boxes)
    return placed and are_shares(scores) and are_labels(labels)


def are_in_order(boxes: Tensor) -> bool:
    """Return whether no right or bottom edge of boxes (…, 4) comes before the left or top one."""
    return not bool((boxes[..., 2:] < boxes[..., :2]).any())


def are_labels(values: Tensor) -> bool:
    """Return whether all values are whole numbers, 0 or above."""
    return bool(((values >= 0) & (values % 1 == 0)).all())


def are_corners(boxes: Tensor, size: tuple[int, int]) -> bool:
    """Return whether boxes (…, 4) are left, top, right and bottom edges in an image of `size`, and
    not centres, widths and heights.

    They are edges if nearly all of them (`NEARLY`) are in order and in the image, and as centres
    and sides fewer would be in the image. Where both fit, YOLO's centres and sides are kept. Rows
    of zeros, which fill up a batch, do not count.
    """
    rows = boxes.detach().reshape(-1, 4)
    rows = rows[(rows != 0).any(1)]
    height, width = size
    edges = rows.new_tensor([width, height, width, height])
    ordered = (rows[:, 2:] > rows[:, :2]).all(1)

    def inside(corners: Tensor) -> Tensor:
        return ((corners >= -SLACK * edges) & (corners <= (1 + SLACK) * edges)).all(1)

    as_corners = (ordered & inside(rows)).float().mean()
    as_centres = inside(corners_of(rows)).float().mean()
    return bool(as_corners >= NEARLY > as_centres)


def corners_of(boxes: Tensor) -> Tensor:
    """Return boxes (…, 4) of centre, width and height as left, top, right and bottom edges."""
    # Importing torchvision takes seconds, and few models have boxes.
    from torchvision.ops import box_convert

    corners: Tensor = box_convert(boxes, "cxcywh", "xyxy")
    return corners


def _are_sides(values: Tensor) -> bool:
    """Return whether the values can be sides in pixels: none is below 0, and one is above 2."""
    return not bool((values < 0).any()) and bool((values > 2).any())


def rows_in(raw: Any) -> Tensor | None:
    """Return the YOLO-like tensor in a model's output: the output itself, or the first item of a
    tuple or list; None if this is not a floating-point tensor of three dimensions."""
    tensor = raw[0] if isinstance(raw, Sequence) and len(raw) else raw
    if not isinstance(tensor, Tensor) or tensor.ndim != 3 or not tensor.is_floating_point():
        return None
    return tensor


def logits_in(raw: Any) -> Tensor | None:
    logits = entry_in(raw, "logits")
    return entry_in(raw, "pred_logits") if logits is None else logits


def entry_in(raw: Any, name: str) -> Tensor | None:
    value = raw.get(name) if isinstance(raw, Mapping) else getattr(raw, name, None)
    return value if isinstance(value, Tensor) and value.ndim == 3 else None


def described(raw: Any) -> str:
    kind = type(raw).__name__
    return f"a tensor of shape {tuple(raw.shape)}" if isinstance(raw, torch.Tensor) else f"a {kind}"
