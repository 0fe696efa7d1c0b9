"""Methods for one box of a detector: ODAM's fusion of levels, and D-RISE."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cosine_similarity

from cam.detectors.matching import overlap_with
from cam.drawing.placement import resize
from cam.errors import MethodUnsuited
from cam.methods.perturbation import random_masks
from cam.methods.subject import Attribution, Steps, Subject
from cam.methods.trial import Trial
from cam.outputs.output import Detections, Output
from cam.progress import Passes, Progress
from cam.targets import ClassTarget, Target

CELLS: Final = 16
"""Cells on each side of D-RISE's masks: the paper's s, for objects that are small in the image."""


def box_score(target: Target, output: Output) -> Tensor:
    """Return the score of the target's box.

    ODAM differentiates the class score, which is a probability. A box whose score rounds to 1 in
    float32 therefore has no gradient.

    Raises:
        MethodUnsuited: if the model is not a detector.
    """
    if output.detections is None:
        raise MethodUnsuited(
            "it explains the boxes of a detector; for other models, hirescam does the same at "
            "one layer"
        )
    return target.score(output)


def fused_levels(maps: Mapping[str, NDArray[np.float32]]) -> NDArray[np.float32]:
    """map = Σ_l U(M_l) · n_l / n, M_l = relu(Σ_k G_k ⊙ A_k) at level l of n_l positions, U resizing
    to the finest of the levels, of n positions.

    Zhao & Chan, "ODAM: Gradient-based Instance-Specific Visual Explanations for Object Detection",
    ICLR 2023, equations 1 and 2, without the optional smoothing of the gradients, as in the
    authors' code, which uses the one level of the box. Where a box has several levels, their parts
    of the score add up: the value at a position of a coarse level is divided among the finer
    positions that it covers.

    Args:
        maps: level → its map, float32 (h, w), for each level that the score depends on; at least
            one.

    Returns:
        float32 (h, w), of the size of the finest level.
    """
    height, width = max(
        (map_.shape for map_ in maps.values()), key=lambda shape: shape[0] * shape[1]
    )
    total = np.zeros((height, width), np.float32)
    for map_ in maps.values():
        total += resize(map_, height, width) * np.float32(map_.size / total.size)
    return total


def drise(subject: Subject) -> Steps:
    """map = 1/(N p) Σ_i S_i M_i, S_i = max_j IoU(L, L_j) · cos(P, P_j) · O_j over the boxes j that
    the detector finds in X ∘ M_i; L and P are the place and the class probabilities of the box
    that is explained, in X itself.

    Petsiuk et al., "Black-box Explanation of Object Detectors via Saliency Maps", CVPR 2021,
    equations 3 to 8, with RISE's masks of 16 × 16 cells, each open with p = 0.5. The paper uses
    N = 5,000 masks. The objectness O is the box's score. If the model returns only the best class
    of a box, the cosine is 1 for boxes of the same class, else 0. The masks come from a fixed seed.

    Raises:
        MethodUnsuited: if the model is not a detector, or if a target is against a box.
    """
    (output,) = subject.said(subject.image)
    boxes = [_box_of(target, output) for target in subject.targets]
    total = torch.zeros(len(boxes), *subject.size)
    done, stopped = 0, False
    for masks in random_masks(subject, cells=CELLS, opened=0.5):
        if stopped := done > 0 and subject.stop():
            break
        outputs = subject.said(subject.image * masks.to(subject.image))
        weights = torch.tensor(
            [[_similarity(box, output.detections) for box in boxes] for output in outputs]
        )
        total += torch.einsum("nt,nhw->thw", weights, masks[:, 0])
        done += len(masks)
        yield Progress(done, subject.budget)
    return Attribution(total / (done * 0.5), passes=Passes(done, subject.budget, stopped))


def _box_of(target: Target, output: Output) -> Detections:
    """Return the one detection that the target asks about.

    Raises:
        MethodUnsuited: see `drise`.
    """
    detections = output.detections
    if detections is None or not isinstance(target, ClassTarget) or target.against:
        raise MethodUnsuited(
            "drise explains only the evidence for a box of a detector; leave out against"
        )
    best = target.find(detections)
    assert best is not None  # a target without a detection was refused before
    return detections.rows([best])


def _similarity(box: Detections, detections: Detections | None) -> float:
    assert detections is not None  # the model is a detector
    if not len(detections.scores):
        return 0.0
    overlap = overlap_with(detections.boxes.float(), box.boxes[0].tolist())
    if box.classes is None or detections.classes is None:
        alike = (detections.labels == box.labels).float()
    else:
        alike = cosine_similarity(box.classes, detections.classes)
    return float((overlap * alike * detections.scores).max())


def unsuited(trial: Trial, name: str) -> str | None:
    """Return why a model does not suit a method of boxes: see `Method.unsuited`."""
    if trial.output.detections is not None:
        return None
    return "it explains a box: it needs a detector"
