"""Compiling a model's fast path and deciding for which methods it is accurate enough."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from time import perf_counter

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from cam import METHODS, Answer, CamError, Question, explain_batch
from cam.passes.fidelity import LEAST, Fidelity, judge
from cam.passes.samples import samples
from service.core.errors import one_line
from service.models.served_model import ServedModel

SAMPLES = 7
"""Number of images that the two paths are compared on. It divides no power of two, so the images
change places from batch to batch: every row of a batch gets different images."""
log = logging.getLogger(__name__)


def warm_fast_path(model: ServedModel) -> dict[str, Fidelity]:
    """Compile the fast path, compare it with the exact path, and log the result.

    Returns:
        Method name → fidelity, for each method that could be compared. Other methods, and methods
        whose fidelity is not sufficient, must use the exact path. Empty if the fast path must not
        be used at all.
    """
    fast = model.fast
    assert fast
    started = perf_counter()
    images = _images(model)
    methods = [
        name
        for name, method in METHODS.items()
        if method.steps is None
        and name not in model.unsuited
        # In methods with components or thresholds, a rounding error may change the whole map on
        # photos that are unlike the samples.
        and (method.map is None or fast.dtype == torch.float32)
    ]
    try:
        why = fast.settle(images[:1])
        if why and fast.dtype == model.dtype:
            raise RuntimeError(why)
        compiled = perf_counter()
        found = judge(fast, lambda *asked: _exact(model, *asked), images, methods)
        if not any(each.enough for each in found.values()):
            raise RuntimeError(_slow(methods, found))
    except Exception as error:  # whatever fails here, the exact path still works
        log.warning("model %s has no fast path: %s", model.name, one_line(error))
        return {}
    log.info(
        "model %s has a fast path in %s after %.1f s, %.1f s of them to judge it, %s; its maps "
        "correlate %.4f or better with the exact ones; served exact: %s",
        model.name,
        str(fast.dtype).removeprefix("torch."),
        perf_counter() - started,
        perf_counter() - compiled,
        f"not compiled: {why}" if why else "compiled",
        min(each.worst for each in found.values() if each.enough),
        _slow(methods, found) or "none of the methods of one pass",
    )
    return found


def _images(model: ServedModel) -> Tensor:
    """Return preprocessed sample images, (SAMPLES, 3, H, W)."""
    seen = model.preprocessing
    pictures = samples(SAMPLES, seen.height, seen.width)
    rows = [seen.apply(Image.fromarray(each), "squash").pixels for each in pictures]
    return model.normalise(np.stack(rows)).contiguous()


def _exact(
    model: ServedModel, images: Tensor, questions: Sequence[Question]
) -> list[Answer | CamError]:
    laid_out = torch.channels_last if model.channels_last else torch.contiguous_format
    given = images.to(model.dtype).contiguous(memory_format=laid_out)
    return explain_batch(model.module, given, questions, head=model.head, reading=model.reading)


def _slow(methods: Sequence[str], found: dict[str, Fidelity]) -> str:
    """Return the methods that must not use the fast path, each with the reason."""
    told = []
    for name in methods:
        if name not in found:
            told.append(f"{name} (no maps to compare)")
        elif not found[name].enough:
            worst, median = found[name].worst, found[name].median
            told.append(f"{name} (correlates {worst:.3f} at worst, {median:.3f} in the median)")
    return ", ".join(told) and f"{', '.join(told)}: {LEAST} is the least"
