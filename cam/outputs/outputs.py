"""The output of a model for a batch, as tensors of the whole batch, and how it is read."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Final, overload

import torch
from torch import Tensor, nn

from cam.counts import counted
from cam.errors import LayerDidNotRun, NotLogits, ScriptedModel, unknown_layer
from cam.hooks.calls import Modules, hooked
from cam.hooks.grids import Located
from cam.outputs.kind import kinds
from cam.outputs.output import Detections, Kind, Known, Output
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
from cam.outputs.transfer import on_host

NOWHERE: Final = Located({})
"""The locations of no layer."""


@dataclass(frozen=True, eq=False)
class Outputs(Sequence[Output]):
    """The output of a model for a batch of B images: a sequence of their `Output`s, which are made
    when they are read. Exactly one of the first four fields is set."""

    logits: Tensor | None = None
    """Logits of a classifier or values of a regression, float32 (B, C)."""
    segments: Tensor | None = None
    """Logits of a segmenter, float32 (B, C, h, w)."""
    detections: tuple[Detections, ...] | None = None
    """Detections of a detector, of each image."""
    features: Tensor | None = None
    """Features of a model without a head, float32 (B, …)."""
    size: tuple[int, int] | None = None
    """Height and width of the input, if they are known."""
    layers: Mapping[str, Tensor] = field(default_factory=dict)
    """Outputs (B, …) of the layers that targets read."""
    activation: Activation = "softmax"
    """Activation that turns the logits into probabilities."""
    meaning: Meaning = "classes"
    """What the outputs are."""
    known: tuple[Known, ...] | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.numbers if self.detections is None else self.detections)

    @overload
    def __getitem__(self, item: int) -> Output: ...
    @overload
    def __getitem__(self, item: slice) -> Outputs: ...
    def __getitem__(self, item: int | slice) -> Output | Outputs:
        if isinstance(item, slice):
            some: dict[str, Any] = {name: values[item] for name, values in self._values.items()}
            return replace(
                self,
                **some,
                detections=self.detections and self.detections[item],
                layers={name: values[item] for name, values in self.layers.items()},
                known=self.known and self.known[item],
            )
        row: dict[str, Any] = {name: rows[item] for name, rows in self._rows.items()}
        return Output(
            **row,
            detections=None if self.detections is None else self.detections[item],
            size=self.size,
            layers={name: rows[item] for name, rows in self._rows_of_layers.items()},
            activation=self.activation,
            meaning=self.meaning,
            known=None if self.known is None else self.known[item],
        )

    @cached_property
    def numbers(self) -> Tensor:
        """The tensor from which the scores are computed: logits, segments, features, or the scores
        of the first image's detections."""
        if self.detections is not None:
            return self.detections[0].scores
        (values,) = self._values.values()
        return values

    @cached_property
    def kind(self) -> Kind:
        """The kind of each image's `Output`."""
        if self.detections is not None:
            return "detections"
        (name,) = self._values
        if name == "logits":
            return "value" if self.meaning == "value" else "classes"
        return "segments" if name == "segments" else "features"

    @cached_property
    def finite(self) -> Tensor:
        """Whether all numbers of each image's output are finite, bool (B,)."""
        if self.detections is not None:
            return torch.tensor([output.finite for output in self])
        return self._plain.flatten(1).isfinite().all(1)

    @cached_property
    def probabilities(self) -> Tensor | None:
        """Probabilities of a classifier, (B, C), or of a segmenter, (B, C, h, w), without a graph;
        None for other kinds."""
        if self.kind not in ("classes", "segments"):
            return None
        return probabilities_of(self._plain, self.activation, axis=1)

    @cached_property
    def wins(self) -> Tensor:
        """The class with the highest logit, (B,) of a classifier, (B, h, w) of a segmenter."""
        return self._plain.argmax(1)

    @property
    def columns(self) -> Output | None:
        """A classifier's logits as one `Output` of numbers (C, B): a class's score is then one for
        each image, (B,). None for other kinds."""
        if self.logits is None:
            return None
        return Output(logits=self.logits.T, activation=self.activation, meaning=self.meaning)

    @property
    def facts(self) -> tuple[Tensor, ...]:
        """What an answer tells of an output, as tensors (B, …), to be copied to the host with its
        maps: see `tell`. () once they are there."""
        if "told" in self.__dict__:
            return ()
        if self.kind == "classes":
            assert self.probabilities is not None
            return self.finite, self._plain, self.probabilities, self.wins
        if self.kind == "segments":
            return self.finite, self.wins
        return (self.finite, self._plain) if self.kind == "value" else (self.finite,)

    def tell(self, facts: Sequence[Tensor]) -> Outputs:
        """Take the `facts` that were copied to the host; return what is `told` then."""
        values: dict[str, Any] = {
            name: facts[1] if name == "logits" else each.detach()
            for name, each in self._values.items()
        }
        told = self.__dict__["told"] = replace(
            self,
            **values,
            detections=self.detections and tuple(each.detached() for each in self.detections),
            layers={name: each.detach() for name, each in self.layers.items()},
            known=self._known(facts),
        )
        return told

    @cached_property
    def told(self) -> Outputs:
        """The outputs without a graph, a classifier's logits and a detector's boxes on the host,
        and what each output `Known`s. Unless the facts are there, this waits for the device."""
        return self.tell(on_host(self.facts))

    def _known(self, facts: Sequence[Tensor]) -> tuple[Known, ...]:
        finite, *rest = facts
        found = [{"finite": each} for each in finite.tolist()]
        more: dict[str, Any] = {}
        if self.kind == "classes":
            more = {"probabilities": rest[1].unbind(), "best": rest[2].tolist()}
        elif self.kind == "segments":
            more = {"wins": rest[0].numpy()}
        return tuple(
            Known(**own, **{name: each[item] for name, each in more.items()})
            for item, own in enumerate(found)
        )

    @cached_property
    def _plain(self) -> Tensor:
        """The `numbers` without a graph."""
        return self.numbers.detach()

    @cached_property
    def _values(self) -> dict[str, Tensor]:
        kinds = {"logits": self.logits, "segments": self.segments, "features": self.features}
        return {name: values for name, values in kinds.items() if values is not None}

    @cached_property
    def _rows(self) -> dict[str, tuple[Tensor, ...]]:
        """Each image's part of the tensors, made at once: on a device, a choice costs a launch."""
        return {name: values.unbind() for name, values in self._values.items()}

    @cached_property
    def _rows_of_layers(self) -> dict[str, tuple[Tensor, ...]]:
        return {name: values.unbind() for name, values in self.layers.items()}


def outputs_of(
    raw: Any,
    layers: Mapping[str, Tensor] | None = None,
    *,
    size: tuple[int, int] | None = None,
    reading: Reading = AUTO,
    batch: int | None = None,
    model: nn.Module | None = None,
) -> Outputs:
    """Return a model's output for a batch.

    It is first read as each of `cam.outputs.KINDS`. Else logits are found by
    `cam.outputs.reading.logits_of`. An output without them may hold features, which are found by
    `cam.outputs.reading.features_of`.

    Args:
        layers: outputs (B, …) of the layers that targets read.
        size: height and width of the input, in whose pixels boxes are given.
        reading: where the logits are, what they mean, and which activation turns them into
            probabilities. Unless it is a reading that `cam.outputs.meaning.resolve_reading`
            returned, its activation `auto` is that of logits.
        batch: number of images in the batch, if it is known.
        model: states the number of a detector's classes, if the reading does not.

    Raises:
        NotLogits: if the output holds neither logits nor detections, or if several tensors could be
            the logits.
        UnsuitedActivation: if the reading's activation does not fit the model.
    """
    for kind in kinds().values() if reading.output is None else ():
        found = kind.read(raw, size, reading, model)
        if found is not None:
            return Outputs(size=size, layers=layers or {}, **found)
    features = features_of(raw, batch) if reading.output is None else []
    if reading.meaning == "features" and isinstance(raw, Tensor):
        features = [raw]
    if features:
        return Outputs(features=features[0].float(), size=size, layers=layers or {})
    return outputs_of_logits(logits_of(raw, reading, batch=batch), reading, layers, size=size)


def outputs_of_logits(
    logits: Tensor,
    reading: Reading,
    layers: Mapping[str, Tensor] | None = None,
    *,
    size: tuple[int, int] | None = None,
) -> Outputs:
    """Return a model's output whose logits `logits_of` has found: see `outputs_of`."""
    read = partial(Outputs, size=size, layers=layers or {})
    rows = logits.float()
    if reading.meaning == "features":
        return read(features=rows)
    activation = activation_for(logits.shape[1], reading)
    if reading.meaning == "value" and rows.ndim == 2:
        return read(logits=rows, activation=activation, meaning="value")
    rows = classes_of(rows, activation)
    if rows.ndim == 2:
        return read(logits=rows, activation=activation)
    return read(segments=rows, activation=activation)


def one_each(outputs: Outputs, images: Tensor) -> Outputs:
    """Return the outputs if there is one for each of the images (B, …).

    Raises:
        NotLogits: if there are more or fewer outputs than images, or if an output has no class.
    """
    if len(outputs) != len(images):
        raise NotLogits(
            f"the model's output has {counted(len(outputs), 'row')} for "
            f"{counted(len(images), 'image')}"
        )
    if outputs.detections is None and not outputs.numbers.numel():
        raise NotLogits("the model's output has no class")
    return outputs


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
    modules = Modules(model)

    def note(name: str, module: nn.Module, args: Any, output: Any) -> None:
        if isinstance(output, Tensor):
            # A copy, because a later operation may change the output in place.
            seen[name] = output.clone()

    for name in names:
        if name not in modules:
            every = dict(model.named_modules())
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
) -> Outputs:
    """Return a model's output for the images (B, C, H, W), from one forward pass.

    Args:
        images: stay as they are, also where the model changes its input in place.
        layers: names of the layers that targets read, whose places are in `located`.

    Raises:
        CamError: see `outputs_of`, `one_each` and `looked_at`.
    """
    with watching(model, layers) as seen:
        raw = model(images.clone())
    looked = looked_at(seen, layers, images, located)
    outputs = outputs_of(
        raw, looked, size=size_of(images), reading=reading, batch=len(images), model=model
    )
    return one_each(outputs, images)


def total(outputs: Outputs) -> Tensor:
    """Return the sum of the squares of all numbers from which a score may be computed.

    The plain sum would not depend on the model where the numbers add up to a constant, as those of
    a softmax do, and those of the two classes of a single output.
    """
    if outputs.detections is None:
        return outputs.numbers.square().sum()
    return torch.stack([each.scores.square().sum() for each in outputs.detections]).sum()
