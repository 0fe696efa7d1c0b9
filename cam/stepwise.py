"""Explanations that take many forward passes, in steps between which others may use the model."""

from __future__ import annotations

from torch import Tensor, nn

from cam.augmentation import explain_augmented
from cam.capture import Capture
from cam.errors import CamError, NonFinite
from cam.evaluation import evaluating
from cam.explanation import Answer, AnswerSteps, Found, Question, compose
from cam.grids import Grid, grids_of
from cam.methods import INPUT, method_named
from cam.methods.subject import Subject
from cam.output import detached, looked_at, one_each, outputs_of, size_of, watching
from cam.precision import steps_in_full_precision


def explain_in_steps(
    model: nn.Module, image: Tensor, question: Question, *, chunk: int = 16
) -> AnswerSteps:
    """Answer a question that takes more than one pass (`question.in_steps`).

    A generator that yields its progress after every pass of at most `chunk` images and returns
    the answer, or the error that is the image's own. Between two steps the model is as it was
    found, and no step begins while another thread of cam uses it.

    Args:
        image: float (C, H, W), preprocessed, on the model's device and in its dtype.

    Raises:
        CamError: that concerns more than the image: a layer or method that cannot be used.
    """
    question.check()
    method = method_named(question.method)
    if not method.steps:
        return (yield from explain_augmented(model, image, question, chunk=chunk))
    layers = (INPUT,) if method.at == "input" else question.layers
    one = image.detach()[None]
    with (
        evaluating(model),
        Capture(model, [] if layers == (INPUT,) else layers) as capture,
        watching(model, question.looks_at) as seen,
    ):
        raw = model(one)
        looks = looked_at(seen, question.looks_at, one)
        (output,) = one_each(outputs_of(raw, looks, size=size_of(one)), one)
        outputs, interrupted = capture.activations, capture.interrupted
    grids = grids_of(outputs, one)
    (said,) = detached([output])
    targets = question.resolve(said)
    if isinstance(targets, CamError):
        return targets
    whole = Grid("channels first", *map(int, image.shape[-2:]))
    maps: list[dict[str, Found | CamError]] = [{} for _ in targets]
    for layer in layers:
        subject = Subject(
            model=model,
            image=one,
            targets=tuple(targets),
            layer=layer,
            grid=grids.get(layer, whole),
            output=outputs.get(layer, one),
            budget=question.budget or method.budget,
            chunk=chunk,
            graph=interrupted,
        )
        found = yield from steps_in_full_precision(method.steps(subject))
        values = found.maps if question.signed else found.maps.relu()
        sums = found.completeness or [None] * len(targets)
        for each, complete, kept in zip(values.cpu(), sums, maps, strict=True):
            good = bool(each.isfinite().all())
            kept[layer] = (
                Found(each.numpy(), complete)
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
