"""Find the methods that a model does not support, and the reason for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from torch import Tensor, nn

from cam.errors import CamError
from cam.hooks.capture import Capture, gradient_stop
from cam.hooks.grids import TOKENS_FIRST, Grid
from cam.hooks.guidance import GuidedRectifiers
from cam.hooks.inference import evaluating
from cam.methods import METHODS
from cam.methods.attention import attention_problems
from cam.methods.attnlrp import attnlrp_problem
from cam.methods.biases import require_biases
from cam.methods.head import pooled_head
from cam.methods.perturbation import NO_VALUES
from cam.methods.relevance import lrp_problem
from cam.outputs.outputs import forward, total
from cam.outputs.reading import AUTO, Reading

ATTENTION: Final = ("rollout", "chefer", "agcam", "legrad", "gradeclip")
RECTIFIED: Final = ("guidedbackprop", "guidedgradcam")
"""Methods that guide gradients through rectifiers."""


def unsuited(
    model: nn.Module,
    image: Tensor,
    layer: str | None,
    grid: Grid | None,
    reading: Reading = AUTO,
) -> dict[str, str]:
    """Return the methods that the model does not support: method name → the reason, as half a
    sentence.

    The answer for `cam` holds for `layer`; without one, `cam` is not supported. The check makes a
    few forward passes of `image`, (1, C, H, W), and restores the model afterwards. Whatever a
    method's own check raises, be it of another library, makes that method unsuited, and no other.
    """
    with evaluating(model):
        (output,) = forward(model, image, reading)
    stop = gradient_stop(model)
    problems = _checked(ATTENTION, lambda: attention_problems(model, image, reading)) | _checked(
        RECTIFIED, lambda: _unrectified(model, image, reading)
    )
    problems |= _checked(("fullgrad",), lambda: _without_biases(model))
    if not stop:
        problems |= _checked(("lrp",), lambda: _one("lrp", lrp_problem(model, image, reading)))
        problems |= _checked(
            ("attnlrp",), lambda: _one("attnlrp", attnlrp_problem(model, image, reading))
        )
    if output.detections is None:
        problems |= dict.fromkeys(("odam", "drise"), "it explains a box: it needs a detector")
    if output.kind != "classes":
        problems["finercam"] = "it compares a class with others: it needs a classifier"
    if grid is not None and grid.tokens_first:
        problems["ablationcam"] = TOKENS_FIRST
    if output.kind == "value":
        problems["rise"] = NO_VALUES
    if output.logits is None:
        problems["cam"] = "it needs a classifier with a linear head"
    elif layer is None or grid is None:
        problems["cam"] = "it needs a default layer that a linear head reads"
    else:
        problems |= _checked(("cam",), lambda: _headless(model, image, layer, grid, reading))
    if stop:
        problems |= _without_gradients(model, image, layer, reading, stop)
    return problems


def _checked(names: Sequence[str], check: Callable[[], dict[str, str]]) -> dict[str, str]:
    """Return what a check of these methods finds. If it raises, none of them is suited."""
    try:
        return check()
    except CamError as error:
        reason = str(error)
    except Exception as error:  # the check of another library, or the model, may raise anything
        reason = f"its check failed: {type(error).__name__}: {error}"
    return dict.fromkeys(names, reason)


def _one(name: str, problem: str | None) -> dict[str, str]:
    return {name: problem} if problem else {}


def _unrectified(model: nn.Module, image: Tensor, reading: Reading) -> dict[str, str]:
    with evaluating(model), GuidedRectifiers() as guided:
        forward(model, image, reading)
    reason = "it needs rectifiers (ReLU): this model has none"
    return {} if guided.count else dict.fromkeys(RECTIFIED, reason)


def _without_biases(model: nn.Module) -> dict[str, str]:
    require_biases(model)
    return {}


def _headless(
    model: nn.Module, image: Tensor, layer: str, grid: Grid, reading: Reading
) -> dict[str, str]:
    pooled_head(model, image, layer, grid, reading)
    return {}


def _without_gradients(
    model: nn.Module, image: Tensor, layer: str | None, reading: Reading, stop: str
) -> dict[str, str]:
    """Return the methods that need a gradient where a model has none, or its inner layers, with
    the reason.

    Args:
        stop: why no gradient passes through a part of the model.
    """
    reaches = False
    if layer is not None:
        with evaluating(model), Capture(model, [layer]) as capture:
            score = total(forward(model, image.clone(), reading))
            if score.requires_grad:
                capture.backward(score)
            reaches = layer in capture.reached
    problems = {}
    for name, method in METHODS.items():
        if method.gradient == "image":
            problems[name] = f"it needs a gradient at the image: {stop}"
        elif method.at == "input" and method.cost == "one forward":
            problems[name] = f"it looks at every layer: {stop}"
        elif method.gradient and method.levels:
            problems[name] = f"it needs gradients at the earlier layers: {stop}"
        elif method.gradient and not reaches:
            problems[name] = f"it needs a gradient at the layer: {stop}"
    return problems
