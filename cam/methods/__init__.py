"""The methods of class activation mapping, and what each costs.

A method that needs one pass has a `map`, a pure function. It takes, for n images,

- `activations`: A, float (n, K, h, w), the target layer's output;
- `gradients`:   G = ∂y/∂A, float (n, K, h, w), y the target's score;

and returns the maps as float32 (n, h, w), ≥ 0 and not normalised. It computes in float32 or
better, whatever the model's precision. K is the number of channels. A method that needs many passes
has `steps`: see `cam.methods.perturbation`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from torch import Tensor

from cam.errors import UnknownMethod
from cam.methods.components import eigencam, eigengradcam, fem, kpcacam
from cam.methods.gradients import (
    elementwise,
    gradcam,
    gradcam_plusplus,
    hirescam,
    layercam,
    xgradcam,
)
from cam.methods.perturbation import Steps, ablationcam, occlusion, rise, scorecam
from cam.methods.pixels import gradient, smoothgrad
from cam.methods.subject import Subject

Cost = Literal["one forward", "one backward", "N forwards", "N backwards"]
INPUT: Final = "input"
"""Stands where a layer's name would, for methods that look at the image itself."""


@dataclass(frozen=True)
class Method:
    """One way from a target layer's activations and gradients to a map."""

    name: str
    summary: str
    """One line for people who choose."""
    cost: Cost
    """Beside the forward pass up to the target layer, which all share."""
    map: Callable[[Tensor, Tensor], Tensor] | None = None
    """Of a method that needs one pass: activations and gradients to maps."""
    steps: Callable[[Subject], Steps] | None = None
    """Of one that needs many."""
    at: Literal["layer", "input"] = "layer"
    budget: int = 0
    """Most forward passes of one image, unless the caller says otherwise."""

    @property
    def class_specific(self) -> bool:
        return self.cost != "one forward"


METHODS: Final[dict[str, Method]] = {
    method.name: method
    for method in (
        Method("gradcam", "channels weighted by their mean gradient", "one backward", gradcam),
        Method(
            "gradcam++",
            "channels weighted by their positive gradients, rare ones more",
            "one backward",
            gradcam_plusplus,
        ),
        Method(
            "hirescam",
            "gradient times activation at each position: what the model really used",
            "one backward",
            hirescam,
        ),
        Method(
            "elementwise",
            "the positive part of gradient times activation, channel by channel",
            "one backward",
            elementwise,
        ),
        Method(
            "layercam",
            "activations weighted by their own positive gradients: for shallow layers too",
            "one backward",
            layercam,
        ),
        Method(
            "xgradcam",
            "channels weighted by gradients where they are active",
            "one backward",
            xgradcam,
        ),
        Method(
            "eigencam",
            "the activations' first principal component, whatever the class",
            "one forward",
            eigencam,
        ),
        Method(
            "eigengradcam",
            "the first principal component of gradient times activation",
            "one backward",
            eigengradcam,
        ),
        Method(
            "kpcacam",
            "the activations' first kernel principal component, whatever the class",
            "one forward",
            kpcacam,
        ),
        Method(
            "fem",
            "where channels are two standard deviations above their mean, whatever the class",
            "one forward",
            fem,
        ),
        Method(
            "scorecam",
            "channels weighted by the score of the photo seen through them",
            "N forwards",
            steps=scorecam,
            budget=2048,
        ),
        Method(
            "ablationcam",
            "channels weighted by what the score loses without them",
            "N forwards",
            steps=ablationcam,
            budget=2048,
        ),
        Method(
            "rise",
            "the photo through random masks: nothing but inputs and probabilities",
            "N forwards",
            steps=rise,
            at="input",
            budget=1000,
        ),
        Method(
            "occlusion",
            "what the probability loses behind a gray window",
            "N forwards",
            steps=occlusion,
            at="input",
            budget=196,
        ),
        Method(
            "gradient",
            "how much each pixel matters, either way",
            "one backward",
            steps=gradient,
            at="input",
            budget=1,
        ),
        Method(
            "smoothgrad",
            "the same, averaged over noisy copies of the photo",
            "N backwards",
            steps=smoothgrad,
            at="input",
            budget=25,
        ),
    )
}


def method_named(name: str) -> Method:
    """The method of that name in `METHODS`.

    Raises:
        UnknownMethod: naming those that exist.
    """
    try:
        return METHODS[name]
    except KeyError:
        raise UnknownMethod(
            f"there is no method {name!r}; the methods are {', '.join(METHODS)}"
        ) from None
