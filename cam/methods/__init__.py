"""The table of explanation methods, with the function, the cost and the abilities of each.

The functions that compute the maps need torch, so the table names them, and they are imported when
a map is made. A process that only reads requests and draws maps imports the table alone.

A package may add methods of its own: each entry point of the group `gradcam.methods` is a `Method`.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from cam.errors import UnknownMethod, did_you_mean
from cam.extensions import added
from cam.methods.method import INPUT as INPUT
from cam.methods.method import Method as Method

GROUP: Final = "gradcam.methods"
"""The group of entry points whose objects are further methods."""
RESERVED: Final = ("auto", "input")

# What the methods of a family have in common; an entry of the table names what is its own.
_by_weights: Final = partial(Method, cost="one backward", formula="weights", signed=True)
_by_components: Final = partial(Method, cost="one forward", formula="map", class_dependence="none")
_in_steps: Final = partial(Method, cost="N forwards", formula="steps", signed=True)
_at_input: Final = partial(Method, cost="one backward", formula="steps", at="input")

_BUILT_IN: Final[dict[str, Method]] = {
    method.name: method
    for method in (
        _by_weights(
            "gradcam",
            "channels weighted by their mean gradient",
            function="cam.methods.gradient_weights:gradcam",
            audited=True,
        ),
        _by_weights(
            "gradcam++",
            "channels weighted by their positive gradients, rare ones more",
            function="cam.methods.gradient_weights:gradcam_plusplus",
            audited=True,
        ),
        _in_steps(
            "smoothgradcam++",
            "Grad-CAM++ with its derivatives averaged over noisy copies of the photo",
            function="cam.methods.derivatives:smoothgradcam_plusplus",
            cost="N backwards",
            budget=25,
        ),
        _by_weights(
            "hirescam",
            "gradient times activation at each position: what the model really used",
            function="cam.methods.gradient_weights:hirescam",
            audited=True,
        ),
        _by_weights(
            "elementwise",
            "the positive part of gradient times activation, channel by channel",
            function="cam.methods.gradient_weights:elementwise",
            signed=False,
            audited=True,
        ),
        _by_weights(
            "layercam",
            "activations weighted by their own positive gradients: for shallow layers too",
            function="cam.methods.gradient_weights:layercam",
            audited=True,
        ),
        _by_weights(
            "xgradcam",
            "channels weighted by gradients where they are active",
            function="cam.methods.gradient_weights:xgradcam",
            audited=True,
        ),
        _in_steps(
            "shapleycam",
            "channels weighted by gradient and curvature, their Shapley value to second order",
            function="cam.methods.derivatives:shapleycam",
            cost="two backwards",
        ),
        _by_weights(
            "finercam",
            "Grad-CAM of what tells the class from the three most like it",
            function="cam.methods.gradient_weights:gradcam",
            score="cam.methods.comparison:finer",
            unsuited="cam.methods.comparison:unsuited",
            audited=True,
        ),
        _by_weights(
            "refinecam",
            "the product of the maps of Grad-CAM++ over the network's stages: a fine map",
            function="cam.methods.gradient_weights:gradcam_plusplus",
            signed=False,
            levels="stages",
            fusion="cam.methods.refinement:refined",
            audited=True,
        ),
        _by_weights(
            "odam",
            "of one box of a detector: gradient times activation at the levels it is made from",
            function="cam.methods.gradient_weights:hirescam",
            levels="boxes",
            fusion="cam.methods.detection:fused_levels",
            score="cam.methods.detection:box_score",
            unsuited="cam.methods.detection:unsuited",
        ),
        _in_steps(
            "cam",
            "channels weighted as the linear head weights their mean; exact, where there is one",
            function="cam.methods.head:cam",
            cost="one forward",
            unsuited="cam.methods.head:unsuited",
        ),
        _by_components(
            "eigencam",
            "the activations' first principal component, whatever the class",
            function="cam.methods.components:eigencam",
            audited=True,
        ),
        Method(
            "eigengradcam",
            "the first principal component of gradient times activation",
            "one backward",
            "map",
            "cam.methods.components:eigengradcam",
            audited=True,
        ),
        Method(
            "segeigencam",
            "the first principal component of activations weighted by gradients of either sign",
            "one backward",
            "map",
            "cam.methods.components:segeigencam",
            class_dependence="weak",
        ),
        _by_components(
            "kpcacam",
            "the activations' first kernel principal component, whatever the class",
            function="cam.methods.components:kpcacam",
        ),
        _by_components(
            "fem",
            "where channels are two standard deviations above their mean, whatever the class",
            function="cam.methods.components:fem",
            audited=True,
        ),
        _in_steps(
            "scorecam",
            "channels weighted by the score of the photo seen through them",
            function="cam.methods.perturbation:scorecam",
            budget=2048,
        ),
        _in_steps(
            "sscam",
            "Score-CAM with noise on each channel, ten times",
            function="cam.methods.perturbation:sscam",
            budget=2560,
        ),
        _in_steps(
            "iscam",
            "Score-CAM with each channel's part in the photo growing in ten steps",
            function="cam.methods.perturbation:iscam",
            budget=2560,
        ),
        _in_steps(
            "ablationcam",
            "channels weighted by what the score loses without them",
            function="cam.methods.perturbation:ablationcam",
            budget=2048,
            replays=True,
            unsuited="cam.methods.perturbation:unsuited_to_remove",
        ),
        _in_steps(
            "reciprocam",
            "the score of each position alone; behind a linear head CAM, without a pass",
            function="cam.methods.perturbation:reciprocam",
            budget=4096,
            replays=True,
        ),
        Method(
            "opticam",
            "the channels' weights that make the photo, seen through the map, score highest",
            "N backwards",
            "steps",
            "cam.methods.optimisation:opticam",
            budget=100,
            to_image=True,
        ),
        _at_input(
            "rise",
            "the photo through random masks: nothing but inputs and probabilities",
            function="cam.methods.perturbation:rise",
            cost="N forwards",
            budget=1000,
            unsuited="cam.methods.perturbation:unsuited_to_weigh",
        ),
        _at_input(
            "drise",
            "of one box of a detector: the photo through random masks, and how like it is found",
            function="cam.methods.detection:drise",
            cost="N forwards",
            budget=2000,
            unsuited="cam.methods.detection:unsuited",
        ),
        _in_steps(
            "occlusion",
            "what the probability loses behind a gray window",
            function="cam.methods.perturbation:occlusion",
            at="input",
            budget=196,
        ),
        _at_input(
            "gradient",
            "how much each pixel matters, either way",
            function="cam.methods.pixels:gradient",
        ),
        _at_input(
            "smoothgrad",
            "the gradient at each pixel, averaged over noisy copies of the photo",
            function="cam.methods.pixels:smoothgrad",
            cost="N backwards",
            budget=25,
        ),
        _in_steps(
            "integratedgradients",
            "what each pixel adds to the score on the way from gray to the photo",
            function="cam.methods.pixels:integratedgradients",
            cost="N backwards",
            at="input",
            budget=50,
        ),
        _in_steps(
            "expectedgradients",
            "what each pixel adds to the score on the way from many pictures to the photo",
            function="cam.methods.pixels:expectedgradients",
            cost="N backwards",
            at="input",
            budget=200,
        ),
        _at_input(
            "guidedbackprop",
            "the gradient at each pixel through positive evidence alone: edges",
            function="cam.methods.pixels:guidedbackprop",
            class_dependence="weak",
            unsuited="cam.methods.pixels:unsuited",
        ),
        Method(
            "guidedgradcam",
            "guided backpropagation where Grad-CAM is warm",
            "one backward",
            "steps",
            "cam.methods.pixels:guidedgradcam",
            to_image=True,
            unsuited="cam.methods.pixels:unsuited",
        ),
        _at_input(
            "fullgrad",
            "the score shared out among the pixels and every bias of the network",
            function="cam.methods.biases:fullgrad",
            class_dependence="weak",
            unsuited="cam.methods.biases:unsuited",
        ),
        _at_input(
            "lrp",
            "the score shared out backwards from layer to layer, by rules",
            function="cam.methods.relevance:lrp",
            signed=True,
            unsuited="cam.methods.relevance:unsuited",
        ),
        _at_input(
            "attnlrp",
            "a transformer's score shared out backwards, through attention by rules of its own",
            function="cam.methods.attnlrp:attnlrp",
            signed=True,
            unsuited="cam.methods.attnlrp:unsuited",
            audited=True,
        ),
        _at_input(
            "rollout",
            "attention followed from layer to layer, whatever the class",
            function="cam.methods.attention:rollout",
            cost="one forward",
            class_dependence="none",
            unsuited="cam.methods.attention:unsuited",
            audited=True,
        ),
        _at_input(
            "chefer",
            "attention followed from layer to layer, each layer's weighted by its gradient",
            function="cam.methods.attention:chefer",
            unsuited="cam.methods.attention:unsuited",
            audited=True,
        ),
        _at_input(
            "agcam",
            "attention's gradient in each layer, gated by how alike query and key are",
            function="cam.methods.attention:agcam",
            unsuited="cam.methods.attention:unsuited",
            audited=True,
        ),
        _at_input(
            "legrad",
            "how each layer's score rises with its attention",
            function="cam.methods.attention:legrad",
            unsuited="cam.methods.attention:unsuited",
            audited=True,
        ),
        _at_input(
            "gradeclip",
            "what the class token reads of each patch, its attention loosened",
            function="cam.methods.attention:gradeclip",
            signed=True,
            unsuited="cam.methods.attention:unsuited",
            audited=True,
        ),
    )
}


def _problem(method: Method) -> str | None:
    if (method.levels is None) != (method.fusion is None):
        return "levels and fusion belong together"
    return None


METHODS: Final[dict[str, Method]] = _BUILT_IN | {
    method.name: method
    for method in added(GROUP, Method, __name__, {*_BUILT_IN, *RESERVED}, _problem)
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
