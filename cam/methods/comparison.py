"""Finer-CAM's score: a class compared with the classes most similar to it."""

from __future__ import annotations

import torch
from torch import Tensor

from cam.errors import MethodUnsuited
from cam.methods.trial import Trial
from cam.outputs.output import Output
from cam.targets import ClassTarget, Target

RIVALS = 3


def finer(target: Target, output: Output) -> Tensor:
    """y = Σ_d p_d (z_c − z_d) / Σ_d p_d over the three classes d whose logits z are nearest to
    that of the target's class c, p their softmax probabilities.

    Zhang et al., "Finer-CAM", CVPR 2025, equation 5 with α = 1, weighted as in its authors' code
    (pytorch-grad-cam's FinerWeightedTarget). The weights are the softmax of the rivals' logits,
    whatever the model's activation: the rivals with the highest logits get the greatest weights,
    also where classes do not exclude each other. In a model of one output, the other class is the
    only rival: y = 2 z, z the class's logit.

    Raises:
        MethodUnsuited: if the target is not a class of a classifier, or if it has `minus` or is of
            something other than the logit.
    """
    logits = output.logits if output.kind == "classes" else None
    if not isinstance(target, ClassTarget) or logits is None or len(logits) < 2:
        raise MethodUnsuited("finercam compares a class with others: it needs a classifier's class")
    if target.minus is not None or target.of != "logit":
        raise MethodUnsuited(
            "finercam contrasts the class with its rivals' logits itself; leave out minus and of"
        )
    assert target.index is not None
    far = (logits - logits[target.index]).detach().abs()
    far[target.index] = torch.inf
    rivals = far.topk(min(RIVALS, len(logits) - 1), largest=False).indices
    # The softmax of the rivals alone equals their probabilities divided by the sum of these, and
    # does not underflow where the probabilities do.
    weights = logits[rivals].softmax(0)
    score = (weights * (logits[target.index] - logits[rivals])).sum()
    return -score if target.against else score


def unsuited(trial: Trial, name: str) -> str | None:
    """Return why a model does not suit Finer-CAM: see `Method.unsuited`."""
    if trial.output.kind == "classes":
        return None
    return "it compares a class with others: it needs a classifier"
