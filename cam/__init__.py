"""Class activation maps of PyTorch models: tensors in, maps and pictures out."""

from cam.agreement import spearman
from cam.drawing.gallery import gallery
from cam.drawing.overlay import COLORMAPS
from cam.errors import CamError
from cam.explain import explain
from cam.explanation import Answer, Explanation, Question
from cam.hooks.capture import Capture
from cam.hooks.change import Change, ablate, clamp, scale
from cam.hooks.replay import Replay
from cam.layers import Layer, default_layer, leaves, survey
from cam.methods import METHODS
from cam.outputs.output import Detections, Output, resolve_reading
from cam.outputs.reading import Reading
from cam.passes.factorisation import Concept, factorise
from cam.passes.observation import Observation, embed, observe
from cam.passes.onepass import explain_batch
from cam.passes.stepwise import explain_in_steps
from cam.targets import ClassTarget, SimilarityTarget, Target, UnitTarget

__all__ = [
    "COLORMAPS",
    "METHODS",
    "Answer",
    "CamError",
    "Capture",
    "Change",
    "ClassTarget",
    "Concept",
    "Detections",
    "Explanation",
    "Layer",
    "Observation",
    "Output",
    "Question",
    "Reading",
    "Replay",
    "SimilarityTarget",
    "Target",
    "UnitTarget",
    "ablate",
    "clamp",
    "default_layer",
    "embed",
    "explain",
    "explain_batch",
    "explain_in_steps",
    "factorise",
    "gallery",
    "leaves",
    "observe",
    "resolve_reading",
    "scale",
    "spearman",
    "survey",
]
