"""Explanations that take many forward passes, in steps between which others may use the model."""

from __future__ import annotations

from collections.abc import Generator

from torch import Tensor, nn

from cam.capture import Capture
from cam.errors import CamError, NonFinite
from cam.evaluation import evaluating
from cam.explanation import Answer, Map, Question, compose
from cam.grids import Grid, grids_of
from cam.methods import INPUT, method_named
from cam.methods.perturbation import Progress
from cam.methods.subject import Subject
from cam.targets import logits_of

AnswerSteps = Generator[Progress, None, Answer | CamError]


def explain_in_steps(
    model: nn.Module, image: Tensor, question: Question, *, chunk: int = 16
) -> AnswerSteps:
    """Answer a question whose method needs many forward passes.

    A generator that yields its progress after every pass of at most `chunk` images and returns
    the answer, or the error that is the image's own. Between two steps the model is as it was
    found; steps must not run while another thread uses it.

    Args:
        image: float (C, H, W), preprocessed, on the model's device and in its dtype.

    Raises:
        CamError: that concerns more than the image: a layer or method that cannot be used.
    """
    method = method_named(question.method)
    assert method.steps
    layers = (INPUT,) if method.at == "input" else question.layers
    one = image[None]
    with evaluating(model), Capture(model, [] if layers == (INPUT,) else layers) as capture:
        logits = logits_of(model(one)).float().detach()
        outputs = capture.activations
    grids = grids_of(outputs, one)
    targets = question.resolve(logits[0].cpu())
    if isinstance(targets, CamError):
        return targets
    whole = Grid("channels first", *map(int, image.shape[-2:]))
    maps: list[dict[str, Map | CamError]] = [{} for _ in targets]
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
        )
        found = yield from method.steps(subject)
        for values, kept in zip(found.cpu(), maps, strict=True):
            good = bool(values.isfinite().all())
            kept[layer] = (
                values.numpy() if good else NonFinite(f"a score at {layer!r} is not finite")
            )
    return compose(question, targets, logits[0].cpu(), maps)


def finish(steps: AnswerSteps) -> Answer | CamError:
    """Take all steps at once."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            answer: Answer | CamError = stop.value
            return answer
