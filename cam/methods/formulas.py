"""The function of each method in `cam.methods.METHODS`, by what the function returns.

A method of one pass works on the target layer's output for n images: activations A and gradients
G = ∂y/∂A, float (n, K, h, w). y is the target's score, K is the number of channels. Its function
returns

- W in `WEIGHTS`: then map = Σ_k W_k ⊙ A_k; see `cam.methods.gradients`; or
- the map in `MAPS`, where it is no such sum; see `cam.methods.components`.

A method with `Method.levels` makes one map of the maps of several layers by its function in
`FUSIONS`.

A method that runs the model itself is in `STEPS`; see `cam.methods.perturbation`. Maps are float32
(n, h, w) and not normalised. They are computed in float32 or better, whatever the model's
precision. A relu is applied last, so maps are ≥ 0, unless the caller asks a `signed` method for
the negative values, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from cam.methods.attention import chefer, legrad, rollout
from cam.methods.biases import fullgrad
from cam.methods.comparison import finer
from cam.methods.components import Component, eigencam, eigengradcam, fem, kpcacam, projected
from cam.methods.derivatives import shapleycam, smoothgradcam_plusplus
from cam.methods.detection import box_score, drise, fused_levels
from cam.methods.gradients import (
    elementwise,
    gradcam,
    gradcam_plusplus,
    hirescam,
    layercam,
    weighted_sum,
    xgradcam,
)
from cam.methods.linear import cam
from cam.methods.optimisation import opticam
from cam.methods.perturbation import (
    ablationcam,
    iscam,
    occlusion,
    reciprocam,
    rise,
    scorecam,
    sscam,
)
from cam.methods.pixels import (
    gradient,
    guidedbackprop,
    guidedgradcam,
    integratedgradients,
    smoothgrad,
)
from cam.methods.refinement import refined
from cam.methods.subject import Score, Steps, Subject

WEIGHTS: Final[dict[str, Callable[[Tensor, Tensor], Tensor]]] = {
    "gradcam": gradcam,
    "gradcam++": gradcam_plusplus,
    "hirescam": hirescam,
    "elementwise": elementwise,
    "layercam": layercam,
    "xgradcam": xgradcam,
    "finercam": gradcam,
    "refinecam": gradcam_plusplus,
    "odam": hirescam,
}
MAPS: Final[dict[str, Callable[[Tensor, Tensor], Tensor | Component]]] = {
    "eigencam": eigencam,
    "eigengradcam": eigengradcam,
    "kpcacam": kpcacam,
    "fem": fem,
}
STEPS: Final[dict[str, Callable[[Subject], Steps]]] = {
    "smoothgradcam++": smoothgradcam_plusplus,
    "shapleycam": shapleycam,
    "cam": cam,
    "scorecam": scorecam,
    "sscam": sscam,
    "iscam": iscam,
    "ablationcam": ablationcam,
    "reciprocam": reciprocam,
    "opticam": opticam,
    "rise": rise,
    "drise": drise,
    "occlusion": occlusion,
    "gradient": gradient,
    "smoothgrad": smoothgrad,
    "integratedgradients": integratedgradients,
    "guidedbackprop": guidedbackprop,
    "guidedgradcam": guidedgradcam,
    "fullgrad": fullgrad,
    "rollout": rollout,
    "chefer": chefer,
    "legrad": legrad,
}
FUSIONS: Final[dict[str, Callable[[Mapping[str, NDArray[np.float32]]], NDArray[np.float32]]]] = {
    "refinecam": refined,
    "odam": fused_levels,
}
"""Functions that make one map, float32 (h, w), of the maps of several layers, by layer name."""
SCORES: Final[dict[str, Score]] = {"finercam": finer, "odam": box_score}
"""Scores that methods differentiate instead of the target's own score."""


def apply(
    method: str, activations: Tensor, gradients: Tensor, *, eigen: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Return the maps of a method of one pass, float32 (n, h, w), and their `Component.ratio`.

    The relu of the weighted sum is left to the caller. With `eigen`, the maps of a method of
    `WEIGHTS` are projections on the first principal component of the weighted activations, instead
    of their sum. The ratio, (n,), is None where the maps are not projections on a leading
    component.
    """
    if method in MAPS:
        found = MAPS[method](activations, gradients)
        return found if isinstance(found, Component) else (found, None)
    weights = WEIGHTS[method](activations, gradients)
    if eigen:
        return projected(weights * activations.float())
    return weighted_sum(weights, activations), None
