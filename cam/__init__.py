"""Class activation maps of PyTorch models: tensors in, maps and pictures out.

Names are imported when they are first used: a process that only reads requests or draws maps starts
without torch, and one that only reads boxes and answers starts without OpenCV.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cam.activations.factorisation import factorise
    from cam.activations.gallery import gallery
    from cam.activations.observations import Concept, Observation
    from cam.activations.observe import observe
    from cam.agreement import spearman
    from cam.answers.answer import AnswerOptions, AnswerToken, AnswerWord, ExplainedAnswer
    from cam.answers.explain import answer_in_steps, explain_answer
    from cam.answers.methods import ANSWER_METHODS
    from cam.answers.vision_language import VisionLanguageModel
    from cam.api import explain
    from cam.drawing.overlay import COLORMAPS
    from cam.errors import CamError
    from cam.evaluation.evaluate import evaluate, evaluate_in_steps
    from cam.evaluation.metrics import METRICS
    from cam.evaluation.randomisation import randomised_in_steps
    from cam.explanation import ExplainedImage, Explanation, Question, grid
    from cam.hooks.capture import Capture
    from cam.hooks.change import Change, ablate, clamp, scale
    from cam.hooks.replay import Replay
    from cam.layers import Layer, default_layer, leaves, survey
    from cam.methods import METHODS
    from cam.outputs.meaning import resolve_reading
    from cam.outputs.output import Detections, Output
    from cam.outputs.reading import Reading
    from cam.passes.embedding import embed
    from cam.passes.onepass import explain_batch
    from cam.passes.stepwise import explain_in_steps
    from cam.prompts import PromptClassifier
    from cam.reasons.cascade import Reason
    from cam.reasons.evidence import evidence_layers
    from cam.targets import ClassTarget, SimilarityTarget, Target, TextTarget, UnitTarget

_HOMES = {
    "cam.activations.factorisation": ("factorise",),
    "cam.activations.gallery": ("gallery",),
    "cam.activations.observations": ("Concept", "Observation"),
    "cam.activations.observe": ("observe",),
    "cam.agreement": ("spearman",),
    "cam.answers.answer": ("AnswerOptions", "AnswerToken", "AnswerWord", "ExplainedAnswer"),
    "cam.answers.explain": ("answer_in_steps", "explain_answer"),
    "cam.answers.methods": ("ANSWER_METHODS",),
    "cam.answers.vision_language": ("VisionLanguageModel",),
    "cam.api": ("explain",),
    "cam.drawing.overlay": ("COLORMAPS",),
    "cam.errors": ("CamError",),
    "cam.evaluation.evaluate": ("evaluate", "evaluate_in_steps"),
    "cam.evaluation.metrics": ("METRICS",),
    "cam.evaluation.randomisation": ("randomised_in_steps",),
    "cam.explanation": ("ExplainedImage", "Explanation", "Question", "grid"),
    "cam.hooks.capture": ("Capture",),
    "cam.hooks.change": ("Change", "ablate", "clamp", "scale"),
    "cam.hooks.replay": ("Replay",),
    "cam.layers": ("Layer", "default_layer", "leaves", "survey"),
    "cam.methods": ("METHODS",),
    "cam.outputs.meaning": ("resolve_reading",),
    "cam.outputs.output": ("Detections", "Output"),
    "cam.outputs.reading": ("Reading",),
    "cam.passes.embedding": ("embed",),
    "cam.passes.onepass": ("explain_batch",),
    "cam.passes.stepwise": ("explain_in_steps",),
    "cam.prompts": ("PromptClassifier",),
    "cam.reasons.cascade": ("Reason",),
    "cam.reasons.evidence": ("evidence_layers",),
    "cam.targets": ("ClassTarget", "SimilarityTarget", "Target", "TextTarget", "UnitTarget"),
}
"""Module → its names."""
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "ANSWER_METHODS",
    "COLORMAPS",
    "METHODS",
    "METRICS",
    "AnswerOptions",
    "AnswerToken",
    "AnswerWord",
    "CamError",
    "Capture",
    "Change",
    "ClassTarget",
    "Concept",
    "Detections",
    "ExplainedAnswer",
    "ExplainedImage",
    "Explanation",
    "Layer",
    "Observation",
    "Output",
    "PromptClassifier",
    "Question",
    "Reading",
    "Reason",
    "Replay",
    "SimilarityTarget",
    "Target",
    "TextTarget",
    "UnitTarget",
    "VisionLanguageModel",
    "ablate",
    "answer_in_steps",
    "clamp",
    "default_layer",
    "embed",
    "evaluate",
    "evaluate_in_steps",
    "evidence_layers",
    "explain",
    "explain_answer",
    "explain_batch",
    "explain_in_steps",
    "factorise",
    "gallery",
    "grid",
    "leaves",
    "observe",
    "randomised_in_steps",
    "resolve_reading",
    "scale",
    "spearman",
    "survey",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return __all__
