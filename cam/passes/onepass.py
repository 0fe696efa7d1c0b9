"""Explain a batch of images with one forward pass.

The questions may differ in targets, methods, layers and options: see `explain_batch`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import cycle

import torch
from torch import Tensor, nn

from cam.errors import CamError, LayerDidNotRun, MethodUnsuited
from cam.explanation import Answer, Question
from cam.hooks.capture import Capture, no_path
from cam.hooks.grids import Grid
from cam.hooks.inference import evaluating
from cam.hooks.precision import full_precision
from cam.methods import METHODS
from cam.methods.head import HeadSignals, PooledHead
from cam.outputs.logit_layers import logit_layers
from cam.outputs.meaning import resolve_reading
from cam.outputs.output import Output, detached, forward, outputs_of, scale_of, size_of, watching
from cam.outputs.reading import AUTO, Reading, logits_of
from cam.passes.composition import ComputedMap, compose, score_of
from cam.passes.maps import Signals, maps_of, of_levels
from cam.positions.levels import reached_layers
from cam.positions.locate import locate
from cam.targets import Target


def explain_batch(
    model: nn.Module,
    images: Tensor,
    questions: Sequence[Question],
    *,
    head: PooledHead | None = None,
    reading: Reading = AUTO,
) -> list[Answer | CamError]:
    """Answer one question or several for each image of a batch with one forward pass, and with as
    many backward passes as the longest question has targets.

    In eval mode the images of a batch do not affect each other, so the gradient of the sum of their
    scores is, for each image, the gradient of its own score.

    Args:
        images: float (B, C, H, W), preprocessed, on the model's device and in its dtype.
        questions: one for each image, or the same number for each: first one question for every
            image, then a second one for every image, and so on. Targets, methods, layers and
            options may differ from question to question.
        head: the model's pooled linear head, from `pooled_head`. If the questions are about the
            head's layer alone, there is no backward pass through the model and no graph.
        reading: how the model's output is read. If its activation is `auto`, a few more passes of
            one image find it for this call and later ones: see `resolve_reading`.

    Returns:
        For each question its answer, or the error of this question alone: a target that cannot be
        used, or numbers that are not finite.

    Raises:
        CamError: an error of the whole batch: a layer or method that cannot be used.
    """
    for question in questions:
        question.check()
        if question.in_steps:
            raise MethodUnsuited(f"{question.method} takes many steps: see explain_in_steps")
    reading, _ = resolve_reading(model, images[:1], reading)
    if not any(question.targets for question in questions):  # only predictions are asked for
        with evaluating(model), torch.inference_mode():
            said = detached(forward(model, images, reading))
        return [
            compose(question, question.resolve(output), output, [])
            for question, output in zip(questions, cycle(said), strict=False)
        ]
    if head and all(_by_head(head, question) for question in questions):
        with evaluating(model), watching(model, [head.layer]) as seen, torch.inference_mode():
            logits = logits_of(model(images.clone()), reading, batch=len(images))
            if head.layer not in seen:
                raise LayerDidNotRun(f"layer {head.layer!r} did not run in this forward pass")
        return answer_by_head(head, questions, seen[head.layer], logits, images, reading)
    layers = dict.fromkeys(
        name for question in questions if question.targets for name in question.layers
    )
    looks = dict.fromkeys(name for question in questions for name in question.looks_at)
    located = locate(model, images[:1], [*layers, *looks])
    graph = False
    while True:
        with (
            evaluating(model),
            Capture(model, layers, trunk="train" if graph else "inference") as capture,
        ):
            outputs = forward(model, images, reading, layers=looks, located=located)
            if capture.interrupted and not graph:
                graph = True
                continue
            grids = located.grids(capture.activations, images)
            answers = answer(questions, outputs, capture, grids, unrecorded=capture.unrecorded)
        return [
            _advised(model, images[turn % len(images)][None], answer, reading)
            for turn, answer in enumerate(answers)
        ]


def _advised(
    model: nn.Module, image: Tensor, answer: Answer | CamError, reading: Reading
) -> Answer | CamError:
    """Return the answer for an image (1, C, H, W), with a warning for each map whose gradient is
    all zero. The warning names a layer at which the gradient is not all zero, if there is one."""
    if isinstance(answer, CamError) or all(
        explanation.reached for explanation in answer.explanations
    ):
        return answer
    names = [name for name, location in locate(model, image).found.items() if location.grid]
    explanations = []
    for explanation in answer.explanations:
        if not explanation.reached:
            others = reached_layers(model, image, explanation.target, names, reading)
            advice = f"layer {others[-1]!r} has one" if others else "no other layer has one"
            empty = (
                "the score has no gradient at the positions of layer "
                f"{explanation.layer!r}, so the map is empty"
            )
            explanation = replace(
                explanation, warnings=(*explanation.warnings, f"{empty}; {advice}")
            )
        explanations.append(explanation)
    return replace(answer, explanations=tuple(explanations))


def _by_head(head: PooledHead, question: Question) -> bool:
    """Return whether a question of one pass needs only the head's layer and the logits."""
    return set(question.layers) <= {head.layer} and not question.looks_at


def answer_by_head(
    head: PooledHead,
    questions: Sequence[Question],
    output: Tensor,
    logits: Tensor,
    images: Tensor,
    reading: Reading = AUTO,
) -> list[Answer | CamError]:
    """Answer one question or several for each image from the output of the head's layer and the
    logits, both (B, …), of a forward pass without a graph."""
    with torch.inference_mode(False), torch.enable_grad():
        signals = HeadSignals(head, output, logits)
        outputs = outputs_of(signals.logits, size=size_of(images), reading=reading.of_logits)
        return answer(questions, outputs, signals, signals.grids)


@full_precision()
def answer(
    questions: Sequence[Question],
    outputs: list[Output],
    signals: Signals,
    grids: dict[str, Grid],
    *,
    unrecorded: Collection[str] = (),
) -> list[Answer | CamError]:
    """Answer one question or several for each image of a batch from the outputs and signals of its
    forward pass: see `explain_batch`. Layers that are `unrecorded` have no gradient."""
    answers: list[Answer | CamError] = []
    for start in range(0, len(questions), max(len(outputs), 1)):
        some = questions[start : start + len(outputs)]
        more = start + len(some) < len(questions)
        answers += _answer_one_each(some, outputs, signals, grids, unrecorded, retain_graph=more)
    return answers


def _answer_one_each(
    questions: Sequence[Question],
    outputs: list[Output],
    signals: Signals,
    grids: dict[str, Grid],
    unrecorded: Collection[str],
    *,
    retain_graph: bool,
) -> list[Answer | CamError]:
    said, own = detached(outputs), logit_layers(outputs[0], signals.outputs)
    asked = [question.resolve(output) for question, output in zip(questions, said, strict=True)]
    rounds = max(
        (len(targets) for targets in asked if not isinstance(targets, CamError)), default=0
    )
    maps: list[list[dict[str, ComputedMap | CamError]]] = [[] for _ in asked]
    for turn in range(rounds):
        chosen = {
            item: targets[turn]
            for item, targets in enumerate(asked)
            if not isinstance(targets, CamError) and turn < len(targets)
        }
        numbers: dict[int, Tensor] = {}
        for item, target in list(chosen.items()):
            if METHODS[questions[item].method].differentiates:
                try:
                    numbers[item] = _score(questions[item], target, outputs[item], unrecorded)
                except CamError as error:
                    asked[item] = error
                    del chosen[item]
        scales: Tensor | None = None
        if numbers:
            if _half(signals):
                factors = {item: scale_of(outputs[item], numbers[item]) for item in numbers}
                numbers = {item: number * factors[item] for item, number in numbers.items()}
                scales = torch.tensor([factors.get(item, 1.0) for item in range(len(questions))])
            keep = retain_graph or turn + 1 < rounds
            signals.backward(torch.stack(list(numbers.values())).sum(), retain_graph=keep)
        # The map of a method that does not depend on the class is the same for every target.
        known = [
            item
            for item in chosen
            if maps[item] and METHODS[questions[item].method].class_dependence == "none"
        ]
        for item in known:
            maps[item].append(maps[item][0])
        new = [item for item in chosen if item not in known]
        for item, computed in maps_of(
            signals, grids, questions, new, unrecorded, scales=scales
        ).items():
            if METHODS[questions[item].method].levels:
                computed = of_levels(questions[item].method, computed, signals)
            maps[item].append(computed)
    return [
        compose(question, targets, output, computed, own)
        for question, targets, output, computed in zip(questions, asked, said, maps, strict=True)
    ]


def _half(signals: Signals) -> bool:
    """Whether a layer's gradients are float16, which holds nothing below 6e-8."""
    return any(activation.dtype == torch.float16 for activation in signals.activations.values())


def _score(
    question: Question, target: Target, output: Output, unrecorded: Collection[str]
) -> Tensor:
    """Return the score to differentiate for one item.

    Raises:
        CamError: an error of this item alone.
    """
    score = score_of(question, target, output).float()
    if not score.requires_grad:
        raise no_path(question.layers, unrecorded)
    return score
