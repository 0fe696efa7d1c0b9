"""Whether a model's fast path may be used: compiled for every size of batch, and as good as the
exact one."""

from __future__ import annotations

import logging
from time import perf_counter

import torch

from cam import ClassTarget, Question, explain_batch
from cam.fidelity import likeness
from service.errors import one_line
from service.registry import ServedModel

LEAST_FIDELITY = 0.98
"""Below it a fast path is not used."""
log = logging.getLogger(__name__)


def warm_fast_path(model: ServedModel) -> float | None:
    """Compile the fast path, and compare it with the exact one; the log says how it went.

    Returns:
        How much its maps are like the exact ones, Pearson's correlation; None if it is not to be
        used.
    """
    fast = model.fast
    assert fast
    question = Question((ClassTarget(),), "gradcam", (model.default_layer,))
    size = model.preprocessing
    rng = torch.Generator().manual_seed(0)
    image = torch.randn(1, 3, size.height, size.width, generator=rng)
    image = image.to(model.device, model.dtype)
    started = perf_counter()
    try:
        why = fast.settle(image)
        if why and fast.dtype == model.dtype:
            raise RuntimeError(why)
        for count in fast.sizes if fast.compiled else [1]:
            found = fast.explain(image.expand(count, -1, -1, -1), [question] * count)
        exact = explain_batch(
            model.module, image, [question], head=model.head, reading=model.reading
        )
        fidelity = likeness(found[0], exact[0])
        if fidelity < LEAST_FIDELITY:
            raise RuntimeError(f"its maps correlate {fidelity:.3f} with the exact ones")
    except Exception as error:  # whatever it is, the exact path still stands
        log.warning("model %s has no fast path: %s", model.name, one_line(error))
        return None
    log.info(
        "model %s has a fast path in %s after %.1f s, %s; its maps correlate %.4f with the exact "
        "ones",
        model.name,
        str(fast.dtype).removeprefix("torch."),
        perf_counter() - started,
        f"not compiled: {why}" if why else "compiled",
        fidelity,
    )
    return fidelity
