"""The one composition: images in, explanations out, from one forward pass.

from cam import explain

for explanation in explain(model, images):            # one per image: the predicted class
    explanation.target, explanation.probability, explanation.map
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from itertools import chain
from typing import Literal

from torch import Tensor, nn

from cam.errors import CamError, UnknownLayer
from cam.explanation import Explanation, Fusion, Question, Smoothing
from cam.hooks.inference import alone
from cam.inputs import (
    Targets,
    budget_of,
    diagnosed,
    images_of,
    is_pattern,
    layers_of,
    methods_of,
    model_of,
    targets_of,
)
from cam.layers import Layer, default_layer, level_layers, survey
from cam.methods import Method
from cam.outputs.output import resolve_reading
from cam.outputs.reading import Activation, Reading
from cam.passes.onepass import explain_batch
from cam.passes.stepwise import explain_in_steps, finish
from cam.positions.locate import Reshape, declared


def explain(
    model: nn.Module,
    images: Tensor,
    *,
    target: Targets = None,
    method: str | Sequence[str] = "gradcam",
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

    A model that `torch.compile` returned is explained by the code that was compiled, in float32
    maps whatever autocast is on around the call; several threads that explain one model take turns.

    Args:
        images: float (B, C, H, W), preprocessed, on the model's device and in its dtype. They share
            forward passes; give a model that lets the images of a batch see each other (see
            `cam.passes.company.sees_company`) one image a call.
        target: the class to explain, the same for every image; None for each image's predicted
            class; a tensor or NumPy array of integers (B,) for a class of each image's own
            (`logits.argmax(1)`); a Target for contrasts, masks, boxes, units and more; a list or
            tuple of several for several maps from the same forward pass. For a Target of each
            image's own see `explain_batch`.
        method: a name in `cam.METHODS`, or several: those of one pass share it. To compare their
            maps see `cam.spearman`.
        layer: a module's name, or several; "auto" runs the model once more, on the first image,
            and takes the last layer with a spatial output; of a detector the last one that every
            box depends on, and for odam all that boxes are made from. A pattern such as
            "blocks.*.norm1" stands for all layers that it matches at which a map can be made.
        budget: most forward passes of each image, for a method that needs many; 1 or more.
        signed, smooth, fuse: see `Question`.
        reshape: how a layer's output (B, …) becomes (B, K, h, w), where that cannot be found: a
            function, or words such as "tokens 14 14 1" (rows, columns, other tokens before them);
            for all layers, or for each name or pattern in a mapping.
        output: the name or index of the logits, where the model returns them in a mapping, an
            object or a tuple beside other tensors that could be logits; "logits" and "out" are
            found without.
        activation: what makes probabilities of the logits: "softmax"; "sigmoid" of a model with
            one output, or with labels that do not exclude each other; "none" of outputs that are
            probabilities already. "auto" tells by the model: see
            `cam.outputs.reading.activation_of`.

    Returns:
        Explanations image by image, within an image method by method, then target by target, then
        layer by layer.

    Raises:
        CamError: see `cam.errors`. The model is left as found in any case. What the model's own
            `forward` raises is raised as it is.
    """
    ways = methods_of(method)
    for way in ways:
        model = model_of(model, way.name)
    layers = layers_of(model, layer)
    images = images_of(images)
    asked = targets_of(target, len(images))
    reading = Reading(output, activation)
    shapes = reshape if isinstance(reshape, Mapping) else {"*": reshape} if reshape else {}
    # What is declared is the model's: two threads that explain it take turns.
    with (
        diagnosed(model, images),
        alone(model) if shapes else nullcontext(),
        declared(model, shapes) if shapes else nullcontext(),
    ):
        open_names = any(name == "auto" or is_pattern(name) for name in layers)
        at_layers = any(way.at == "layer" for way in ways)
        known = survey(model, images[:1], reading) if open_names and at_layers else []
        questions: list[list[Question]] = []
        """For each method one for each image."""
        for way in ways:
            names = layers
            if known and way.at == "layer":
                meant = [each for name in layers for each in _meant(name, way, known)]
                names = list(dict.fromkeys(meant))
            rest = (way.name, tuple(names), budget_of(budget), signed, smooth, fuse)
            questions.append([Question(targets, *rest) for targets in asked])
            questions[-1][0].check()
        if any(each[0].in_steps for each in questions):
            reading, _ = resolve_reading(model, images[:1], reading)
        together = [each for each in questions if not each[0].in_steps]
        answers = iter(
            explain_batch(model, images, list(chain(*together)), reading=reading)
            if together
            else []
        )
        found: list[list[Explanation]] = [[] for _ in images]
        for each in questions:
            for image, question, explanations in zip(images, each, found, strict=True):
                if question.in_steps:
                    steps = explain_in_steps(model, image, question, reading=reading)
                    answer = finish(steps)
                else:
                    answer = next(answers)
                if isinstance(answer, CamError):
                    raise answer
                explanations.extend(answer.explanations)
    return list(chain(*found))


def _meant(name: str, method: Method, layers: list[Layer]) -> Sequence[str]:
    """The layers that a name, "auto" or a pattern stands for.

    Raises:
        UnknownLayer: if no layer at which a map can be made matches.
    """
    if name == "auto":
        return level_layers(layers) if method.levels else (default_layer(layers),)
    if not is_pattern(name):
        return (name,)
    usable = [layer.name for layer in layers if layer.explainable]
    found = fnmatch.filter(usable, name)
    if not found:
        raise UnknownLayer(
            f"no layer at which a map can be made matches {name!r}; the last are "
            f"{', '.join(usable[-3:])}"
        )
    return found
