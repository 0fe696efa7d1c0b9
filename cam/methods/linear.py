"""CAM: channels weighted by the linear head that reads the layer's mean."""

from __future__ import annotations

import torch

from cam.errors import MethodUnsuited
from cam.methods.head import pooled_head
from cam.methods.progress import Progress
from cam.methods.subject import Attribution, Steps, Subject
from cam.targets import ClassTarget


def cam(subject: Subject) -> Steps:
    """map = relu(Σ_k w_k A_k), w the class's row in a linear head that reads the mean of A over
    its positions; with a contrast, the difference of two rows. A head of one output has the row w
    for the positive class and −w for the negative one.

    Zhou et al., "Learning Deep Features for Discriminative Localization", CVPR 2016, equation 2.
    The paper has no relu; `signed` leaves it out. For models that apply a relu between the layer
    and the mean, such as DenseNet, A is rectified, too.

    Raises:
        MethodUnsuited: if the model has no such head, or if a target is not a class's logit.
    """
    head = pooled_head(subject.model, subject.image, subject.layer, subject.grid, subject.reading)
    weights = head.weights
    if len(weights) == 1:
        weights = torch.cat([-weights, weights])
    a = subject.activations()
    a = a.relu() if head.rectified else a
    rows = []
    for target in subject.targets:
        if not isinstance(target, ClassTarget) or target.of != "logit":
            raise MethodUnsuited("cam explains classes' logits: the weights of its head")
        row = weights[target.index]
        if target.minus is not None:
            row = row - weights[target.minus]
        rows.append(-row if target.against else row)
    yield Progress(1, 1)
    return Attribution(torch.einsum("tk,khw->thw", torch.stack(rows), a[0]))
