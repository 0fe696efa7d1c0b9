"""What a model said: a classifier's logits, a segmenter's of each pixel, a detector's boxes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from cam.errors import LayerDidNotRun, NotLogits, ScriptedModel, UnknownLayer
from cam.grids import grid_of

Kind = Literal["classes", "segments", "detections"]


@dataclass(frozen=True, eq=False)
class Detections:
    """The boxes that a detector found in one image, best first."""

    boxes: Tensor
    """float (N, 4): left, top, right, bottom in the input's pixels."""
    labels: Tensor
    """int (N,)."""
    scores: Tensor
    """float (N,), 0 … 1."""


@dataclass(frozen=True, eq=False)
class Output:
    """What a model said about one image; exactly one of the first three is there."""

    logits: Tensor | None = None
    """Of a classifier: float32 (C,)."""
    segments: Tensor | None = None
    """Of a segmenter: float32 (C, h, w), a logit for each class at each pixel."""
    detections: Detections | None = None
    """Of a detector."""
    size: tuple[int, int] | None = None
    """Height and width of the input, where they are known."""
    layers: Mapping[str, Tensor] = field(default_factory=dict)
    """The outputs of those layers that a target looks at, without the batch: (K, h, w) where they
    lie on the image."""

    @property
    def kind(self) -> Kind:
        if self.segments is not None:
            return "segments"
        return "classes" if self.logits is not None else "detections"

    @property
    def numbers(self) -> list[Tensor]:
        """All floating-point tensors in it."""
        found = [self.logits, self.segments]
        if self.detections is not None:
            found += [self.detections.scores, self.detections.boxes]
        return [each for each in found if each is not None]

    @property
    def finite(self) -> bool:
        return all(bool(each.isfinite().all()) for each in self.numbers)


def outputs_of(
    raw: Any,
    layers: Mapping[str, Tensor] | None = None,
    *,
    size: tuple[int, int] | None = None,
) -> list[Output]:
    """A model's output for a batch, image by image.

    Logits (B, C) or (B, C, H, W) are the tensor itself, its `.logits`, its "logits" or "out"
    entry, or the first item of a tuple; detections are a list of a dictionary for each image, with
    "boxes", "labels" and "scores", as torchvision's detectors return them.

    Args:
        layers: the outputs (B, …) of layers that targets look at.
        size: height and width of the input, in whose pixels boxes are.

    Raises:
        NotLogits: if it is none of these.
    """
    looked = layers or {}
    if _are_detections(raw):
        return [
            Output(
                detections=Detections(each["boxes"], each["labels"], each["scores"].float()),
                size=size,
                layers={name: value[item] for name, value in looked.items()},
            )
            for item, each in enumerate(raw)
        ]
    logits = logits_of(raw)
    kind = "logits" if logits.ndim == 2 else "segments"
    return [
        Output(
            **{kind: row},
            size=size,
            layers={name: value[item] for name, value in looked.items()},
        )
        for item, row in enumerate(logits.float())
    ]


def one_each(outputs: list[Output], images: Tensor) -> list[Output]:
    """The outputs, if there is one for each of the images (B, …).

    Raises:
        NotLogits: if there are more or less, or they are of no class at all.
    """
    if len(outputs) != len(images):
        raise NotLogits(f"the model's output has {len(outputs)} rows for {len(images)} images")
    if any(each.detections is None and not each.numbers[0].numel() for each in outputs):
        raise NotLogits("the model's output has no class")
    return outputs


def detached(outputs: list[Output]) -> list[Output]:
    """The same without a graph: a classifier's logits and a detector's boxes on the CPU, the
    logits of a batch in one copy."""
    logits: list[Tensor] | list[None] = [None] * len(outputs)
    rows = [each.logits.detach() for each in outputs if each.logits is not None]
    if len(rows) == len(outputs) > 0:
        logits = list(torch.stack(rows).cpu())
    return [
        Output(
            logits=row,
            segments=None if each.segments is None else each.segments.detach(),
            detections=each.detections
            and Detections(
                each.detections.boxes.detach().cpu(),
                each.detections.labels.cpu(),
                each.detections.scores.detach().cpu(),
            ),
            size=each.size,
            layers={name: value.detach() for name, value in each.layers.items()},
        )
        for each, row in zip(outputs, logits, strict=True)
    ]


def logits_of(raw: Any) -> Tensor:
    """The (batch, classes) or (batch, classes, height, width) logits in a model's output.

    Raises:
        NotLogits: if there are none.
    """
    found = raw
    if isinstance(found, Mapping):
        found = found.get("logits", found.get("out"))
    elif hasattr(found, "logits"):
        found = found.logits
    elif isinstance(found, tuple | list) and found:
        found = found[0]
    if not isinstance(found, Tensor) or not found.is_floating_point() or found.ndim not in (2, 4):
        shape = tuple(found.shape) if isinstance(found, Tensor) else type(raw).__name__
        raise NotLogits(
            f"the model's output is {shape}, not logits of shape (batch, classes) or (batch, "
            "classes, height, width), nor a list of detections"
        )
    return found


@contextmanager
def watching(model: nn.Module, layers: Iterable[str]) -> Iterator[dict[str, Tensor]]:
    """A dictionary that every forward pass in the block fills with the outputs of `layers`.

    Raises:
        UnknownLayer: if a name is not a module of the model.
    """
    modules = dict(model.named_modules())
    seen: dict[str, Tensor] = {}

    def note(name: str, module: nn.Module, args: Any, output: Any) -> None:
        if isinstance(output, Tensor):
            # What follows may change it in place.
            seen[name] = output.clone()

    names = list(dict.fromkeys(layers))
    with ExitStack() as scope:
        for name in names:
            if not name or name not in modules:
                raise UnknownLayer(f"the model has no layer {name!r}")
            if isinstance(modules[name], torch.jit.ScriptModule):
                raise ScriptedModel(f"layer {name!r} is TorchScript, which runs no hooks")
            scope.callback(modules[name].register_forward_hook(partial(note, name)).remove)
        yield seen


def size_of(images: Tensor) -> tuple[int, int]:
    """Height and width of images (B, C, H, W)."""
    return int(images.shape[-2]), int(images.shape[-1])


def looked_at(
    seen: Mapping[str, Tensor], layers: Iterable[str], images: Tensor
) -> dict[str, Tensor]:
    """The outputs that targets look at: (B, K, h, w) where they lie on the images (B, C, H, W),
    else as they are.

    Raises:
        LayerDidNotRun: if one of the layers has returned no tensor.
    """
    size = (int(images.shape[-2]), int(images.shape[-1]))
    found = {}
    for name in layers:
        if name not in seen or seen[name].shape[:1] != (len(images),):
            raise LayerDidNotRun(f"layer {name!r} returned no tensor for each image in this pass")
        grid = grid_of(tuple(seen[name].shape), size)
        found[name] = grid.apply(seen[name]) if grid else seen[name]
    return found


def _are_detections(raw: Any) -> bool:
    keys = {"boxes", "labels", "scores"}
    return (
        isinstance(raw, list)
        and bool(raw)
        and all(isinstance(each, Mapping) and keys <= set(each) for each in raw)
    )


def total(outputs: list[Output]) -> Tensor:
    """The sum of every number in them that a score may be made of."""
    parts = [
        each.detections.scores.sum() if each.detections is not None else each.numbers[0].sum()
        for each in outputs
    ]
    return torch.stack(parts).sum()
