"""Class activation maps of PyTorch models: tensors in, maps and pictures out."""

from cam.capture import Capture
from cam.errors import CamError
from cam.explain import explain, explain_batch
from cam.explanation import Answer, Explanation, Question
from cam.gallery import gallery
from cam.layers import Layer, default_layer, survey
from cam.methods import METHODS
from cam.observation import Observation, observe
from cam.overlay import COLORMAPS
from cam.replay import Replay
from cam.stepwise import explain_in_steps
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
    "Observation",
    "Question",
    "Replay",
    "default_layer",
    "explain",
    "explain_batch",
    "explain_in_steps",
    "gallery",
    "observe",
    "survey",
]
