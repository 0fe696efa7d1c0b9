"""The table of explanation methods, with the function, the cost and the abilities of each.

The functions that compute the maps need torch, so the table names them, and they are imported when
a map is made. A process that only reads requests and draws maps imports the table alone.

A package may add methods of its own: each entry point of the group `gradcam.methods` is a `Method`.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points
from typing import Final

from cam.errors import UnknownMethod, did_you_mean
from cam.methods.method import INPUT as INPUT
from cam.methods.method import Cost as Cost
from cam.methods.method import Method as Method

GROUP: Final = "gradcam.methods"
"""The group of entry points whose objects are further methods."""
NAME: Final = re.compile(r"[a-z][a-z0-9+_-]{0,63}")
"""What the name of a further method must look like: requests, files and metrics have it."""
RESERVED: Final = ("auto", "input")

_BUILT_IN: Final[dict[str, Method]] = {
    method.name: method
    for method in (
        Method(
            "gradcam",
            "channels weighted by their mean gradient",
            "one backward",
            "weights",
            "cam.methods.gradient_weights:gradcam",
            signed=True,
        ),
        Method(
            "gradcam++",
            "channels weighted by their positive gradients, rare ones more",
            "one backward",
            "weights",
            "cam.methods.gradient_weights:gradcam_plusplus",
            signed=True,
        ),
        Method(
            "smoothgradcam++",
            "the same, its derivatives averaged over noisy copies of the photo",
            "N backwards",
            "steps",
            "cam.methods.derivatives:smoothgradcam_plusplus",
            budget=25,
            signed=True,
        ),
        Method(
            "hirescam",
            "gradient times activation at each position: what the model really used",
            "one backward",
            "weights",
            "cam.methods.gradient_weights:hirescam",
            signed=True,
        ),
        Method(
            "elementwise",
            "the positive part of gradient times activation, channel by channel",
            "one backward",
            "weights",
            "cam.methods.gradient_weights:elementwise",
        ),
        Method(
            "layercam",
            "activations weighted by their own positive gradients: for shallow layers too",
            "one backward",
            "weights",
            "cam.methods.gradient_weights:layercam",
            signed=True,
        ),
        Method(
            "xgradcam",
            "channels weighted by gradients where they are active",
            "one backward",
            "weights",
            "cam.methods.gradient_weights:xgradcam",
            signed=True,
        ),
        Method(
            "shapleycam",
            "channels weighted by gradient and curvature, their Shapley value to second order",
            "two backwards",
            "steps",
            "cam.methods.derivatives:shapleycam",
            signed=True,
        ),
        Method(
            "finercam",
            "Grad-CAM of what tells the class from the three most like it",
            "one backward",
            "weights",
            "cam.methods.gradient_weights:gradcam",
            signed=True,
            score="cam.methods.comparison:finer",
        ),
        Method(
            "refinecam",
            "the product of the maps of Grad-CAM++ over the network's stages: a fine map",
            "one backward",
            "weights",
            "cam.methods.gradient_weights:gradcam_plusplus",
            levels="stages",
            fusion="cam.methods.refinement:refined",
        ),
        Method(
            "odam",
            "of one box of a detector: gradient times activation at the levels it is made from",
            "one backward",
            "weights",
            "cam.methods.gradient_weights:hirescam",
            signed=True,
            levels="boxes",
            fusion="cam.methods.detection:fused_levels",
            score="cam.methods.detection:box_score",
        ),
        Method(
            "cam",
            "channels weighted as the linear head weights their mean; exact, where there is one",
            "one forward",
            "steps",
            "cam.methods.head:cam",
            signed=True,
        ),
        Method(
            "eigencam",
            "the activations' first principal component, whatever the class",
            "one forward",
            "map",
            "cam.methods.components:eigencam",
            class_dependence="none",
        ),
        Method(
            "eigengradcam",
            "the first principal component of gradient times activation",
            "one backward",
            "map",
            "cam.methods.components:eigengradcam",
        ),
        Method(
            "kpcacam",
            "the activations' first kernel principal component, whatever the class",
            "one forward",
            "map",
            "cam.methods.components:kpcacam",
            class_dependence="none",
        ),
        Method(
            "fem",
            "where channels are two standard deviations above their mean, whatever the class",
            "one forward",
            "map",
            "cam.methods.components:fem",
            class_dependence="none",
        ),
        Method(
            "scorecam",
            "channels weighted by the score of the photo seen through them",
            "N forwards",
            "steps",
            "cam.methods.perturbation:scorecam",
            budget=2048,
            signed=True,
        ),
        Method(
            "sscam",
            "the same, each channel with noise, ten times",
            "N forwards",
            "steps",
            "cam.methods.perturbation:sscam",
            budget=2560,
            signed=True,
        ),
        Method(
            "iscam",
            "the same, each channel's part in the photo growing in ten steps",
            "N forwards",
            "steps",
            "cam.methods.perturbation:iscam",
            budget=2560,
            signed=True,
        ),
        Method(
            "ablationcam",
            "channels weighted by what the score loses without them",
            "N forwards",
            "steps",
            "cam.methods.perturbation:ablationcam",
            budget=2048,
            signed=True,
            replays=True,
        ),
        Method(
            "reciprocam",
            "the score of each position alone; behind a linear head CAM, without a pass",
            "N forwards",
            "steps",
            "cam.methods.perturbation:reciprocam",
            budget=4096,
            signed=True,
            replays=True,
        ),
        Method(
            "opticam",
            "the channels' weights that make the photo, seen through the map, score highest",
            "N backwards",
            "steps",
            "cam.methods.optimisation:opticam",
            budget=100,
        ),
        Method(
            "rise",
            "the photo through random masks: nothing but inputs and probabilities",
            "N forwards",
            "steps",
            "cam.methods.perturbation:rise",
            at="input",
            budget=1000,
        ),
        Method(
            "drise",
            "of one box of a detector: the photo through random masks, and how like it is found",
            "N forwards",
            "steps",
            "cam.methods.detection:drise",
            at="input",
            budget=2000,
        ),
        Method(
            "occlusion",
            "what the probability loses behind a gray window",
            "N forwards",
            "steps",
            "cam.methods.perturbation:occlusion",
            at="input",
            budget=196,
            signed=True,
        ),
        Method(
            "gradient",
            "how much each pixel matters, either way",
            "one backward",
            "steps",
            "cam.methods.pixels:gradient",
            at="input",
        ),
        Method(
            "smoothgrad",
            "the same, averaged over noisy copies of the photo",
            "N backwards",
            "steps",
            "cam.methods.pixels:smoothgrad",
            at="input",
            budget=25,
        ),
        Method(
            "integratedgradients",
            "what each pixel adds to the score on the way from gray to the photo",
            "N backwards",
            "steps",
            "cam.methods.pixels:integratedgradients",
            at="input",
            budget=50,
            signed=True,
        ),
        Method(
            "guidedbackprop",
            "the gradient at each pixel through positive evidence alone: edges",
            "one backward",
            "steps",
            "cam.methods.pixels:guidedbackprop",
            at="input",
            class_dependence="weak",
        ),
        Method(
            "guidedgradcam",
            "the same where Grad-CAM is warm",
            "one backward",
            "steps",
            "cam.methods.pixels:guidedgradcam",
        ),
        Method(
            "fullgrad",
            "the score shared out among the pixels and every bias of the network",
            "one backward",
            "steps",
            "cam.methods.biases:fullgrad",
            at="input",
            class_dependence="weak",
        ),
        Method(
            "rollout",
            "attention followed from layer to layer, whatever the class",
            "one forward",
            "steps",
            "cam.methods.attention:rollout",
            at="input",
            class_dependence="none",
        ),
        Method(
            "chefer",
            "the same, each layer's attention weighted by its gradient",
            "one backward",
            "steps",
            "cam.methods.attention:chefer",
            at="input",
        ),
        Method(
            "legrad",
            "how each layer's score rises with its attention",
            "one backward",
            "steps",
            "cam.methods.attention:legrad",
            at="input",
        ),
    )
}


def _added(taken: Mapping[str, Method]) -> Iterator[Method]:
    """Yield the methods of other packages; those that cannot be used are told by a warning."""
    names = {*taken, *RESERVED}
    for entry in sorted(entry_points(group=GROUP)):
        try:
            method = entry.load()
        except Exception as error:  # it is another package's code
            _leave_out(entry.value, f"{type(error).__name__}: {error}")
            continue
        if not isinstance(method, Method):
            _leave_out(entry.value, f"it is a {type(method).__name__}, not a cam.methods.Method")
        elif not NAME.fullmatch(method.name):
            _leave_out(entry.value, f"its name {method.name!r:.80} does not match {NAME.pattern}")
        elif method.name in names:
            _leave_out(entry.value, f"the name {method.name!r} is taken")
        elif (method.levels is None) != (method.fusion is None):
            _leave_out(entry.value, "levels and fusion belong together")
        else:
            names.add(method.name)
            yield method


def _leave_out(what: str, why: str) -> None:
    warnings.warn(f"the method {what} is left out: {why}", RuntimeWarning, stacklevel=2)


METHODS: Final[dict[str, Method]] = _BUILT_IN | {
    method.name: method for method in _added(_BUILT_IN)
}
"""Name → method, those of other packages last."""


def method_named(name: str) -> Method:
    """Return the method of that name in `METHODS`.

    Raises:
        UnknownMethod: if there is no such method; the message lists the methods that exist.
    """
    try:
        return METHODS[name]
    except (KeyError, TypeError):  # an unhashable value is not a name
        raise UnknownMethod(
            f"there is no method {name!r}; the methods are {', '.join(METHODS)}"
            f"{did_you_mean(name, METHODS)}"
        ) from None
