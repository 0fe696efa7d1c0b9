"""Finer-CAM's score: a class beside those most like it."""

from __future__ import annotations

import torch
from torch import Tensor

from cam.errors import MethodUnsuited
from cam.outputs.output import Output
from cam.targets import ClassTarget, Target

RIVALS = 3


def finer(target: Target, output: Output) -> Tensor:
    """y = Σ_d p_d (z_c − z_d) / Σ_d p_d over the three classes d whose logits z are nearest to
    that of the target's class c, p their softmax probabilities.

    Zhang et al., "Finer-CAM", CVPR 2025, equation 5 with α = 1, weighted as in its authors' code
    (pytorch-grad-cam's FinerWeightedTarget). The weights are the softmax of the rivals' outputs
    whatever the model's activation: they weight the nearest classes most also where classes do not
    exclude each other. Of a model of one output, the only rival is the other class: y = 2 z.

    Raises:
        MethodUnsuited: if the target is no class of a classifier.
    """
    logits = output.logits
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
    # Their probabilities over their sum, also where both are too small for a number.
    weights = logits[rivals].softmax(0)
    score = (weights * (logits[target.index] - logits[rivals])).sum()
    return -score if target.against else score
