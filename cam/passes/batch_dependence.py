"""Check whether a model's output for an image depends on the other images of its batch.

In some models it does, even in eval mode: models with a batch normalisation without running
statistics, with an attention whose batch and token axes are swapped, or with activations that are
quantised by the range of the batch. The map of an image then depends on the other images, too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from cam.hooks.inference import evaluating
from cam.outputs.output import Output, outputs_of, watching
from cam.outputs.reading import AUTO, Reading

COMPANY = 3
"""Number of images in each compared batch: the tested image, one before it and one after it."""


def sees_company(
    model: nn.Module, image: Tensor, layer: str, reading: Reading = AUTO
) -> str | None:
    """Check whether the model's output for an image depends on the other images of its batch.

    The model sees two batches of three. The image is in the middle: first between two copies of
    itself, then between two other images. Batches of one size are computed in the same way, so a
    model that treats images separately returns the same output for both, to the last bits. A
    difference above 1e-4 of the spread of the logits (1e-2 in half precision) is therefore not
    rounding: batch statistics cause a difference of about 0.1 to 1.

    The model and torch's random state are left as found.

    Args:
        image: float (1, C, H, W), on the model's device and in its dtype; not constant.
        layer: the name of a module whose output is compared, too, because a detector may detect
            nothing in the image.
        reading: how the model's output is read.

    Returns:
        The reason why images must be passed one by one, as half a sentence; None if images may
        share a batch.
    """
    others = 1 - 3 * image.flip(-1), image.flip(-2) / 2 - 1
    try:
        among_copies = _middle(model, [image, image, image], layer, reading)
        among_others = _middle(model, [others[0], image, others[1]], layer, reading)
    except Exception as error:  # a model may raise anything; for a single image this one does not
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        return f"the model fails on a batch of {COMPANY} images: {reason}"
    for name, expected in among_copies.items():
        found = among_others.get(name)
        if found is None or found.shape != expected.shape:
            return f"the shape of {name} for an image depends on the others of its batch"
        if not expected.numel() or not expected.isfinite().all():
            continue
        spread = float(expected.max() - expected.min()) or float(expected.abs().max())
        difference = float((found - expected).abs().max())
        if not difference <= _tolerance(image.dtype) * spread:
            return (
                f"{name} for an image depends on the others of its batch: it changes by "
                f"{difference:.2g}, of a spread of {spread:.2g}"
            )
    return None


def _tolerance(dtype: torch.dtype) -> float:
    return 1e-2 if torch.finfo(dtype).bits < 32 else 1e-4


def _middle(
    model: nn.Module, images: list[Tensor], layer: str, reading: Reading
) -> dict[str, Tensor]:
    """Return the model's output, and the layer's output, for the middle one of three images."""
    batch, middle = torch.cat(images), len(images) // 2
    devices = [batch.device] if batch.device.type == "cuda" else []
    with (
        evaluating(model),
        watching(model, [layer]) as seen,
        torch.random.fork_rng(devices),  # dropout that is always on must not count as a difference
        torch.no_grad(),
    ):
        torch.manual_seed(0)
        outputs = outputs_of(model(batch), reading=reading, batch=len(images))
    if len(outputs) != len(images):
        raise ValueError(f"it has {len(outputs)} outputs")
    found = {f"the output of {layer!r}": values for values in _rows(seen.get(layer), middle)}
    return {"the output": _numbers(outputs[middle]), **found}


def _rows(values: Any, row: int) -> list[Tensor]:
    """Return the row of the image in a layer's output, or nothing if the output has no such row."""
    if not isinstance(values, Tensor) or values.shape[:1] != (COMPANY,) or not values[row].numel():
        return []
    return [values[row].float()]


def _numbers(output: Output) -> Tensor:
    """Return the logits, or a detector's scores in descending order.

    The scores are sorted because the order of boxes with nearly equal scores may change.
    """
    if output.detections is None:
        return output.numbers[0].float()
    return output.detections.scores.float().sort(descending=True).values
