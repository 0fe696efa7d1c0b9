"""What a model said: a classifier's logits, a segmenter's of each pixel, a detector's boxes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from cam.errors import LayerDidNotRun, NotLogits, ScriptedModel, UnknownLayer
from cam.hooks.grids import Located
from cam.hooks.inference import evaluating
from cam.outputs.detection import Detections as Detections
from cam.outputs.detection import detections_of
from cam.outputs.forms import form_of
from cam.outputs.reading import (
    AUTO,
    Activation,
    Reading,
    activation_of,
    classes_of,
    probabilities_of,
    shows_ending,
)
from cam.outputs.reading import logits_of as logits_of

Kind = Literal["classes", "segments", "detections"]


@dataclass(frozen=True, eq=False)
class Output:
    """What a model said about one image; exactly one of the first three is there."""

    logits: Tensor | None = None
    """Of a classifier: float32 (C,). A model of one output has two classes: see
    `cam.outputs.reading.classes_of`."""
    segments: Tensor | None = None
    """Of a segmenter: float32 (C, h, w), a logit for each class at each pixel."""
    detections: Detections | None = None
    """Of a detector."""
    size: tuple[int, int] | None = None
    """Height and width of the input, where they are known."""
    layers: Mapping[str, Tensor] = field(default_factory=dict)
    """The outputs of those layers that a target looks at, without the batch: (K, h, w) where they
    lie on the image."""
    activation: Activation = "softmax"
    """What makes probabilities of the logits."""

    @property
    def probabilities(self) -> Tensor | None:
        """Of a classifier's logits (C,), or a segmenter's (C, h, w); None of detections."""
        values = self.logits if self.segments is None else self.segments
        return None if values is None else probabilities_of(values, self.activation)

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
    reading: Reading = AUTO,
    batch: int | None = None,
) -> list[Output]:
    """A model's output for a batch, image by image.

    Logits are what `cam.outputs.reading.logits_of` finds; detections have one of the forms of
    `cam.outputs.detection.DetectionForm`.

    Args:
        layers: the outputs (B, …) of layers that targets look at.
        size: height and width of the input, in whose pixels boxes are.
        reading: where the logits are and what makes probabilities of them; where there is no
            graph, one of `resolve_reading`.
        batch: how many images went in, where that is known.

    Raises:
        NotLogits: if it is none of these, or there is no telling which are the logits.
        UnsuitedActivation: if the reading's activation does not fit.
    """
    looked = layers or {}
    found = detections_of(raw, size) if reading.output is None else None
    if found is not None:
        return [
            Output(
                detections=each,
                size=size,
                layers={name: value[item] for name, value in looked.items()},
            )
            for item, each in enumerate(found)
        ]
    logits = logits_of(raw, reading, batch=batch)
    activation, _ = activation_of(logits, reading)
    kind = "logits" if logits.ndim == 2 else "segments"
    return [
        Output(
            **{kind: row},
            size=size,
            layers={name: value[item] for name, value in looked.items()},
            activation=activation,
        )
        for item, row in enumerate(classes_of(logits.float(), activation))
    ]


def scale_of(output: Output, score: Tensor) -> float:
    """Return the factor, a power of two, that brings the greatest gradient of a score at the
    model's output to 1 … 2.

    A probability of 1 - 1e-6 has a gradient of 1e-6 at its logit, which float16 layers before
    that turn into zeros. The score times this factor has a gradient that they can hold; whoever
    differentiates it divides the layer's gradient by the factor, in float32. It is 1 where the
    score does not depend on the output.
    """
    numbers = [each for each in output.numbers if each.requires_grad]
    found = torch.autograd.grad(score, numbers, retain_graph=True, allow_unused=True)
    greatest = max((float(each.abs().max()) for each in found if each is not None), default=1.0)
    if not 0 < greatest < math.inf:
        return 1.0
    return math.ldexp(1.0, min(1 - math.frexp(greatest)[1], 126))


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


def resolve_reading(
    model: nn.Module, image: Tensor, reading: Reading = AUTO
) -> tuple[Reading, str]:
    """The reading with its activation told, and why it is that one, as half a sentence.

    Where it is `auto`, one forward pass with a graph, in eval mode, tells: see
    `cam.outputs.reading.activation_of`. The model is left as found.

    Args:
        image: float (1, C, H, W), on the model's device and in its dtype.

    Raises:
        NotLogits, UnsuitedActivation: see `outputs_of`.
    """
    if reading.activation != "auto":
        return reading, "it was given"
    with evaluating(model), torch.inference_mode(False), torch.enable_grad():
        # The second clone: a leaf may not be changed in place.
        raw = model(image.detach().clone().requires_grad_().clone())
    (said,) = one_each(outputs_of(raw, reading=reading, batch=len(image)), image)
    if said.detections is not None:
        return replace(reading, activation="none"), "a detector's scores are probabilities already"
    activation, reason = activation_of(logits_of(raw, reading, batch=len(image)), reading)
    return replace(reading, activation=activation), reason


def tells_activation(raw: Any, reading: Reading, batch: int) -> bool:
    """Whether a model's output for a batch says by itself what makes probabilities of it: it does
    not where a graph would have to tell and none goes back so far."""
    if reading.activation != "auto" or form_of(raw) is not None:
        return True
    return shows_ending(logits_of(raw, reading, batch=batch))


def detached(outputs: list[Output]) -> list[Output]:
    """The same without a graph: a classifier's logits and a detector's boxes on the CPU, the
    logits of a batch in one copy."""
    logits: list[Tensor] | list[None] = [None] * len(outputs)
    rows = [each.logits.detach() for each in outputs if each.logits is not None]
    if len(rows) == len(outputs) > 0:
        logits = list(torch.stack(rows).cpu())
    return [
        replace(
            each,
            logits=row,
            segments=None if each.segments is None else each.segments.detach(),
            detections=each.detections and each.detections.detached(),
            layers={name: value.detach() for name, value in each.layers.items()},
        )
        for each, row in zip(outputs, logits, strict=True)
    ]


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
    seen: Mapping[str, Tensor], layers: Iterable[str], images: Tensor, located: Located
) -> dict[str, Tensor]:
    """The outputs that targets look at: (B, K, h, w) where they lie on the images (B, C, H, W),
    else as they are.

    Raises:
        LayerDidNotRun: if one of the layers has returned no tensor.
    """
    found = {}
    for name in layers:
        if name not in seen or seen[name].shape[:1] != (len(images),):
            raise LayerDidNotRun(f"layer {name!r} returned no tensor for each image in this pass")
        grid = located.grid(name)
        found[name] = grid.apply(seen[name]) if grid else seen[name]
    return found


def total(outputs: list[Output]) -> Tensor:
    """The sum of the squares of every number in them that a score may be made of: unlike the plain
    sum, it depends on the model where the numbers of a softmax, or of one output's two classes, add
    up to a constant."""
    parts = [
        each.detections.scores if each.detections is not None else each.numbers[0]
        for each in outputs
    ]
    return torch.stack([each.square().sum() for each in parts]).sum()
