"""Try the paths of a model's runtimes, and choose the fastest one that is accurate enough."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from time import perf_counter

import numpy as np
import torch
from PIL import Image
from pydantic import TypeAdapter
from torch import Tensor

from cam import METHODS, CamError, ClassTarget, ExplainedImage, Question, explain_batch
from cam.agreement import EXACT, LEAST, Fidelity
from cam.drawing.samples import samples
from cam.errors import Unfaithful
from cam.passes.compiled_path import CompiledPath
from cam.passes.layout import MARGIN, fastest
from cam.runtimes.fidelity import judge
from service.core.errors import one_line
from service.engine.fast_path import PrepareFastPath, WarmPath
from service.loading.devices import is_of_memory
from service.loading.served_model import ServedModel, seeded
from service.models.catalog import ModelEntry
from service.runtimes.paths import Offer, offers

SAMPLES = 7
"""Number of images on which two paths are compared. It does not divide a power of two, so each row
of a batch gets a different image in the next batch."""
TIMED = 4
"""Number of images in the batch whose time is measured, or fewer if the model takes fewer."""
log = logging.getLogger(__name__)


class PathTooSlow(Exception):
    """A path is slower than the exact path."""


@dataclass(frozen=True)
class Judgement:
    """Result of the comparison of a path with the exact path."""

    fidelities: dict[str, Fidelity] = field(default_factory=dict)
    """See `WarmPath.fidelities`. It also has the methods that may not use the path."""
    seconds: float = 0.0
    """See `_seconds`."""
    unfit: str = ""
    """Why the path cannot be used; "" if it can."""


@seeded
def fast_path(entry: ModelEntry, model: ServedModel) -> PrepareFastPath | None:
    """Return what prepares the fastest of the paths that an entry allows its model, or None if it
    allows none: a `service.engine.fast_path.MakeFastPath`.

    Raises:
        ConfigError: if the entry asks for a runtime that cannot run the model.
    """
    found = offers(entry, model)
    return partial(warm_paths, model, found, entry.runtime) if found else None


def warm_paths(
    model: ServedModel,
    found: Sequence[Offer],
    wanted: str | None = None,
    worth: float = math.inf,
) -> WarmPath | None:
    """Compile the model's paths, compare each with the exact path, log the results, and return the
    fastest path that may be used; None if there is none.

    Args:
        found: the paths that the entry allows.
        wanted: the runtime that the entry names, which is used however short the work is.
        worth: seconds that the exact path needs for all the images: see `Runtime.least_seconds`.
    """
    images, paths = _images(model), []
    for offer in found:
        enough = math.inf if offer.runtime.name == wanted else worth
        if warm := _warm(model, offer, images, enough):
            paths.append(warm)
    if len(paths) > 1:
        told = ", ".join(f"{path_.path.runtime} {path_.seconds * 1000:.1f}" for path_ in paths)
        log.info("model %s: milliseconds an image: %s; the fastest is used", model.name, told)
    return min(paths, key=lambda path_: path_.seconds, default=None)


def _warm(model: ServedModel, offer: Offer, images: Tensor, worth: float) -> WarmPath | None:
    """Compile a path and compare it with the exact path. Return None if the path must not be
    used. A path that is too slow is tried again at the next start, because another process may
    have slowed it down."""
    started = perf_counter()
    runtime, path = offer
    methods = _candidates(model, path)
    record = f"judgement {path.runtime} {path.dtype} {path.layer} {path.sizes} {methods}"
    known = _recalled(model, record) if runtime.is_kept else None
    if not known and worth < runtime.least_seconds:
        log.info(
            "model %s: %s is left out: all images take %.1f s, less than its conversion",
            model.name,
            runtime.title,
            worth,
        )
        return None
    log.info(
        "model %s: preparing the fast path by %s%s",
        model.name,
        path.runtime,
        ", which was judged at an earlier start" if known else "",
    )
    try:
        if known and known.unfit:
            raise Unfaithful(known.unfit)
        why = path.settle(images[:1])
        if why and path.dtype == model.dtype:
            raise RuntimeError(why)
        compiled = perf_counter()
        judgement = known or _judged(model, path, images, methods)
        usable = {
            name: fidelity
            for name, fidelity in judgement.fidelities.items()
            if fidelity.exact or not model.exact
        }
    except Exception as error:  # whatever fails here, the exact path still works
        passing = isinstance(error, PathTooSlow | OSError) or is_of_memory(error)
        if not passing and not known and runtime.is_kept:
            _keep(model, record, Judgement(unfit=one_line(error)))
        log.warning(
            "model %s has no fast path by %s: %s", model.name, path.runtime, one_line(error)
        )
        return None
    if not known and runtime.is_kept:
        _keep(model, record, judgement)
    log.info(
        "model %s has a fast path by %s in %s after %.1f s, %.1f s of them for its comparison, %s; "
        "its maps correlate %.4f or better with the exact ones and differ by %.0e at most; served "
        "exact: %s",
        model.name,
        path.runtime,
        str(path.dtype).removeprefix("torch."),
        perf_counter() - started,
        perf_counter() - compiled,
        f"not {path.way}: {why}" if why else path.way,
        min(fidelity.worst for fidelity in usable.values() if fidelity.enough),
        max(fidelity.difference for fidelity in usable.values() if fidelity.enough),
        _slow(model, methods, judgement.fidelities) or "none of the methods of one pass",
    )
    return WarmPath(path, usable, judgement.seconds)


def _candidates(model: ServedModel, path: CompiledPath) -> list[str]:
    """Return the names of the methods that may use a path if their maps prove to be accurate."""
    return [
        name
        for name, method in METHODS.items()
        if method.formula != "steps"
        and name not in model.unsuited
        # The paths stop at one layer, but these methods make one map from several layers.
        and not method.levels
        # In methods with components or thresholds, a rounding error may change the whole map of a
        # photo that is unlike the samples.
        and (method.formula == "weights" or path.dtype == torch.float32)
    ]


def _judged(
    model: ServedModel, path: CompiledPath, images: Tensor, methods: Sequence[str]
) -> Judgement:
    """Compare a path with the exact path.

    Raises:
        Unfaithful: if no method may use the path.
        PathTooSlow: if the exact path is faster.
    """
    judged = judge(path, partial(_exact, model), images, methods)
    if not any(
        fidelity.enough and (fidelity.exact or not model.exact) for fidelity in judged.values()
    ):
        raise Unfaithful(_slow(model, methods, judged))
    seconds = _seconds(model, lambda *asked: path.explain(*asked).wait(), images)
    if model.exact:
        plain = _seconds(model, partial(_exact, model), images)
        if seconds > MARGIN * plain:
            raise PathTooSlow(f"{seconds * 1000:.1f} ms an image, {plain * 1000:.1f} ms without it")
    return Judgement(judged, seconds)


def _keep(model: ServedModel, record: str, judgement: Judgement) -> None:
    model.kept.write(record, json.dumps(asdict(judgement)).encode())


def _recalled(model: ServedModel, record: str) -> Judgement | None:
    """Return the judgement of a path by an earlier start; None if there is none."""
    content = model.kept.read(record)
    if content is None:
        return None
    try:
        return TypeAdapter(Judgement).validate_python(json.loads(content))
    except (ValueError, RecursionError):
        return None


def _seconds(
    model: ServedModel,
    explain: Callable[[Tensor, Sequence[Question]], object],
    images: Tensor,
) -> float:
    """Return the seconds for one image: the geometric mean of the time for a single image and the
    time per image in a batch of `TIMED`, so both have the same weight."""
    question = Question((ClassTarget(),), "gradcam", (model.default,))
    seconds = 1.0
    for count in (1, min(TIMED, model.max_batch)):
        seconds *= fastest(partial(explain, images[:count], [question] * count)) / count
    return float(seconds**0.5)


def _images(model: ServedModel) -> Tensor:
    """Return preprocessed sample images, (SAMPLES, 3, H, W)."""
    seen = model.preprocessing
    pictures = samples(SAMPLES, seen.height, seen.width)
    rows = [seen.apply(Image.fromarray(picture), "squash").pixels for picture in pictures]
    return model.normalise(np.stack(rows)).contiguous()


def _exact(
    model: ServedModel, images: Tensor, questions: Sequence[Question]
) -> Sequence[ExplainedImage | CamError]:
    laid_out = torch.channels_last if model.channels_last else torch.contiguous_format
    given = images.to(model.dtype).contiguous(memory_format=laid_out)
    return explain_batch(model.module, given, questions, head=model.head, reading=model.reading)


def _slow(model: ServedModel, methods: Sequence[str], fidelities: dict[str, Fidelity]) -> str:
    """Return which methods must not use the fast path, each with its reason, as text for the
    log."""
    told, least = [], f"{LEAST} is the least"
    for name in methods:
        if name not in fidelities:
            told.append(f"{name} (no maps to compare)")
        elif not fidelities[name].enough:
            worst, median = fidelities[name].worst, fidelities[name].median
            told.append(f"{name} (correlates {worst:.3f} at worst, {median:.3f} in the median)")
        elif model.exact and not fidelities[name].exact:
            told.append(f"{name} (differs by {fidelities[name].difference:.0e})")
            least = f"{LEAST} is the least, and a difference of {EXACT:.0e} the most"
    return ", ".join(told) and f"{', '.join(told)}: {least}"
