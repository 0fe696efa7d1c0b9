"""The output of a model for each image: logits of classes, logits of pixels, or detections."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

import torch
from torch import Tensor, nn

from cam.errors import LayerDidNotRun, NotLogits, ScriptedModel, unknown_layer
from cam.hooks.calls import Modules, hooked
from cam.hooks.grids import Located
from cam.outputs.detection import Detections as Detections
from cam.outputs.detection import detections_of
from cam.outputs.reading import (
    AUTO,
    Activation,
    Meaning,
    Reading,
    activation_for,
    classes_of,
    features_of,
    logits_of,
    probabilities_of,
)

Kind = Literal["classes", "segments", "detections", "value", "features"]
NOWHERE: Final = Located({})
"""The locations of no layer."""


@dataclass(frozen=True, eq=False)
class Output:
    """The output of a model for one image; exactly one of the first four fields is set."""

    logits: Tensor | None = None
    """Logits of a classifier, float32 (C,). A model of one output has two classes: see
    `cam.outputs.reading.classes_of`. If the meaning is `value`, the values of a regression."""
    segments: Tensor | None = None
    """Logits of a segmenter, float32 (C, h, w): one for each class at each pixel."""
    detections: Detections | None = None
    """Detections of a detector."""
    features: Tensor | None = None
    """Features of a model without a head, float32 (…)."""
    size: tuple[int, int] | None = None
    """Height and width of the input, if they are known."""
    layers: Mapping[str, Tensor] = field(default_factory=dict)
    """Outputs of the layers that a target reads, without the batch axis: (K, h, w) if they have
    positions on the image."""
    activation: Activation = "softmax"
    """Activation that turns the logits into probabilities."""
    meaning: Meaning = "classes"
    """What the outputs are."""

    @property
    def probabilities(self) -> Tensor | None:
        """Probabilities of a classifier, (C,), or a segmenter, (C, h, w); None for other kinds."""
        values = self.logits if self.segments is None else self.segments
        if values is None or self.kind == "value":
            return None
        return probabilities_of(values, self.activation)

    @property
    def kind(self) -> Kind:
        if self.segments is not None:
            return "segments"
        if self.logits is not None:
            return "value" if self.meaning == "value" else "classes"
        return "features" if self.features is not None else "detections"

    @property
    def numbers(self) -> list[Tensor]:
        """Floating-point tensors of the output: its logits, its features, or the scores and boxes
        of its detections."""
        tensors = [self.logits, self.segments, self.features]
        if self.detections is not None:
            tensors += [self.detections.scores, self.detections.boxes]
        return [tensor for tensor in tensors if tensor is not None]

    @property
    def finite(self) -> bool:
        return all(bool(numbers.isfinite().all()) for numbers in self.numbers)


def outputs_of(
    raw: Any,
    layers: Mapping[str, Tensor] | None = None,
    *,
    size: tuple[int, int] | None = None,
    reading: Reading = AUTO,
    batch: int | None = None,
) -> list[Output]:
    """Return a model's output for a batch as one `Output` for each image.

    Logits are found by `cam.outputs.reading.logits_of`; detections have one of the forms of
    `cam.outputs.detection.DetectionForm`. An output that holds neither may hold features, which are
    found by `cam.outputs.reading.features_of`.

    Args:
        layers: outputs (B, …) of the layers that targets read.
        size: height and width of the input, in whose pixels boxes are given.
        reading: where the logits are, what they mean, and which activation turns them into
            probabilities. Unless it is a reading that `cam.outputs.meaning.resolve_reading`
            returned, its activation `auto` is that of logits.
        batch: number of images in the batch, if it is known.

    Raises:
        NotLogits: if the output holds neither logits nor detections, or if several tensors could be
            the logits.
        UnsuitedActivation: if the reading's activation does not fit the model.
    """
    looked = layers or {}

    def one(item: int, **fields: Any) -> Output:
        rows = {name: value[item] for name, value in looked.items()}
        return Output(**fields, size=size, layers=rows)

    detected = detections_of(raw, size) if reading.output is None else None
    if detected is not None:
        return [one(item, detections=detections) for item, detections in enumerate(detected)]
    features = features_of(raw, batch) if reading.output is None else []
    if reading.meaning == "features" and isinstance(raw, Tensor):
        features = [raw]
    if features:
        return [one(item, features=row) for item, row in enumerate(features[0].float())]
    logits = logits_of(raw, reading, batch=batch)
    activation = activation_for(logits.shape[1], reading)
    kind, meaning = "logits" if logits.ndim == 2 else "segments", "classes"
    rows = logits.float()
    if reading.meaning == "value" and kind == "logits":
        meaning = "value"
    else:
        rows = classes_of(rows, activation)
    return [
        one(item, **{kind: row}, activation=activation, meaning=meaning)
        for item, row in enumerate(rows)
    ]


def scale_of(output: Output, score: Tensor) -> float:
    """Return the factor, a power of two, that brings the greatest gradient of a score at the
    model's output to 1 … 2.

    A probability of 1 - 1e-6 has a gradient of 1e-6 at its logit, which float16 layers before
    that turn into zeros. The score times this factor has a gradient that they can hold; whoever
    differentiates it divides the layer's gradient by the factor, in float32. It is 1 where the
    score does not depend on the output.
    """
    numbers = [tensor for tensor in output.numbers if tensor.requires_grad]
    gradients = torch.autograd.grad(score, numbers, retain_graph=True, allow_unused=True)
    greatest = max(
        (float(gradient.abs().max()) for gradient in gradients if gradient is not None), default=1.0
    )
    if not 0 < greatest < math.inf:
        return 1.0
    return math.ldexp(1.0, min(1 - math.frexp(greatest)[1], 126))


def one_each(outputs: list[Output], images: Tensor) -> list[Output]:
    """Return the outputs if there is one for each of the images (B, …).

    Raises:
        NotLogits: if there are more or fewer outputs than images, or if an output has no class.
    """
    if len(outputs) != len(images):
        raise NotLogits(f"the model's output has {len(outputs)} rows for {len(images)} images")
    if any(output.detections is None and not output.numbers[0].numel() for output in outputs):
        raise NotLogits("the model's output has no class")
    return outputs


def detached(outputs: list[Output]) -> list[Output]:
    """Return the outputs without a graph, a classifier's logits and a detector's boxes on the CPU.

    The logits of a batch are copied to the CPU in one copy.
    """
    logits: list[Tensor] | list[None] = [None] * len(outputs)
    rows = [output.logits.detach() for output in outputs if output.logits is not None]
    if len(rows) == len(outputs) > 0:
        logits = list(torch.stack(rows).cpu())
    return [
        replace(
            output,
            logits=row,
            segments=None if output.segments is None else output.segments.detach(),
            features=None if output.features is None else output.features.detach(),
            detections=output.detections and output.detections.detached(),
            layers={name: value.detach() for name, value in output.layers.items()},
        )
        for output, row in zip(outputs, logits, strict=True)
    ]


@contextmanager
def watching(model: nn.Module, layers: Iterable[str]) -> Iterator[dict[str, Tensor]]:
    """Yield a dictionary that every forward pass in the block fills with the outputs of `layers`.

    Raises:
        UnknownLayer: if a name is not a module of the model.
        ScriptedModel: if a layer is TorchScript.
    """
    seen: dict[str, Tensor] = {}
    names = list(dict.fromkeys(layers))
    if not names:  # to list a model's modules takes milliseconds
        yield seen
        return
    modules, every = Modules(model), dict(model.named_modules())

    def note(name: str, module: nn.Module, args: Any, output: Any) -> None:
        if isinstance(output, Tensor):
            # A copy, because a later operation may change the output in place.
            seen[name] = output.clone()

    for name in names:
        if name not in modules:
            if name and name in every:
                raise ScriptedModel(f"layer {name!r} is TorchScript, which runs no hooks")
            raise unknown_layer(name, every)
    with hooked({name: modules[name] for name in names}, note):
        yield seen


def size_of(images: Tensor) -> tuple[int, int]:
    """Return the height and width of images (B, C, H, W)."""
    return int(images.shape[-2]), int(images.shape[-1])


def looked_at(
    seen: Mapping[str, Tensor], layers: Iterable[str], images: Tensor, located: Located
) -> dict[str, Tensor]:
    """Return the layers' outputs for targets that read them: (B, K, h, w) if they have positions
    on the images (B, C, H, W), else unchanged.

    Raises:
        LayerDidNotRun: if a layer did not return a tensor for each image.
    """
    arranged = {}
    for name in layers:
        grid = located.grid(name)
        axis = 1 if grid and grid.tokens_first else 0
        if name not in seen or seen[name].shape[axis : axis + 1] != (len(images),):
            raise LayerDidNotRun(f"layer {name!r} returned no tensor for each image in this pass")
        arranged[name] = grid.apply(seen[name]) if grid else seen[name]
    return arranged


def forward(
    model: nn.Module,
    images: Tensor,
    reading: Reading = AUTO,
    *,
    layers: Collection[str] = (),
    located: Located = NOWHERE,
) -> list[Output]:
    """Return a model's output for each of the images (B, C, H, W), from one forward pass.

    Args:
        images: stay as they are, also where the model changes its input in place.
        layers: names of the layers that targets read, whose places are in `located`.

    Raises:
        CamError: see `outputs_of`, `one_each` and `looked_at`.
    """
    with watching(model, layers) as seen:
        raw = model(images.clone())
    looked = looked_at(seen, layers, images, located)
    outputs = outputs_of(raw, looked, size=size_of(images), reading=reading, batch=len(images))
    return one_each(outputs, images)


def total(outputs: list[Output]) -> Tensor:
    """Return the sum of the squares of all numbers from which a score may be computed.

    The plain sum would not depend on the model where the numbers add up to a constant, as those of
    a softmax do, and those of the two classes of a single output.
    """
    parts = [
        output.detections.scores if output.detections is not None else output.numbers[0]
        for output in outputs
    ]
    return torch.stack([part.square().sum() for part in parts]).sum()
