"""Explain a batch of images with one forward pass.

The questions may differ in targets, methods, layers and options: see `explain_batch`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from cam.errors import CamError, LayerDidNotRun, MethodUnsuited
from cam.explanation import ExplainedImage, Question
from cam.hooks.capture import Capture
from cam.hooks.grids import Grid
from cam.hooks.inference import evaluating
from cam.hooks.precision import full_precision
from cam.methods import METHODS
from cam.methods.head import HeadSignals, PooledHead
from cam.outputs.logit_layers import logit_layers
from cam.outputs.meaning import resolve_reading
from cam.outputs.outputs import Outputs, forward, outputs_of_logits, size_of, watching
from cam.outputs.reading import AUTO, Reading, logits_of
from cam.passes.batch_answer import BatchAnswer, Round, Turn
from cam.passes.maps import Signals, maps_of
from cam.passes.scores import Targets
from cam.positions.locate import locate
from cam.targets import Target


def explain_batch(
    model: nn.Module,
    images: Tensor,
    questions: Sequence[Question],
    *,
    head: PooledHead | None = None,
    reading: Reading = AUTO,
) -> Sequence[ExplainedImage | CamError]:
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
        A sequence with the answer to each question, or the error of this question alone: a target
        that cannot be used, or numbers that are not finite. An image's answer is made when it is
        read; the numbers and maps of the batch are on the host already.

    Raises:
        CamError: an error of the whole batch: a layer or method that cannot be used.
    """
    reading, _ = resolve_reading(model, images[:1], reading)
    answers = begin_batch(model, images, questions, head=head, reading=reading)
    advise(model, images, answers, reading)
    return answers


def begin_batch(
    model: nn.Module,
    images: Tensor,
    questions: Sequence[Question],
    *,
    head: PooledHead | None = None,
    reading: Reading,
) -> BatchAnswer:
    """Begin what `explain_batch` does, with a resolved reading: an accelerator may be computing yet
    when this returns. `advise` completes the answers."""
    for question in questions:
        question.check()
        if question.in_steps:
            raise MethodUnsuited(f"{question.method} takes many steps: see explain_in_steps")
    if not any(question.targets for question in questions):  # only predictions are asked for
        with evaluating(model), torch.inference_mode():
            outputs = forward(model, images, reading)
        return BatchAnswer(
            outputs, [Round(some, Targets(some, outputs)) for some in _rounds(questions, outputs)]
        )
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
            grids = located.grids(capture.outputs, images)
            return answer(questions, outputs, capture, grids, unrecorded=capture.unrecorded)


def advise(model: nn.Module, images: Tensor, answers: BatchAnswer, reading: Reading) -> None:
    """Give each answer with a map whose gradient is all zero a warning that names another layer,
    for which the model runs more passes of that image."""
    for number in answers.unreached:
        image = images[number % len(images)][None]
        answers.replace(number, _advised(model, image, answers[number], reading))


def _advised(
    model: nn.Module, image: Tensor, answer: ExplainedImage | CamError, reading: Reading
) -> ExplainedImage | CamError:
    """Return the answer for an image (1, C, H, W), with a warning for each map whose gradient is
    all zero. The warning names a layer at which the gradient is not all zero, if there is one."""
    if isinstance(answer, CamError):
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


def reached_layers(
    model: nn.Module,
    image: Tensor,
    target: Target,
    layers: Sequence[str],
    reading: Reading = AUTO,
) -> tuple[str, ...]:
    """Return the layers at whose positions the gradient of the target's score is not all zero, in
    the order of `layers`: a gradient at a class token alone gives no map. The function needs one
    forward and one backward pass.

    Args:
        image: float (1, C, H, W), preprocessed, on the model's device and in its dtype.
        layers: names of modules that run once and return a tensor.
        reading: how to read the model's output.

    Raises:
        TargetError: if the target cannot be resolved.
    """
    located = locate(model, image, [*layers, *target.layers])
    with evaluating(model), Capture(model, layers) as capture:
        (output,) = forward(model, image, reading, layers=target.layers, located=located)
        score = target.resolve(output).score(output)
        if not score.requires_grad:
            return ()
        capture.backward(score)

        def at_grid(name: str) -> Tensor:
            grid = located.grid(name)
            return grid.apply(capture.reached[name]) if grid else capture.reached[name]

        reached = capture.reached
        return tuple(name for name in layers if name in reached and at_grid(name).any())


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
) -> BatchAnswer:
    """Answer one question or several for each image from the output of the head's layer and the
    logits, both (B, …), of a forward pass without a graph."""
    with torch.inference_mode(False), torch.enable_grad():
        signals = HeadSignals(head, output, logits)
        outputs = outputs_of_logits(signals.logits, reading, size=size_of(images))
        return answer(questions, outputs, signals, signals.grids)


@full_precision()
def answer(
    questions: Sequence[Question],
    outputs: Outputs,
    signals: Signals,
    grids: dict[str, Grid],
    *,
    unrecorded: Collection[str] = (),
) -> BatchAnswer:
    """Answer one question or several for each image of a batch from the outputs and signals of its
    forward pass: see `explain_batch`. Layers that are `unrecorded` have no gradient."""
    own = logit_layers(outputs.numbers, signals.outputs, outputs.kind)
    asked = _rounds(questions, outputs)
    rounds = []
    for some in asked:
        targets = Targets(some, outputs)
        more = some is not asked[-1]
        turns = _turns(some, targets, signals, grids, unrecorded, retain_graph=more)
        rounds.append(Round(some, targets, turns, own))
    answers = BatchAnswer(outputs, rounds)
    if any(METHODS[question.method].levels for question in questions):
        answers.join_levels(signals)
    return answers


def _rounds(questions: Sequence[Question], outputs: Outputs) -> list[Sequence[Question]]:
    """Return one question for each image at a time."""
    size = max(len(outputs), 1)
    return [questions[start : start + size] for start in range(0, len(questions), size)]


def _turns(
    questions: Sequence[Question],
    targets: Targets,
    signals: Signals,
    grids: dict[str, Grid],
    unrecorded: Collection[str],
    *,
    retain_graph: bool,
) -> list[Turn]:
    """Compute one question for each image, with a backward pass for each of its targets."""
    # Gradients of float16 hold nothing below 6e-8.
    half = any(output.dtype == torch.float16 for output in signals.outputs.values())
    turns: list[Turn] = []
    rounds = targets.rounds
    for number in range(rounds):
        scores = targets.at_once(number)
        total, factors = targets.differentiable(number, scores, half=half, unrecorded=unrecorded)
        if total is not None:
            signals.backward(total, retain_graph=retain_graph or number + 1 < rounds)
        # The map of a method that does not depend on the class is the same for every target.
        new = [
            item
            for item in targets.items(number)
            if not number or METHODS[questions[item].method].class_dependence != "none"
        ]
        maps = maps_of(signals, grids, questions, new, unrecorded, scales=factors)
        turns.append(Turn(scores, maps))
    return turns
