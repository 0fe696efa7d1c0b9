"""Explain an image in many forward passes. Other threads may use the model between two passes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn

from cam.drawing.placement import resize
from cam.errors import CamError, NonFinite, NothingDetected
from cam.explanation import ExplainedImage, ImageSteps, Question
from cam.hooks.capture import Capture
from cam.hooks.grids import Grid
from cam.hooks.inference import evaluating
from cam.hooks.precision import steps_in_full_precision
from cam.hooks.replay import recorded
from cam.methods import INPUT, method_named
from cam.methods.method import load
from cam.methods.subject import Attribution, Subject, never
from cam.outputs.logit_layers import logit_layers
from cam.outputs.meaning import resolve_reading
from cam.outputs.outputs import forward, size_of
from cam.outputs.reading import AUTO, Reading
from cam.passes.composition import ComputedMap, compose
from cam.passes.onepass import explain_batch
from cam.positions.locate import locate
from cam.progress import Progress
from cam.progress import finish as finish
from cam.targets import mirrored

CHUNK: Final = 16
"""Number of images in one pass, unless the caller sets another."""
BRIGHTNESS: Final = (1.0, 0.9, 1.1)
"""Factors that the preprocessed image is multiplied by, as in pytorch-grad-cam's aug_smooth."""


def explain_in_steps(
    model: nn.Module,
    image: Tensor,
    question: Question,
    *,
    chunk: int = CHUNK,
    reading: Reading = AUTO,
    stop: Callable[[], bool] = never,
) -> ImageSteps:
    """Answer a question that takes more than one pass (`question.in_steps`).

    The generator yields its progress after every pass of at most `chunk` images. It returns the
    answer, or the error of this image alone. Between two steps the model is in the state in which
    it was found, and no step begins while another thread uses the model through `cam`.

    Args:
        image: float (C, H, W), preprocessed, on the model's device and in its dtype.
        reading: how the model's output is read. An `auto` activation takes one more pass.
        stop: a function that returns whether the time is up. If it is, Score-CAM, SS-CAM, IS-CAM,
            Ablation-CAM, RISE and D-RISE make a map of the passes made so far, at least one chunk,
            and add a warning.

    Raises:
        CamError: an error that concerns more than this image: a layer or method that cannot be
            used.
    """
    question.check()
    method = method_named(question.method)
    reading, _ = resolve_reading(model, image[None], reading)
    if method.formula != "steps":
        return (yield from _augmented(model, image, question, chunk, reading))
    layers = (INPUT,) if method.at == "input" else question.layers
    one = image.detach()[None]
    named = [] if layers == (INPUT,) else layers
    located = locate(model, one, [*named, *question.looks_at])
    with ExitStack() as scope:
        scope.enter_context(evaluating(model))
        capture = scope.enter_context(Capture(model, named))
        records = {
            layer: scope.enter_context(recorded(model, layer))
            for layer in (layers if method.replays else ())
        }
        looks = question.looks_at
        (output,) = forward(model, one, reading, layers=looks, located=located)
        outputs, interrupted = capture.activations, capture.interrupted
        own = logit_layers(output.numbers[0], capture.outputs, output.kind)
    grids = located.grids(outputs, one)
    said = output.detached()
    targets = question.resolve(said)
    if isinstance(targets, CamError):
        return targets
    whole = Grid("channels first", *size_of(one))
    maps: list[dict[str, ComputedMap | CamError]] = [{} for _ in targets]
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
        attribution = yield from steps_in_full_precision(load(method.function)(subject))
        for computed, of_target in zip(
            _computed(attribution, subject, signed=question.signed), maps, strict=True
        ):
            of_target[layer] = computed
    return compose(question, targets, said, maps, own)


def _computed(
    attribution: Attribution, subject: Subject, *, signed: bool
) -> list[ComputedMap | CamError]:
    """Return a method's map of each target at the subject's layer."""
    values = attribution.maps if signed else attribution.maps.relu()
    sums = attribution.completeness or [None] * len(values)
    grid = attribution.grid or subject.grid
    at_grid = values.shape[1:] == (grid.height, grid.width)
    placement = grid.placement if at_grid else None
    return [
        ComputedMap(map_.numpy(), complete, passes=attribution.passes, placement=placement)
        if bool(map_.isfinite().all())
        else NonFinite(f"a score at {subject.layer!r} is not finite")
        for map_, complete in zip(values.cpu(), sums, strict=True)
    ]


def _augmented(
    model: nn.Module, image: Tensor, question: Question, chunk: int, reading: Reading
) -> ImageSteps:
    """Answer a question whose `smooth` is "augment" or "both": test-time augmentation.

    The targets are resolved on the original image. Each map is the mean of the maps of six
    variants: the image and its mirror image at three brightnesses. The maps of mirrored variants
    are mirrored back first.
    """
    plain = replace(question, smooth="eigen" if question.smooth == "both" else "none")
    (first,) = explain_batch(model, image[None].clone(), [plain], reading=reading)
    variants = 2 * len(BRIGHTNESS)
    yield Progress(1, variants)
    if isinstance(first, CamError):
        return first
    # Some targets of the question may have no explanation, and some may have several.
    targets = tuple(
        {id(explanation.target): explanation.target for explanation in first.explanations}.values()
    )
    width = int(image.shape[-1])
    same = replace(plain, targets=targets)
    turned = replace(plain, targets=tuple(mirrored(target, width) for target in targets))
    others = [
        (image.flip(-1) if flipped else image) * factor
        for flipped in (False, True)
        for factor in BRIGHTNESS
    ][1:]
    sums = [explanation.map.astype(np.float64) for explanation in first.explanations]
    warnings = [explanation.warnings for explanation in first.explanations]
    for start in range(0, len(others), chunk):
        some = torch.stack(others[start : start + chunk])
        flips = [start + offset + 1 >= len(BRIGHTNESS) for offset in range(len(some))]
        asked = [turned if flipped else same for flipped in flips]
        answers = explain_batch(model, some, asked, reading=reading)
        for flipped, answer in zip(flips, answers, strict=True):
            if isinstance(answer, NothingDetected):
                continue  # a target that this variant does not show adds nothing to the sum
            if isinstance(answer, CamError):
                return answer
            for total, explanation in zip(sums, answer.explanations, strict=True):
                # On a changed image the detector may make the box from another level.
                same_size = resize(explanation.map, *total.shape)
                total += same_size[:, ::-1] if flipped else same_size
            warnings = [
                told or explanation.warnings
                for told, explanation in zip(warnings, answer.explanations, strict=True)
            ]
        yield Progress(min(start + len(some), len(others)) + 1, variants)
    explanations = tuple(
        replace(explanation, map=(total / variants).astype(np.float32), warnings=told)
        for explanation, total, told in zip(first.explanations, sums, warnings, strict=True)
    )
    return ExplainedImage(first.output, explanations)
