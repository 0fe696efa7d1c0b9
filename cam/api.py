"""Explain images with one call: images in, explanations out, sharing one forward pass.

from cam import explain

for explanation in explain(model, images):            # one per image: the predicted class
    explanation.target, explanation.probability, explanation.map
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import chain
from typing import Any, Literal

from torch import Tensor, nn

from cam.drawing.notebook import InputPicture
from cam.errors import CamError, UnknownLayer
from cam.explanation import Explanation, Explanations, Fusion, Question, Smoothing
from cam.hooks.calls import call_of
from cam.hooks.inference import TRAINING, alone, is_training
from cam.inputs import (
    Images,
    Layers,
    Preprocess,
    Targets,
    budget_of,
    check_labels,
    diagnosed,
    images_of,
    is_pattern,
    label_of,
    labels_of,
    layers_of,
    methods_of,
    model_of,
    named_targets,
    photos_of,
    reader_of,
    targets_of,
    unwrapped,
)
from cam.layers import AUTO_LAYER, Layer, declared_layers, method_layers, survey
from cam.outputs.meaning import resolve_reading
from cam.outputs.reading import Activation, Reading
from cam.passes.batch_dependence import conduct_of
from cam.passes.onepass import explain_batch
from cam.passes.stepwise import CHUNK, explain_in_steps, finish
from cam.positions.locate import Reshape, declared
from cam.prompts import PromptClassifier


def explain(
    model: nn.Module | Any,
    images: Images,
    *,
    preprocess: Preprocess | None = None,
    text: Sequence[str] | None = None,
    labels: Sequence[str] | None = None,
    target: Targets = None,
    method: str | Sequence[str] = "gradcam",
    layer: Layers = "auto",
    budget: int | None = None,
    signed: bool = False,
    smooth: Smoothing = "none",
    fuse: Fusion = "none",
    reshape: Reshape | Mapping[str, Reshape] | None = None,
    output: str | int | None = None,
    activation: Activation | Literal["auto"] = "auto",
    used: bool = False,
) -> Explanations:
    """Explain the output of `model` for `images`.

    A pipeline of Hugging Face, `pipeline("image-classification", …)` or
    `pipeline("zero-shot-image-classification", …)`, stands for its model and its preprocessing of
    photos. If `torch.compile` returned the model, the original module is
    explained. A model in training mode is explained in evaluation mode, and a warning says so. Maps
    are computed in float32 even if the call is made under autocast. Several threads that explain
    one model take turns. The model is left as found, also after an error.

    Args:
        images: photos, which `preprocess` or timm's transform of the model prepares: PIL images or
            uint8 arrays (H, W, 3), or paths of files. Or float (B, C, H, W), preprocessed, on the
            model's device and in its dtype. The images share forward passes. If the model's output
            for an image depends on the other images of its batch, or if the model takes one image
            at a time, the images are explained one by one, and a warning says why. A warning also
            says if the model is stochastic. A few passes at the first call find this out: see
            `cam.passes.batch_dependence.Conduct`.
        text: the prompts that are the classes of a pipeline for zero-shot image classification, of
            which each call encodes them; to encode them once, make a `PromptClassifier`.
        labels: the name of each class, for `target` and for pictures; by default those of a model
            of transformers or a `PromptClassifier`.
        target: the class to explain, the same for every image, by index or label; None for each
            image's predicted class; a tensor or NumPy array of integers (B,) with one class for
            each image (`logits.argmax(1)`), or a NumPy array of objects (B,) with one Target for
            each; a Target for contrasts, masks, boxes, units and more; a list or tuple of targets
            for several maps from the same forward pass.
        method: a name in `cam.METHODS`, or several. Methods that take one pass share it. To compare
            their maps see `cam.spearman`.
        layer: a module's name, the module itself, or several of these. "auto" runs the model once
            more, on the first image, and takes the layer that was declared for the method or the
            model (see `cam.layers.declare_layers`), else the last layer with a spatial output that
            is not the model's own output; for a detector the last one that every box depends on,
            for odam all layers that boxes are made from, and for refinecam the last layer of each
            of the last four stages (resolutions). A pattern such as "blocks.*.norm1" stands for all
            matching layers at which a map can be made. "conv#2" is the second call of a module that
            runs several times in a pass.
        budget: the largest number of forward passes of each image, for a method that needs many; 1
            or more.
        signed, smooth, fuse: see `Question`.
        reshape: how a layer's output (B, …) becomes (B, K, h, w), if that cannot be found
            automatically: a function, or words such as "tokens 14 14 1" (rows, columns, number of
            other tokens before them); for all layers, or a mapping from names or patterns.
        output: the name or index of the logits, if the model returns them in a mapping, an object
            or a tuple with other tensors that could be logits; "logits" and "out" are found
            automatically.
        activation: the function that makes probabilities of the logits: "softmax"; "sigmoid" for a
            model with one output, or with labels that do not exclude each other; "none" for outputs
            that are probabilities already. "auto" finds it from the model: see
            `cam.outputs.meaning.resolve_reading`.
        used: whether each explanation records what each channel of the layer contributes to the
            score, to group photos by what the model used in them: see `Explanation.used`.

    Returns:
        Explanations ordered by image, then by method, then by target, then by layer. A notebook
        draws them over the images, as long as these are kept in a variable.

    Raises:
        CamError: see `cam.errors`. Exceptions of the model's own `forward` are raised unchanged.
    """
    model, preprocess = unwrapped(model, preprocess, text)
    given, ways = images, methods_of(method)
    for way in ways:
        model = model_of(model, way.name)
    layers = layers_of(model, layer)
    images = images_of(photos_of(model, images, preprocess))
    names = labels_of(model, labels)
    asked = targets_of(named_targets(names, target), len(images))
    if labels is not None:
        check_labels(labels, asked)
    if activation == "auto" and isinstance(model, PromptClassifier):
        activation = model.activation
    reading = Reading(output, activation)
    mode = (TRAINING,) if is_training(model) else ()
    shapes = reshape if isinstance(reshape, Mapping) else {"*": reshape} if reshape else {}
    # A declared reshape belongs to the model, so two threads that explain the model take turns.
    with (
        diagnosed(model, images),
        alone(model) if shapes else nullcontext(),
        declared(model, shapes) if shapes else nullcontext(),
    ):
        open_names = any(name == AUTO_LAYER or is_pattern(name) for name in layers)
        at_layers = any(way.at == "layer" for way in ways)
        known = survey(model, images[:1], reading) if open_names and at_layers else []
        questions: list[list[Question]] = []
        """One list for each method, with one question for each image."""
        for way in ways:
            where = layers
            if known and way.at == "layer":
                own, sole = declared_layers(model), len(ways) == 1
                meant = (
                    method_layers(way, known, own, alone=sole)
                    if name == AUTO_LAYER
                    else _meant(name, known)
                    for name in layers
                )
                where = list(dict.fromkeys(chain(*meant)))
            rest = (way.name, tuple(where), budget_of(budget), signed, smooth, fuse, used)
            questions.append([Question(targets, *rest) for targets in asked])
            questions[-1][0].check()
        in_steps = any(group[0].in_steps for group in questions)
        if in_steps:
            reading, _ = resolve_reading(model, images[:1], reading)
        conduct = conduct_of(model, images[:1], reading, many=in_steps or len(images) > 1)
        size = 1 if conduct.company else len(images)
        explanations = Explanations()
        for start in range(0, len(images), size):
            some = slice(start, start + size)
            asked_of = [group[some] for group in questions]
            by_image = _answered(
                model, images[some], asked_of, reading, alone=bool(conduct.company)
            )
            for number, answers in enumerate(by_image, start):
                picture = InputPicture(reader_of(model, given, preprocess, number))
                explanations += [
                    replace(
                        answer,
                        input=picture,
                        label=label_of(names, answer.target),
                        warnings=(
                            *([answer.flat] if answer.flat else []),
                            *answer.warnings,
                            *conduct.warnings,
                            *mode,
                        ),
                    )
                    for answer in answers
                ]
    return explanations


def _answered(
    model: nn.Module,
    images: Tensor,
    questions: Sequence[Sequence[Question]],
    reading: Reading,
    *,
    alone: bool,
) -> list[list[Explanation]]:
    """Return the explanations of each image, ordered by question. `questions` holds for each method
    one question for each image. If `alone`, each pass is of one image.

    Raises:
        CamError: if a question has an error instead of an answer.
    """
    together = [group for group in questions if not group[0].in_steps]
    answers = iter(
        explain_batch(model, images, list(chain(*together)), reading=reading) if together else []
    )
    by_image: list[list[Explanation]] = [[] for _ in images]
    for group in questions:
        for image, question, explanations in zip(images, group, by_image, strict=True):
            if question.in_steps:
                chunk = 1 if alone else CHUNK
                steps = explain_in_steps(model, image, question, chunk=chunk, reading=reading)
                answer = finish(steps)
            else:
                answer = next(answers)
            if isinstance(answer, CamError):
                raise answer
            explanations.extend(answer.explanations)
    return by_image


def _meant(name: str, layers: list[Layer]) -> Sequence[str]:
    """Return the layers that a name or a pattern stands for.

    Raises:
        UnknownLayer: if no layer at which a map can be made matches.
    """
    if not is_pattern(name):
        return (name,)
    of_calls = "#" in name  # a pattern for modules does not mean their single calls
    usable = [
        layer.name
        for layer in layers
        if layer.explainable and (of_calls or call_of(layer.name)[1] is None)
    ]
    matches = fnmatch.filter(usable, name)
    if not matches:
        raise UnknownLayer(
            f"no layer at which a map can be made matches {name!r}; the last are "
            f"{', '.join(usable[-3:])}"
        )
    return matches
