"""Check whether a model's output depends on more than the image: on its batch, or on chance.

In some models the output for an image depends on the other images of the batch, even in eval mode:
models with a batch normalisation without running statistics, with an attention whose batch and
token axes are swapped, or with activations that are quantised by the range of the batch. The map of
an image then depends on the other images, too. A stochastic model, such as one whose dropout is
always on, returns another output in every pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from cam.counts import counted
from cam.hooks.inference import evaluating
from cam.outputs.output import Output
from cam.outputs.outputs import forward, outputs_of, size_of, watching
from cam.outputs.reading import AUTO, Reading

COMPANY = 3
"""Number of images in each compared batch: the tested image, one before it and one after it."""


@dataclass(frozen=True)
class Conduct:
    """On what a model's output depends beside the image: see `conduct_of`."""

    stochastic: str | None
    """See `is_stochastic`."""
    company: str | None = None
    """See `sees_company`."""
    examined: bool = False
    """Whether `company` is known."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences for the warnings of the model's maps."""
        alone = self.company and f"the image was explained alone: {self.company}"
        return tuple(reason for reason in (self.stochastic, alone) if reason)


_KNOWN: WeakKeyDictionary[nn.Module, Conduct] = WeakKeyDictionary()


def conduct_of(
    model: nn.Module, image: Tensor, reading: Reading = AUTO, *, many: bool = True
) -> Conduct:
    """Return on what the model's output depends beside the image. It is kept for as long as the
    model exists, so that the two passes of the image, and two of three images, are made once.

    Args:
        image: float (1, C, H, W), on the model's device and in its dtype.
        many: whether batches of several images will be passed; if not, `company` is None.
    """
    conduct = _KNOWN.get(model)
    if conduct is None:
        conduct = Conduct(is_stochastic(model, image, reading))
    if many and not conduct.examined:
        conduct = replace(conduct, company=sees_company(model, image, None, reading), examined=True)
    _KNOWN[model] = conduct
    return conduct if many else replace(conduct, company=None)


def is_stochastic(model: nn.Module, image: Tensor, reading: Reading = AUTO) -> str | None:
    """Check whether two passes of one image give different outputs.

    The model and torch's random state are left as found.

    Args:
        image: float (1, C, H, W), on the model's device and in its dtype.
        reading: how the model's output is read.

    Returns:
        A sentence that says that the model is stochastic, for the warnings of a map; None if the
        outputs are the same, up to 1e-4 of the spread of the logits (1e-2 in half precision).
    """
    with _undisturbed(model, image):
        first, second = (_numbers(forward(model, image, reading)[0]) for _ in range(2))
    outcome = "others"
    if first.shape == second.shape:
        if not first.numel() or not first.isfinite().all():
            return None
        spread, difference = _spread(first), float((second - first).abs().max())
        if difference <= _tolerance(image.dtype) * spread:
            return None
        outcome = f"outputs that differ by {difference:.2g}, of a spread of {spread:.2g}"
    return (
        f"the model is stochastic: two passes of one image give {outcome}, as with a dropout that "
        "is always on, so this map is one of many that the model gives"
    )


def sees_company(
    model: nn.Module, image: Tensor, layer: str | None = None, reading: Reading = AUTO
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
            nothing in the image; None for the model's output alone.
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
        other = among_others.get(name)
        if other is None or other.shape != expected.shape:
            return f"the shape of {name} for an image depends on the others of its batch"
        if not expected.numel() or not expected.isfinite().all():
            continue
        spread = _spread(expected)
        difference = float((other - expected).abs().max())
        if not difference <= _tolerance(image.dtype) * spread:
            return (
                f"{name} for an image depends on the others of its batch: it changes by "
                f"{difference:.2g}, of a spread of {spread:.2g}"
            )
    return None


@contextmanager
def _undisturbed(model: nn.Module, images: Tensor) -> Iterator[None]:
    """Run the model in eval mode, without gradients, and restore torch's random state."""
    devices = [images.device] if images.device.type == "cuda" else []
    with evaluating(model), torch.random.fork_rng(devices), torch.no_grad():
        yield


def _spread(values: Tensor) -> float:
    return float(values.max() - values.min()) or float(values.abs().max())


def _tolerance(dtype: torch.dtype) -> float:
    return 1e-2 if torch.finfo(dtype).bits < 32 else 1e-4


def _middle(
    model: nn.Module, images: list[Tensor], layer: str | None, reading: Reading
) -> dict[str, Tensor]:
    """Return the model's output, and the layer's output, for the middle one of three images."""
    batch, middle = torch.cat(images), len(images) // 2
    names = [] if layer is None else [layer]
    with _undisturbed(model, batch), watching(model, names) as seen:
        torch.manual_seed(0)  # dropout that is always on must not count as a difference
        outputs = outputs_of(
            model(batch.clone()),
            size=size_of(batch),
            reading=reading,
            batch=len(images),
            model=model,
        )
    if len(outputs) != len(images):
        raise ValueError(f"it has {counted(len(outputs), 'output')}")
    intermediate = {
        f"the output of {name!r}": values
        for name in names
        for values in _rows(seen.get(name), middle)
    }
    return {"the output": _numbers(outputs[middle]), **intermediate}


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
