"""The one composition: images in, explanations out, from one forward pass.

from cam import explain

for explanation in explain(model, images):            # one per image: the predicted class
    explanation.target, explanation.probability, explanation.map
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from cam.capture import Capture
from cam.errors import CamError, NonFinite, UnknownMethod
from cam.evaluation import evaluating
from cam.explanation import Answer, Explanation, Map, Question, compose
from cam.grids import Grid, grids_of
from cam.layers import default_layer, survey
from cam.methods import METHODS, Method, method_named
from cam.stepwise import explain_in_steps, finish
from cam.targets import ClassTarget, logits_of

OneTarget = int | ClassTarget | None


def explain(
    model: nn.Module,
    images: Tensor,
    *,
    target: OneTarget | Sequence[OneTarget] = None,
    method: str = "gradcam",
    layer: str | Sequence[str] = "auto",
    budget: int | None = None,
) -> list[Explanation]:
    """Explain what `model` sees in `images`.

    Args:
        images: float (B, C, H, W), preprocessed, on the model's device and in its dtype.
        target: the class to explain, the same for every image; None for each image's predicted
            class; a ClassTarget for contrasts and more; several for several maps from the same
            forward pass.
        method: a name in `cam.METHODS`.
        layer: a module's name, or several; "auto" runs the model once more, on the first image,
            and takes the last layer with a spatial output.
        budget: most forward passes of each image, for a method that needs many.

    Returns:
        Explanations image by image, within an image target by target, then layer by layer.

    Raises:
        CamError: see `cam.errors`. The model is left as found in any case.
    """
    targets = target if isinstance(target, Sequence) else [target]
    layers = [layer] if isinstance(layer, str) else list(layer)
    if "auto" in layers and method_named(method).at == "layer":
        automatic = default_layer(survey(model, images[:1]))
        layers = [automatic if name == "auto" else name for name in layers]
    asked = tuple(t if isinstance(t, ClassTarget) else ClassTarget(t) for t in targets)
    question = Question(asked, method, tuple(layers), budget)
    found: list[Explanation] = []
    if method_named(method).steps:
        answers = [finish(explain_in_steps(model, image, question)) for image in images]
    else:
        answers = explain_batch(model, images, [question] * len(images))
    for answer in answers:
        if isinstance(answer, CamError):
            raise answer
        found.extend(answer.explanations)
    return found


def explain_batch(
    model: nn.Module, images: Tensor, questions: Sequence[Question]
) -> list[Answer | CamError]:
    """Answer a question for each image of a batch with one forward pass, and one backward pass
    for as many targets as the longest question has.

    In eval mode no image of a batch sees another, so the gradient of the summed targets is each
    image's own.

    Args:
        images: float (B, C, H, W), preprocessed, on the model's device and in its dtype.
        questions: one for each image; they may differ in everything.

    Returns:
        For each image its answer, or the error that is its own: a target that cannot be, or numbers
        that are not finite.

    Raises:
        CamError: that concerns the batch: a layer or method that cannot be used.
    """
    for question in questions:
        if method_named(question.method).steps:
            raise UnknownMethod(f"{question.method} takes many steps: see explain_in_steps")
    layers = dict.fromkeys(
        name for question in questions if question.targets for name in question.layers
    )
    with evaluating(model), Capture(model, layers) as capture:
        logits = logits_of(model(images)).float()
        grids = grids_of(capture.activations, images)
        scores = logits.detach().cpu()
        asked = [question.resolve(row) for question, row in zip(questions, scores, strict=True)]
        rounds = max(
            (len(targets) for targets in asked if not isinstance(targets, CamError)), default=0
        )
        maps: list[list[dict[str, Map | CamError]]] = [[] for _ in asked]
        for turn in range(rounds):
            chosen = {
                item: targets[turn]
                for item, targets in enumerate(asked)
                if not isinstance(targets, CamError) and turn < len(targets)
            }
            numbers = [
                target.score(logits[item])
                for item, target in chosen.items()
                if METHODS[questions[item].method].class_specific
            ]
            if numbers:
                capture.backward(torch.stack(numbers).sum(), retain_graph=turn + 1 < rounds)
            for item, found in _maps(capture, grids, questions, list(chosen)).items():
                maps[item].append(found)
    return [
        compose(question, targets, row, found)
        for question, targets, row, found in zip(questions, asked, scores, maps, strict=True)
    ]


def _maps(
    capture: Capture, grids: dict[str, Grid], questions: Sequence[Question], items: list[int]
) -> dict[int, dict[str, Map | CamError]]:
    """Item → layer → its map from the last backward pass: one call for each method and layer."""
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for item in items:
        for layer in questions[item].layers:
            groups[questions[item].method, layer].append(item)
    activations = capture.activations
    found: dict[int, dict[str, Map | CamError]] = {item: {} for item in items}
    for (name, layer), members in groups.items():
        method = METHODS[name]
        a = grids[layer].apply(activations[layer][members])
        g = torch.zeros_like(a)
        if method.class_specific:
            g = grids[layer].apply(capture.gradients[layer][members])
        for item, values in zip(members, _mapped(method, layer, a, g), strict=True):
            found[item][layer] = values
    return found


def _mapped(
    method: Method, layer: str, activations: Tensor, gradients: Tensor
) -> list[Map | CamError]:
    """A map for each image, or what kept the method from it."""
    finite = (activations.isfinite() & gradients.isfinite()).flatten(1).all(1)
    if not finite.all():
        activations = torch.where(finite[:, None, None, None], activations, 0)
    try:
        assert method.map  # where there are no steps
        maps = method.map(activations, gradients)
    except CamError as error:
        return [error] * len(activations)
    finite &= maps.isfinite().flatten(1).all(1)
    problem = NonFinite(f"the gradients or activations at layer {layer!r} are not finite")
    pairs = zip(maps.cpu().numpy(), finite.tolist(), strict=True)
    return [values if good else problem for values, good in pairs]
