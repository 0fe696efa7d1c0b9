"""Find the methods that a model does not support, and the reason for each."""

from __future__ import annotations

from torch import Tensor, nn

from cam.errors import CamError
from cam.hooks.capture import Capture, gradient_stop
from cam.hooks.grids import Grid
from cam.hooks.inference import evaluating
from cam.methods import METHODS, Method
from cam.methods.method import load
from cam.methods.trial import Trial
from cam.outputs.outputs import forward, total
from cam.outputs.reading import AUTO, Reading


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
    trial = Trial(model, image, layer, grid, reading, output, stop)
    problems = {
        name: reason
        for name, method in METHODS.items()
        if (reason := _reason(method, trial)) is not None
    }
    if stop:
        problems |= _without_gradients(model, image, layer, reading, stop)
    return problems


def _reason(method: Method, trial: Trial) -> str | None:
    if method.unsuited is None:
        return None
    try:
        reason: str | None = load(method.unsuited)(trial, method.name)
    except CamError as error:
        return str(error)
    except Exception as error:  # the check of another library, or the model, may raise anything
        return f"its check failed: {type(error).__name__}: {error}"
    return reason


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
