"""Class activation maps of PyTorch models: tensors in, maps and pictures out."""

from cam.capture import Capture
from cam.errors import CamError
from cam.explain import Answer, Explanation, Question, explain, explain_batch
from cam.layers import Layer, default_layer, survey
from cam.methods import METHODS
from cam.overlay import COLORMAPS
from cam.targets import ClassTarget

__all__ = [
    "COLORMAPS",
    "METHODS",
    "Answer",
    "CamError",
    "Capture",
    "ClassTarget",
    "Explanation",
    "Layer",
    "Question",
    "default_layer",
    "explain",
    "explain_batch",
    "survey",
]
