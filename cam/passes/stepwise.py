"""Explanations that take many forward passes, in steps between which others may use the model."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from torch import Tensor, nn

from cam.errors import CamError, NonFinite
from cam.explanation import Answer, AnswerSteps, Found, Question, compose
from cam.hooks.capture import Capture
from cam.hooks.grids import Grid
from cam.hooks.inference import evaluating
from cam.hooks.precision import steps_in_full_precision
from cam.hooks.replay import recorded
from cam.methods import INPUT, method_named
from cam.methods.subject import Subject, never
from cam.outputs.output import (
    detached,
    looked_at,
    one_each,
    outputs_of,
    resolve_reading,
    size_of,
    watching,
)
from cam.outputs.reading import AUTO, Reading
from cam.passes.augmentation import explain_augmented
from cam.positions.locate import locate


def explain_in_steps(
    model: nn.Module,
    image: Tensor,
    question: Question,
    *,
    chunk: int = 16,
    reading: Reading = AUTO,
    stop: Callable[[], bool] = never,
) -> AnswerSteps:
    """Answer a question that takes more than one pass (`question.in_steps`).

    A generator that yields its progress after every pass of at most `chunk` images and returns
    the answer, or the error that is the image's own. Between two steps the model is as it was
    found, and no step begins while another thread of cam uses it.

    Args:
        image: float (C, H, W), preprocessed, on the model's device and in its dtype.
        reading: how the model's output is read; one more pass tells an activation that is `auto`.
        stop: whether the time is up. Then Score-CAM, SS-CAM, IS-CAM, Ablation-CAM, RISE and D-RISE
            make a map of the passes that they have made, which are one chunk at least, and warn.

    Raises:
        CamError: that concerns more than the image: a layer or method that cannot be used.
    """
    question.check()
    method = method_named(question.method)
    reading, _ = resolve_reading(model, image[None], reading)
    if not method.steps:
        return (yield from explain_augmented(model, image, question, chunk=chunk, reading=reading))
    layers = (INPUT,) if method.at == "input" else question.layers
    one = image.detach()[None]
    named = [] if layers == (INPUT,) else layers
    located = locate(model, one, [*named, *question.looks_at])
    with ExitStack() as scope:
        scope.enter_context(evaluating(model))
        capture = scope.enter_context(Capture(model, named))
        seen = scope.enter_context(watching(model, question.looks_at))
        records = {
            layer: scope.enter_context(recorded(model, layer))
            for layer in (layers if method.replays else ())
        }
        raw = model(one.clone())  # which the model may change in place
        looked = looked_at(seen, question.looks_at, one, located)
        rows = outputs_of(raw, looked, size=size_of(one), reading=reading, batch=1)
        (output,) = one_each(rows, one)
        outputs, interrupted = capture.activations, capture.interrupted
    grids = located.grids(outputs, one)
    (said,) = detached([output])
    targets = question.resolve(said)
    if isinstance(targets, CamError):
        return targets
    whole = Grid("channels first", *size_of(one))
    maps: list[dict[str, Found | CamError]] = [{} for _ in targets]
    for layer in layers:
        subject = Subject(
            model=model,
            image=one,
            targets=tuple(targets),
            layer=layer,
            grid=grids.get(layer, whole),
            output=outputs.get(layer, one),
            located=located,
            budget=question.budget or method.budget,
            chunk=chunk,
            reading=reading,
            graph=interrupted,
            record=records.get(layer),
            stop=stop,
        )
        found = yield from steps_in_full_precision(method.steps(subject))
        values = found.maps if question.signed else found.maps.relu()
        sums = found.completeness or [None] * len(targets)
        for each, complete, kept in zip(values.cpu(), sums, maps, strict=True):
            good = bool(each.isfinite().all())
            kept[layer] = (
                Found(each.numpy(), complete, passes=found.passes)
                if good
                else NonFinite(f"a score at {layer!r} is not finite")
            )
    return compose(question, targets, said, maps)


def finish(steps: AnswerSteps) -> Answer | CamError:
    """Take all steps at once."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            answer: Answer | CamError = stop.value
            return answer
