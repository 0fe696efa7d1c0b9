"""Run a model from one of its layers on, many times, without the modules before that layer.

    with recorded(model, "layer4") as record:
        model(image)                                  # one forward pass of one image
    replay = Replay(model, "layer4", image, record)
    logits = replay.output(changed)                   # (n, classes), of n changed activations

While `output` runs, every module that finished before the layer ran returns its stored output for
`image`, and the layer itself returns the changed activations. Only the modules after the layer are
computed. Between the calls the model is in its original state, and other code may use it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree

from cam.errors import (
    LayerDidNotRun,
    LayerNotSpatial,
    LayerReused,
    MethodUnsuited,
    unknown_layer,
)
from cam.hooks.calls import Modules, call_of, hooked
from cam.hooks.grids import TOKENS_FIRST
from cam.hooks.inference import evaluating


class Record:
    """What the modules of a model returned in one forward pass, up to the end of one layer."""

    def __init__(self) -> None:
        self.runs = 0
        """How often the layer ran."""
        self.output: Any = None
        """What the layer returned."""
        self.trunk: dict[str, list[Any]] = {}
        """Name of a module that finished before the layer → what each of its calls returned."""


@contextmanager
def recorded(model: nn.Module, layer: str) -> Iterator[Record]:
    """Record one forward pass of one image, which the caller runs within the block.

    Raises:
        UnknownLayer: if the model has no such layer.
    """
    modules = dict(model.named_modules())
    if not layer or layer not in modules:
        module, number = call_of(layer)
        if number and module in modules:
            raise LayerReused(
                f"layer {layer!r} is one call of several, from which the model cannot be run on"
            )
        raise unknown_layer(layer, modules)
    record = Record()

    def note(name: str, module: nn.Module, args: Any, output: Any) -> None:
        if name == layer:
            record.runs += 1
            record.output = _copied(output)
        elif not record.runs and not layer.startswith(f"{name}."):
            # A module that follows may change the output in place.
            kept = _pytree.tree_map(_copied, output)
            record.trunk.setdefault(name, []).append(kept)

    with hooked(Modules(model), note):
        yield record


@dataclass(frozen=True)
class Repetition:
    """How a stored tensor of one image becomes that of several images."""

    axis: int | None = 0
    """Axis along which the tensor is repeated; None if it is the same for every image."""
    interleaved: bool = False
    """Whether the rows of one image are apart, with those of the other images between them."""

    def of(self, value: Any, count: int, *, copied: bool) -> Any:
        """Repeat the tensor for `count` images. With `copied=False` the result may share memory
        among the images and then cannot be written to. Other values are returned unchanged."""
        if not isinstance(value, Tensor) or not value.ndim or self.axis is None:
            return value
        if count == 1 and value.shape[self.axis] != 1:
            return value
        if self.interleaved:
            return value.repeat_interleave(count, self.axis)
        sizes = [1] * value.ndim
        if copied or count == 1 or value.shape[self.axis] != 1:
            sizes[self.axis] = count
            return value.repeat(sizes)
        sizes = [-1] * value.ndim
        sizes[self.axis] = count
        return value.expand(sizes)


class Replay:
    """The stored outputs of a model for one image, up to `layer`.

    Args:
        image: float (1, C, H, W), preprocessed, on the model's device and in its dtype.
        record: of a forward pass of this image, from `recorded`; without one, `Replay` makes a
            pass of its own.

    Raises:
        UnknownLayer: if the model has no such layer.
        LayerDidNotRun: if the layer takes no part in the forward pass.
        LayerReused: if the layer runs more than once in the forward pass.
        LayerNotSpatial: if the layer does not return a tensor.
        MethodUnsuited: if the layer returns tokens (N, B, K).
    """

    def __init__(
        self, model: nn.Module, layer: str, image: Tensor, record: Record | None = None
    ) -> None:
        if record is None:
            with evaluating(model), torch.no_grad(), recorded(model, layer) as record:
                model(image.clone())  # which the model may change in place
        if record.runs != 1:
            why = "did not run" if not record.runs else "runs more than once"
            kind = LayerReused if record.runs else LayerDidNotRun
            raise kind(f"layer {layer!r} {why} in this pass")
        if not isinstance(record.output, Tensor):
            returned = type(record.output).__name__
            raise LayerNotSpatial(f"layer {layer!r} returns a {returned}, not a tensor")
        if record.output.ndim == 3 and len(record.output) != len(image):
            raise MethodUnsuited(f"{TOKENS_FIRST} as at layer {layer!r}")
        self._model, self._layer, self._image = model, layer, image
        self._copied = False
        self._known: dict[str, list[Any]] | None = _UNKNOWN
        self.activation = record.output
        # The modules inside a kept module do not run again.
        self.trunk = {
            name: outputs
            for name, outputs in record.trunk.items()
            if not any(parent in record.trunk for parent in _parents(name))
            and not name.startswith(f"{layer}.")
        }
        """Name of a module that does not run again → what each of its calls returns."""

    @property
    def opaque(self) -> bool:
        """Whether a stored output holds an object of an unknown type. Such an object, made for one
        image, cannot be repeated for several."""
        plain = Tensor | int | float | str | None
        return any(not isinstance(leaf, plain) for leaf in _pytree.tree_leaves(self.trunk))

    def output(self, activations: Tensor) -> Any:
        """Return the model's output that results from n outputs of the layer, (n, …)."""
        if len(activations) > 1 and (self.opaque or self._repetitions() is None):
            # A stored output that cannot be repeated (a detector's list of images) is replayed
            # for one activation at a time.
            return _joined([self.output(row[None]) for row in activations])
        try:
            return self._run(activations)
        except RuntimeError as error:
            if "single memory location" not in str(error) or self._copied:
                raise
        self._copied = True  # the model changes a stored output in place
        return self._run(activations)

    def _run(self, activations: Tensor) -> Any:
        count = len(activations)
        many = count if len(self._image) == 1 else 1  # the stored outputs may be of all images
        modules = dict(self._model.named_modules())
        known = self._repetitions() if many > 1 else {}
        with ExitStack() as scope:
            scope.enter_context(evaluating(self._model))
            scope.enter_context(returning(modules[self._layer], [activations.clone()]))
            for name, outputs in self.trunk.items():
                hows = (known or {}).get(name, outputs)
                repeat = partial(_repeated, count=many, copied=self._copied)
                scope.enter_context(
                    returning(modules[name], _pytree.tree_map(repeat, outputs, hows))
                )
            return self._model(Repetition().of(self._image, many, copied=self._copied))

    def _repetitions(self) -> dict[str, list[Any]] | None:
        """Return how the stored outputs become those of several images: name → for each call its
        output with a `Repetition` in place of each value. None if they cannot be repeated.

        Outputs with one row, for the one image, are repeated along their first axis. If there are
        others (windows or tokens may lie in the first axis), a pass of two images shows it.
        """
        if self._known is _UNKNOWN:
            leaves = _pytree.tree_leaves(self.trunk)
            plain = all(not isinstance(x, Tensor) or x.shape[:1] in ((), (1,)) for x in leaves)
            self._known = {} if plain or len(self._image) != 1 else self._compared()
        return self._known

    def _compared(self) -> dict[str, list[Any]] | None:
        pair = torch.cat([self._image, self._image.flip(-1) / 2 - 1])
        try:
            with (
                evaluating(self._model),
                torch.no_grad(),
                recorded(self._model, self._layer) as record,
            ):
                self._model(pair)
            return {
                name: _pytree.tree_map(_repetition, outputs, record.trunk[name])
                for name, outputs in self.trunk.items()
            }
        except Exception:  # the model may raise anything for two images, and it need not see two
            return None


_UNKNOWN: Any = object()


def _repeated(value: Any, how: Any, *, count: int, copied: bool) -> Any:
    how = how if isinstance(how, Repetition) else Repetition()
    return how.of(value, count, copied=copied)


def _repetition(one: Any, two: Any) -> Repetition:
    """Return how a value for one image became the value for this image and another.

    Raises:
        ValueError: if the values of the first image are not a part of the values for both.
    """
    if not isinstance(one, Tensor) or not one.ndim:
        return Repetition(None)
    if one.shape == two.shape and _alike(one, two):
        return Repetition(None)
    for axis, size in enumerate(one.shape):
        if two.shape == (*one.shape[:axis], 2 * size, *one.shape[axis + 1 :]):
            if _alike(one, two.narrow(axis, 0, size)):
                return Repetition(axis)
            first = torch.arange(0, 2 * size, 2, device=two.device)
            if _alike(one, two.index_select(axis, first)):
                return Repetition(axis, interleaved=True)
    raise ValueError


def _alike(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors hold the same numbers, up to the rounding of another batch."""
    if not one.is_floating_point():
        return torch.equal(one, other)
    tolerance = max(1e-4, 8 * torch.finfo(one.dtype).eps)
    scale = float(one.abs().max()) if one.numel() else 0.0
    return torch.allclose(one, other, rtol=tolerance, atol=tolerance * scale, equal_nan=True)


def _joined(outputs: list[Any]) -> Any:
    """Join outputs for one image each into one output for all images. An output is a tensor, a
    tuple or mapping of tensors, or a detector's list with a dictionary for each image."""
    if isinstance(outputs[0], list) and isinstance(outputs[0][0], dict):
        return [row for output in outputs for row in output]
    return _pytree.tree_map(
        lambda first, *others: torch.cat([first, *others]) if isinstance(first, Tensor) else first,
        *outputs,
    )


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def returning(module: nn.Module, outputs: list[Any]) -> ExitStack:
    """Let the first calls of the module return `outputs`, one after the other, until the returned
    scope is closed. Further calls run the module."""
    original, left = module.forward, list(outputs)

    def forward(*args: Any, **kwargs: Any) -> Any:
        return left.pop(0) if left else original(*args, **kwargs)

    scope = ExitStack()
    if "forward" in vars(module):
        scope.callback(setattr, module, "forward", original)
    else:
        scope.callback(delattr, module, "forward")
    module.forward = forward
    return scope


def _parents(name: str) -> Iterator[str]:
    """Yield the names of the modules that a module is in, innermost first: "a.b.c" → "a.b", "a"."""
    while "." in name:
        name = name.rpartition(".")[0]
        yield name
