"""The one composition: images in, explanations out, from one forward pass.

from cam import explain

for explanation in explain(model, images):            # one per image: the predicted class
    explanation.target, explanation.probability, explanation.map
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from torch import Tensor, nn

from cam.errors import CamError
from cam.explanation import Explanation, Fusion, Question, Smoothing
from cam.layers import default_layer, level_layers, survey
from cam.locate import Reshape, declared
from cam.methods import method_named
from cam.onepass import explain_batch
from cam.output import resolve_reading
from cam.reading import Activation, Reading
from cam.stepwise import explain_in_steps, finish
from cam.targets import ClassTarget, Target

OneTarget = int | Target | None


def explain(
    model: nn.Module,
    images: Tensor,
    *,
    target: OneTarget | Sequence[OneTarget] = None,
    method: str = "gradcam",
    layer: str | Sequence[str] = "auto",
    budget: int | None = None,
    signed: bool = False,
    smooth: Smoothing = "none",
    fuse: Fusion = "none",
    reshape: Reshape | Mapping[str, Reshape] | None = None,
    output: str | int | None = None,
    activation: Activation | Literal["auto"] = "auto",
) -> list[Explanation]:
    """Explain what `model` sees in `images`.

    Args:
        images: float (B, C, H, W), preprocessed, on the model's device and in its dtype. They share
            forward passes; give a model that lets the images of a batch see each other (see
            `cam.company.sees_company`) one image a call.
        target: the class to explain, the same for every image; None for each image's predicted
            class; a Target for contrasts, masks, boxes, units and more; several for several maps
            from the same forward pass. For a target of each image's own see `explain_batch`.
        method: a name in `cam.METHODS`.
        layer: a module's name, or several; "auto" runs the model once more, on the first image,
            and takes the last layer with a spatial output; of a detector the last one that every
            box depends on, and for odam all that boxes are made from.
        budget: most forward passes of each image, for a method that needs many.
        signed, smooth, fuse: see `Question`.
        reshape: how a layer's output (B, …) becomes (B, K, h, w), where that cannot be found: a
            function, or words such as "tokens 14 14 1" (rows, columns, other tokens before them);
            for all layers, or for each name or pattern in a mapping.
        output: the name or index of the logits, where the model returns them in a mapping, an
            object or a tuple beside other tensors that could be logits; "logits" and "out" are
            found without.
        activation: what makes probabilities of the logits: "softmax"; "sigmoid" of a model with
            one output, or with labels that do not exclude each other; "none" of outputs that are
            probabilities already. "auto" tells by the model: see `cam.reading.activation_of`.

    Returns:
        Explanations image by image, within an image target by target, then layer by layer.

    Raises:
        CamError: see `cam.errors`. The model is left as found in any case.
    """
    if reshape is not None:
        each = reshape if isinstance(reshape, Mapping) else {"*": reshape}
        with declared(model, each):
            return explain(
                model,
                images,
                target=target,
                method=method,
                layer=layer,
                budget=budget,
                signed=signed,
                smooth=smooth,
                fuse=fuse,
                output=output,
                activation=activation,
            )
    reading = Reading(output, activation)
    targets = target if isinstance(target, Sequence) else [target]
    layers = [layer] if isinstance(layer, str) else list(layer)
    if "auto" in layers and method_named(method).at == "layer":
        found_layers = survey(model, images[:1], reading)
        whole = method_named(method).levels
        usual = level_layers(found_layers) if whole else (default_layer(found_layers),)
        layers = [each for name in layers for each in (usual if name == "auto" else (name,))]
    asked = tuple(ClassTarget(t) if t is None or isinstance(t, int) else t for t in targets)
    question = Question(asked, method, tuple(layers), budget, signed, smooth, fuse)
    question.check()
    if question.in_steps:
        reading, _ = resolve_reading(model, images[:1], reading)
        answers = [
            finish(explain_in_steps(model, image, question, reading=reading)) for image in images
        ]
    else:
        answers = explain_batch(model, images, [question] * len(images), reading=reading)
    found: list[Explanation] = []
    for answer in answers:
        if isinstance(answer, CamError):
            raise answer
        found.extend(answer.explanations)
    return found
