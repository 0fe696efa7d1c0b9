"""Which methods a model cannot do, and why."""

from __future__ import annotations

from torch import Tensor, nn

from cam.attention import attending
from cam.errors import CamError, MethodUnsuited
from cam.evaluation import evaluating
from cam.grids import Grid
from cam.guidance import GuidedRectifiers
from cam.head import pooled_head
from cam.methods.attention import ONE_EACH, blocks_of, require_global
from cam.methods.biases import require_biases
from cam.output import outputs_of, size_of
from cam.reading import AUTO, Reading


def unsuited(
    model: nn.Module, image: Tensor, layer: str, grid: Grid, reading: Reading = AUTO
) -> dict[str, str]:
    """Method name → why the model cannot do it, as half a sentence; of `cam`, at `layer`.

    Two forward passes of `image`, (1, C, H, W); the model is left as found.
    """
    found: dict[str, str] = {}
    matrices: list[Tensor] = []
    try:
        with evaluating(model), GuidedRectifiers() as guided, attending() as matrices:
            (output,) = outputs_of(model(image), size=size_of(image), reading=reading, batch=1)
        require_global(model, matrices, image)
    except MethodUnsuited as error:
        found |= dict.fromkeys(("rollout", "chefer", "legrad"), str(error))
        with evaluating(model), GuidedRectifiers() as guided:
            (output,) = outputs_of(model(image), size=size_of(image), reading=reading, batch=1)
    if not guided.count:
        reason = "it needs rectifiers (ReLU): this model has none"
        found |= dict.fromkeys(("guidedbackprop", "guidedgradcam"), reason)
    try:
        if "legrad" not in found and len(blocks_of(model)) != len(matrices):
            found["legrad"] = ONE_EACH
    except MethodUnsuited as error:
        found["legrad"] = str(error)
    try:
        require_biases(model)
    except MethodUnsuited as error:
        found["fullgrad"] = str(error)
    if output.detections is None:
        found |= dict.fromkeys(("odam", "drise"), "it explains a box: it needs a detector")
    if output.logits is None:
        found["finercam"] = "it compares a class with others: it needs a classifier"
        found["cam"] = "it needs a classifier with a linear head"
    else:
        try:
            pooled_head(model, image, layer, grid, reading)
        except CamError as error:
            found["cam"] = str(error)
    return found
