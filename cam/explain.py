"""The one composition: images in, explanations out, from one forward pass.

from cam import explain

for explanation in explain(model, images):            # one per image: the predicted class
    explanation.target, explanation.probability, explanation.map
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from cam.errors import CamError
from cam.explanation import Explanation, Fusion, Question, Smoothing
from cam.inputs import Targets, budget_of, diagnosed, images_of, layers_of, model_of, targets_of
from cam.layers import default_layer, survey
from cam.methods import method_named
from cam.onepass import explain_batch
from cam.stepwise import explain_in_steps, finish


def explain(
    model: nn.Module,
    images: Tensor,
    *,
    target: Targets = None,
    method: str = "gradcam",
    layer: str | Sequence[str] = "auto",
    budget: int | None = None,
    signed: bool = False,
    smooth: Smoothing = "none",
    fuse: Fusion = "none",
) -> list[Explanation]:
    """Explain what `model` sees in `images`.

    A model that `torch.compile` returned is explained by the code that was compiled, in float32
    maps whatever autocast is on around the call; several threads that explain one model take turns.

    Args:
        images: float (B, C, H, W), preprocessed, on the model's device and in its dtype.
        target: the class to explain, the same for every image; None for each image's predicted
            class; a tensor or NumPy array of integers (B,) for a class of each image's own
            (`logits.argmax(1)`); a Target for contrasts, masks, boxes, units and more; a list or
            tuple of several for several maps from the same forward pass. For a Target of each
            image's own see `explain_batch`.
        method: a name in `cam.METHODS`.
        layer: a module's name, or several; "auto" runs the model once more, on the first image,
            and takes the last layer with a spatial output.
        budget: most forward passes of each image, for a method that needs many; 1 or more.
        signed, smooth, fuse: see `Question`.

    Returns:
        Explanations image by image, within an image target by target, then layer by layer.

    Raises:
        CamError: see `cam.errors`. The model is left as found in any case. What the model's own
            `forward` raises is raised as it is.
    """
    way = method_named(method)
    model = model_of(model, method)
    layers = layers_of(model, layer)
    images = images_of(images)
    asked = targets_of(target, len(images))
    with diagnosed(model, images):
        if "auto" in layers and way.at == "layer":
            automatic = default_layer(survey(model, images[:1]))
            layers = [automatic if name == "auto" else name for name in layers]
        rest = (method, tuple(layers), budget_of(budget), signed, smooth, fuse)
        questions = [Question(targets, *rest) for targets in asked]
        questions[0].check()
        if questions[0].in_steps:
            answers = [
                finish(explain_in_steps(model, image, question))
                for image, question in zip(images, questions, strict=True)
            ]
        else:
            answers = explain_batch(model, images, questions)
    found: list[Explanation] = []
    for answer in answers:
        if isinstance(answer, CamError):
            raise answer
        found.extend(answer.explanations)
    return found
