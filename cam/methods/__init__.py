"""The table of explanation methods, with the cost and the abilities of each.

The functions that compute the maps are in `cam.methods.formulas`, because they need torch. This
table does not: a process that only reads requests and draws maps imports it.
"""

from __future__ import annotations

from typing import Final

from cam.errors import UnknownMethod, did_you_mean
from cam.methods.method import INPUT as INPUT
from cam.methods.method import Cost as Cost
from cam.methods.method import Method as Method

METHODS: Final[dict[str, Method]] = {
    method.name: method
    for method in (
        Method(
            "gradcam",
            "channels weighted by their mean gradient",
            "one backward",
            "weights",
            signed=True,
        ),
        Method(
            "gradcam++",
            "channels weighted by their positive gradients, rare ones more",
            "one backward",
            "weights",
            signed=True,
        ),
        Method(
            "smoothgradcam++",
            "the same, its derivatives averaged over noisy copies of the photo",
            "N backwards",
            "steps",
            budget=25,
            signed=True,
        ),
        Method(
            "hirescam",
            "gradient times activation at each position: what the model really used",
            "one backward",
            "weights",
            signed=True,
        ),
        Method(
            "elementwise",
            "the positive part of gradient times activation, channel by channel",
            "one backward",
            "weights",
        ),
        Method(
            "layercam",
            "activations weighted by their own positive gradients: for shallow layers too",
            "one backward",
            "weights",
            signed=True,
        ),
        Method(
            "xgradcam",
            "channels weighted by gradients where they are active",
            "one backward",
            "weights",
            signed=True,
        ),
        Method(
            "shapleycam",
            "channels weighted by gradient and curvature, their Shapley value to second order",
            "two backwards",
            "steps",
            signed=True,
        ),
        Method(
            "finercam",
            "Grad-CAM of what tells the class from the three most like it",
            "one backward",
            "weights",
            signed=True,
        ),
        Method(
            "refinecam",
            "the product of the maps of Grad-CAM++ over the network's stages: a fine map",
            "one backward",
            "weights",
            levels="stages",
        ),
        Method(
            "odam",
            "of one box of a detector: gradient times activation at the levels it is made from",
            "one backward",
            "weights",
            signed=True,
            levels="boxes",
        ),
        Method(
            "cam",
            "channels weighted as the linear head weights their mean; exact, where there is one",
            "one forward",
            "steps",
            signed=True,
        ),
        Method(
            "eigencam",
            "the activations' first principal component, whatever the class",
            "one forward",
            "map",
            class_dependence="none",
        ),
        Method(
            "eigengradcam",
            "the first principal component of gradient times activation",
            "one backward",
            "map",
        ),
        Method(
            "kpcacam",
            "the activations' first kernel principal component, whatever the class",
            "one forward",
            "map",
            class_dependence="none",
        ),
        Method(
            "fem",
            "where channels are two standard deviations above their mean, whatever the class",
            "one forward",
            "map",
            class_dependence="none",
        ),
        Method(
            "scorecam",
            "channels weighted by the score of the photo seen through them",
            "N forwards",
            "steps",
            budget=2048,
            signed=True,
        ),
        Method(
            "sscam",
            "the same, each channel with noise, ten times",
            "N forwards",
            "steps",
            budget=2560,
            signed=True,
        ),
        Method(
            "iscam",
            "the same, each channel's part in the photo growing in ten steps",
            "N forwards",
            "steps",
            budget=2560,
            signed=True,
        ),
        Method(
            "ablationcam",
            "channels weighted by what the score loses without them",
            "N forwards",
            "steps",
            budget=2048,
            signed=True,
            replays=True,
        ),
        Method(
            "reciprocam",
            "the score of each position alone; behind a linear head CAM, without a pass",
            "N forwards",
            "steps",
            budget=4096,
            signed=True,
            replays=True,
        ),
        Method(
            "opticam",
            "the channels' weights that make the photo, seen through the map, score highest",
            "N backwards",
            "steps",
            budget=100,
        ),
        Method(
            "rise",
            "the photo through random masks: nothing but inputs and probabilities",
            "N forwards",
            "steps",
            at="input",
            budget=1000,
        ),
        Method(
            "drise",
            "of one box of a detector: the photo through random masks, and how like it is found",
            "N forwards",
            "steps",
            at="input",
            budget=2000,
        ),
        Method(
            "occlusion",
            "what the probability loses behind a gray window",
            "N forwards",
            "steps",
            at="input",
            budget=196,
            signed=True,
        ),
        Method(
            "gradient",
            "how much each pixel matters, either way",
            "one backward",
            "steps",
            at="input",
        ),
        Method(
            "smoothgrad",
            "the same, averaged over noisy copies of the photo",
            "N backwards",
            "steps",
            at="input",
            budget=25,
        ),
        Method(
            "integratedgradients",
            "what each pixel adds to the score on the way from gray to the photo",
            "N backwards",
            "steps",
            at="input",
            budget=50,
            signed=True,
        ),
        Method(
            "guidedbackprop",
            "the gradient at each pixel through positive evidence alone: edges",
            "one backward",
            "steps",
            at="input",
            class_dependence="weak",
        ),
        Method(
            "guidedgradcam",
            "the same where Grad-CAM is warm",
            "one backward",
            "steps",
        ),
        Method(
            "fullgrad",
            "the score shared out among the pixels and every bias of the network",
            "one backward",
            "steps",
            at="input",
            class_dependence="weak",
        ),
        Method(
            "rollout",
            "attention followed from layer to layer, whatever the class",
            "one forward",
            "steps",
            at="input",
            class_dependence="none",
        ),
        Method(
            "chefer",
            "the same, each layer's attention weighted by its gradient",
            "one backward",
            "steps",
            at="input",
        ),
        Method(
            "legrad",
            "how each layer's score rises with its attention",
            "one backward",
            "steps",
            at="input",
        ),
    )
}


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
