"""Worked examples of answers, for openapi/openapi.json."""

from __future__ import annotations

from typing import Final

# A grayscale PNG of 8 × 8 pixels, small enough to read past.
TINY_PNG: Final = (
    "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAAAAADhZOFXAAAAU0lEQVR42gFIALf/AQ4kIhsM/OziBBQaISIS+eUABA4S"
    "GCIh8wHwBAMDBQkR/wYEBPj28egA9+70AwMJBfvw6OTjBOzgAPEK/e7mAQAEFBMI/fLsh70dPtcfjAIAAAAASUVORK5C"
    "YII="
)
TOP: Final = {"index": 285, "label": "Egyptian cat", "score": 9.27, "probability": 0.7734}
EXPLAINED: Final = {
    "predictions": [{"instance": 0, "classes": [TOP]}],
    "explanations": [
        {
            "instance": 0,
            "target": TOP,
            "method": "gradcam",
            "layer": "bn2",
            "region": {"left": 0, "top": 0, "width": 451, "height": 300},
            "heatmap": {"shape": [300, 451], "encoding": "png", "data": TINY_PNG},
            "peak": {"x": 161, "y": 107},
            "warnings": [],
        }
    ],
}
LAYER_EXAMPLE: Final = {
    "name": "bn2",
    "type": "BatchNormAct2d",
    "output_shape": [1280, 7, 7],
    "grid": [7, 7],
    "explainable": True,
    "default": True,
}
ACTIVATION_EXAMPLE: Final = {
    "instance": 0,
    "layer": "bn2",
    "type": "BatchNormAct2d",
    "input": {
        "shape": [1280, 7, 7],
        "mean": -0.73,
        "std": 0.9,
        "minimum": -6.1,
        "maximum": 9.8,
        "zeros": 0.0,
    },
    "output": {
        "shape": [1280, 7, 7],
        "mean": 0.19,
        "std": 0.67,
        "minimum": 0.0,
        "maximum": 6.0,
        "zeros": 0.81,
    },
    "channels": [1013, 24],
}
MODEL_EXAMPLE: Final = {
    "name": "efficientnet-lite0",
    "ready": True,
    "source": "embedded:efficientnet-lite0",
    "device": "cpu",
    "dtype": "float32",
    "activation": "softmax",
    "activation_reason": "the model has several outputs and ends in no softmax or sigmoid",
    "input": {
        "height": 224,
        "width": 224,
        "resize": 256,
        "fit": "crop",
        "interpolation": "bicubic",
        "channel_order": "rgb",
        "value_range": "0-1",
        "mean": [0.5, 0.5, 0.5],
        "std": [0.5, 0.5, 0.5],
    },
    "classes": 1000,
    "labels": ["tench", "goldfish"],
    "default_layer": "bn2",
    "methods": [
        {
            "name": "gradcam",
            "summary": "channels weighted by their mean gradient",
            "cost": "one backward",
            "at": "layer",
            "class_specific": True,
        }
    ],
    "max_batch": 16,
    "fingerprint": "5b1f0c9e0d6c4f5e8a7b6c5d4e3f2a1b",
}
