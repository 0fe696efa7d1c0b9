"""The names and types of a call's parameters, for completion in editors and type checkers.

They match those of service.pipeline.parameters, which is not imported here, because it would load
PyTorch. A test compares the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypedDict


class EncodedImage(TypedDict):
    b64: str


class NamedClass(TypedDict, total=False):
    """A class, given by either its index or its label."""

    index: int
    label: str


TargetObject = TypedDict(
    "TargetObject",
    {
        "class": int | str | NamedClass,
        "index": int,
        "label": str,
        "minus": int | str | NamedClass,
        "against": bool,
        "of": Literal["logit", "probability"],
        "box": Sequence[float],
        "mask": EncodedImage,
        "layer": str,
        "channel": int,
        "like": EncodedImage,
    },
    total=False,
)
"""A target in its general form, beyond a class's own score: see the targets in docs/http-api.md."""

MediaType = Literal["image/png", "image/jpeg", "image/webp"]
Target = int | str | TargetObject


class PredictOptions(TypedDict, total=False):
    """Parameters of `predict`."""

    top_k: int
    fit: Literal["crop", "squash", "pad"]


class Options(PredictOptions, total=False):
    """Parameters of `explain`, `overlay`, `explain_many` and `submit`."""

    method: str | Sequence[str]
    layer: str | Sequence[str]
    target: Target | Sequence[Target]
    budget: int
    signed: bool
    smooth: Literal["none", "eigen", "augment", "both"]
    fuse: Literal["none", "mean", "max"]
    output: Literal["overlay", "heatmap", "mask", "values", "contour", "panel"]
    threshold: float
    colormap: str
    opacity: float
    normalize: Literal["minmax", "none"]
    size: Literal["image", "model", "layer"]
    evaluate: Sequence[str]


class AuditOptions(TypedDict, total=False):
    """Parameters of `audit`: without them, the usual methods, layers and metrics are measured."""

    method: str | Sequence[str]
    layer: str | Sequence[str]
    target: Target | Sequence[Target]
    evaluate: Sequence[str]
    fit: Literal["crop", "squash", "pad"]


class RegionObject(TypedDict, total=False):
    """A part of a photo: a box in the photo's pixels, or a mask of the photo's size."""

    box: Sequence[float]
    mask: EncodedImage


class EvaluateOptions(Options, total=False):
    """Parameters of `evaluate`. A map that was made elsewhere is its argument `judged`."""

    metrics: Sequence[str]
    steps: int | Literal["fine"]
    deletion_to: Literal["zero", "blur", "mean"]
    insertion_from: Literal["zero", "blur", "mean"]
    percentages: Sequence[float]
    samples: int
    radius: float
    squares: int
    scale_free: bool
    baselines: Sequence[Literal["random", "gaussian", "edges", "uniform"]]
    seed: int
    region: RegionObject
