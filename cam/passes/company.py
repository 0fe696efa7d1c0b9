"""Whether a model keeps the images of a batch apart.

A batch normalisation without running statistics, an attention whose batch and tokens are swapped,
activations that are quantised by the batch's range: in eval mode, too, the output for an image
depends on the others of its batch, and so does its map.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from cam.hooks.inference import evaluating
from cam.outputs.output import Output, outputs_of, watching
from cam.outputs.reading import AUTO, Reading

COMPANY = 3
"""Images in the batches that are compared: one before and one behind."""


def sees_company(
    model: nn.Module, image: Tensor, layer: str, reading: Reading = AUTO
) -> str | None:
    """Whether the model's output for an image depends on the other images of its batch.

    The image is the middle one of three: once between two copies of itself, and once between two
    others. A model that keeps images apart says the same of it to the last bits, since batches of
    one size are computed in one way. So a difference of 1e-4 of the spread of its logits (1e-2 in
    half precision) is no rounding: batch statistics make one of about 0.1 to 1.

    Args:
        image: float (1, C, H, W), on the model's device and in its dtype; not constant.
        layer: the name of a module whose output is compared, too: a detector may find nothing.
        reading: how the model's output is read.

    Returns:
        Why images must be given one by one, as half a sentence; None if they may share a batch.
        The model is left as found, and so is torch's random state.
    """
    others = 1 - 3 * image.flip(-1), image.flip(-2) / 2 - 1
    try:
        among_copies = _middle(model, [image, image, image], layer, reading)
        among_others = _middle(model, [others[0], image, others[1]], layer, reading)
    except Exception as error:  # whatever the module raises, for one image it does not
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
    """What the model says of the middle one of three images, and the layer's output for it."""
    batch, middle = torch.cat(images), len(images) // 2
    devices = [batch.device] if batch.device.type == "cuda" else []
    with (
        evaluating(model),
        watching(model, [layer]) as seen,
        torch.random.fork_rng(devices),  # dropout that is always on is no company
        torch.no_grad(),
    ):
        torch.manual_seed(0)
        outputs = outputs_of(model(batch), reading=reading, batch=len(images))
    if len(outputs) != len(images):
        raise ValueError(f"it has {len(outputs)} outputs")
    found = {f"the output of {layer!r}": values for values in _rows(seen.get(layer), middle)}
    return {"the output": _numbers(outputs[middle]), **found}


def _rows(values: Any, row: int) -> list[Tensor]:
    """The image's own part of a layer's output, where that is told by image."""
    if not isinstance(values, Tensor) or values.shape[:1] != (COMPANY,) or not values[row].numel():
        return []
    return [values[row].float()]


def _numbers(output: Output) -> Tensor:
    """Logits, or a detector's scores in order: of boxes that score alike any may come first."""
    if output.detections is None:
        return output.numbers[0].float()
    return output.detections.scores.float().sort(descending=True).values
