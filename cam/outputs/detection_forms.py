"""The forms in which models return their detections, and how to recognise them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, get_args

import torch
from torch import Tensor
from torchvision.ops import box_convert

from cam.errors import NotLogits

DetectionForm = Literal["boxes", "detr", "detr-sigmoid", "yolov5", "yolov8", "yolo-end2end"]
"""The form in which a model returns its detections, for B images, N boxes and C classes:

- `boxes`: a dictionary for each image with "boxes" (left, top, right, bottom in pixels), "labels"
  and "scores": torchvision.
- `detr`: `.logits` (B, N, C + 1), the last class for "no object", and `.pred_boxes` (B, N, 4),
  centre, width and height in 0 … 1; the score is a softmax: DETR, YOLOS.
- `detr-sigmoid`: the same with (B, N, C) logits and a sigmoid: Conditional and Deformable DETR,
  RT-DETR, D-FINE.
- `yolov5`: (B, N, 5 + C): centre, width and height in pixels, objectness, class probabilities:
  YOLOv5, YOLOv7, YOLOX. If the form is found automatically, the four numbers are read as left,
  top, right, bottom where these alone fit the image: see `are_corners`.
- `yolov8`: (B, 4 + C, N): centre, width and height in pixels, class probabilities.
- `yolo-end2end`: (B, N, 6): left, top, right, bottom in pixels, score, label; overlapping
  boxes are suppressed already.
"""
FORMS: Final[tuple[DetectionForm, ...]] = get_args(DetectionForm)

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


def form_of(raw: Any) -> DetectionForm | None:
    """Return the form of the detections in a model's output; None if it holds no detections.

    For Hugging Face's outputs, the class of the output shows the form. For YOLO-like tensors, the
    shape and the values show it: all values must be in the ranges of the form.

    Raises:
        NotLogits: if the output fits several forms.
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
    try:
        values = tensor_in(raw).detach()
    except TypeError:
        return None
    fits = [form for form, test in _YOLO.items() if test(values)]
    if len(fits) > 1:
        names = " or as ".join(map(repr, fits))
        raise NotLogits(f"the model's output, {described(raw)}, can be read as {names}: name one")
    return fits[0] if fits else None


def _is_yolov5(values: Tensor) -> bool:
    channels = values.shape[2]
    return (
        channels >= 6
        and values.shape[1] > channels
        and _are_shares(values[..., 4:])
        and _are_sides(values[..., 2:4])
    )


def _is_yolov8(values: Tensor) -> bool:
    channels = values.shape[1]
    return (
        channels >= 5
        and values.shape[2] > channels
        and _are_shares(values[:, 4:])
        and _are_sides(values[:, 2:4])
    )


def _is_end2end(values: Tensor) -> bool:
    if values.shape[2] != 6:
        return False
    boxes, scores, labels = values[..., :4], values[..., 4], values[..., 5]
    ordered = not bool((boxes[..., 2:] < boxes[..., :2]).any())
    return ordered and _are_shares(scores) and bool(((labels >= 0) & (labels % 1 == 0)).all())


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
    as_centres = inside(box_convert(rows, "cxcywh", "xyxy")).float().mean()
    return bool(as_corners >= NEARLY > as_centres)


_YOLO: Final[dict[DetectionForm, Callable[[Tensor], bool]]] = {
    "yolov5": _is_yolov5,
    "yolov8": _is_yolov8,
    "yolo-end2end": _is_end2end,
}


def _are_shares(values: Tensor) -> bool:
    """Return whether all values are in 0 … 1; NaN values are ignored."""
    return not bool(((values < 0) | (values > 1)).any())


def _are_sides(values: Tensor) -> bool:
    """Return whether the values can be sides in pixels: none is below 0, and one is above 2."""
    return not bool((values < 0).any()) and bool((values > 2).any())


def tensor_in(raw: Any) -> Tensor:
    """Return the YOLO-like tensor in a model's output: the output itself, or the first item of a
    tuple or list.

    Raises:
        TypeError: if this is not a floating-point tensor of three dimensions.
    """
    tensor = raw[0] if isinstance(raw, Sequence) and len(raw) else raw
    if not isinstance(tensor, Tensor) or tensor.ndim != 3 or not tensor.is_floating_point():
        raise TypeError
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
