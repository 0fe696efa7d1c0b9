"""Enumerations that several features share, each a named schema in openapi/openapi.json."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final, Literal

from typing_extensions import TypeAliasType

# Pydantic repeats a bare Literal wherever it is used, and generators of clients then make a type
# for each place. A TypeAliasType becomes one component that all places refer to.
Fit = TypeAliasType("Fit", Literal["crop", "squash", "pad"])
WantedFit = TypeAliasType("WantedFit", Literal["auto", "crop", "squash", "pad"])
Smooth = TypeAliasType("Smooth", Literal["none", "eigen", "augment", "both"])
Fuse = TypeAliasType("Fuse", Literal["none", "mean", "max"])
Normalize = TypeAliasType("Normalize", Literal["minmax", "percentile", "none"])
Size = TypeAliasType("Size", Literal["image", "model", "layer"])
TargetScore = TypeAliasType("TargetScore", Literal["logit", "probability"])
ExplainedNumber = TypeAliasType("ExplainedNumber", Literal["probability", "value"])
Better = TypeAliasType("Better", Literal["higher", "lower"])
HeatmapEncoding = TypeAliasType("HeatmapEncoding", Literal["png", "float32"])

ModelKind = TypeAliasType(
    "ModelKind", Literal["classes", "segments", "detections", "value", "answers"]
)
Mode = TypeAliasType("Mode", Literal["exact", "fast"])
WantedMode = TypeAliasType("WantedMode", Literal["exact", "fast", "auto"])
RUNTIMES: Final[dict[str, str]] = {"torch": "`torch`"} | {
    runtime.name: runtime.told for runtime in import_module("service.runtimes").OWN
}
"""Name of what can run models → what an entry may write to have it. The package that lists the
runtimes stands above the core, which reads the list and imports no runtime."""
if TYPE_CHECKING:
    RuntimeName = str
    WantedRuntime = str
else:
    RuntimeName = TypeAliasType("Runtime", Literal[*RUNTIMES])
    WantedRuntime = TypeAliasType("WantedRuntime", Literal[*RUNTIMES, "auto"])
Activation = TypeAliasType("Activation", Literal["softmax", "sigmoid", "none"])
WantedActivation = TypeAliasType("WantedActivation", Literal["auto", "softmax", "sigmoid", "none"])
OutputKind = TypeAliasType("OutputKind", Literal["auto", "classes", "value"])
Dtype = TypeAliasType("Dtype", Literal["float32", "bfloat16", "float16"])
Weights = TypeAliasType("Weights", Literal["default", "none"])
Interpolation = TypeAliasType(
    "Interpolation", Literal["nearest", "bilinear", "bicubic", "lanczos", "box", "hamming"]
)
ChannelOrder = TypeAliasType("ChannelOrder", Literal["rgb", "bgr"])
ValueRange = TypeAliasType("ValueRange", Literal["0-1", "0-255"])
DetectionForm = TypeAliasType(
    "DetectionForm",
    Literal[
        "auto",
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
    ],
)
# The client loads these and must not load cam: they repeat cam.methods.method, and a test compares.
MethodFamily = TypeAliasType(
    "MethodFamily",
    Literal["gradients", "components", "perturbation", "pixels", "attention", "boxes", "other"],
)
MethodCost = TypeAliasType(
    "MethodCost",
    Literal["one forward", "one backward", "two backwards", "N forwards", "N backwards"],
)
MapPlace = TypeAliasType("MapPlace", Literal["layer", "input"])
ClassDependence = TypeAliasType("ClassDependence", Literal["full", "weak", "none"])
