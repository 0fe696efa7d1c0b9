"""Running a model from one of its layers on, again and again, without what lies before it.

    with recorded(model, "layer4") as record:
        model(image)                                  # one forward pass of one image
    replay = Replay(model, "layer4", image, record)
    logits = replay.output(changed)                   # (n, classes), of n changed activations

While `output` runs, every module that had finished before the layer did returns what it returned
for `image`, and the layer itself returns the changed activations; only what comes after is
computed. Between the calls the model is as it was found, and others may use it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree

from cam.errors import LayerDidNotRun, LayerNotSpatial, LayerReused, UnknownLayer
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
        raise UnknownLayer(f"the model has no layer {layer!r}")
    record = Record()

    def note(name: str, module: nn.Module, args: Any, output: Any) -> None:
        if name == layer:
            record.runs += 1
            record.output = _copied(output)
        elif not record.runs and not layer.startswith(f"{name}."):
            # A module that follows may change the output in place.
            kept = _pytree.tree_map(_copied, output)
            record.trunk.setdefault(name, []).append(kept)

    with ExitStack() as scope:
        for name, module in modules.items():
            if name and not isinstance(module, torch.jit.ScriptModule):
                scope.callback(module.register_forward_hook(partial(note, name)).remove)
        yield record


class Replay:
    """One image's way through a model up to `layer`, kept.

    Args:
        image: float (1, C, H, W), preprocessed, on the model's device and in its dtype.
        record: of a forward pass of this image, from `recorded`; without one, `Replay` makes a
            pass of its own.

    Raises:
        UnknownLayer, LayerDidNotRun, LayerReused
        LayerNotSpatial: if the layer returns no tensor.
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
        self._model, self._layer, self._image = model, layer, image
        self._copied = False
        self.activation = record.output
        # The modules inside a kept module do not run again.
        self._trunk = {
            name: outputs
            for name, outputs in record.trunk.items()
            if not any(name.startswith(f"{other}.") for other in record.trunk)
            and not name.startswith(f"{layer}.")
        }

    @property
    def _opaque(self) -> bool:
        """Whether something was kept of which only its owner knows how many images it holds."""
        plain = Tensor | int | float | str | None
        return any(not isinstance(leaf, plain) for leaf in _pytree.tree_leaves(self._trunk))

    def output(self, activations: Tensor) -> Any:
        """The model's output for n images that follows from these outputs of the layer, (n, …)."""
        if self._opaque and len(activations) > 1:
            # What cannot be repeated (a detector's list of images) is replayed one by one.
            return _joined([self.output(each[None]) for each in activations])
        try:
            return self._run(activations)
        except RuntimeError as error:
            if "single memory location" not in str(error) or self._copied:
                raise
        self._copied = True  # the model changes in place what was kept of its trunk
        return self._run(activations)

    def _run(self, activations: Tensor) -> Any:
        count = len(activations)
        modules = dict(self._model.named_modules())
        with ExitStack() as scope:
            scope.enter_context(evaluating(self._model))
            scope.enter_context(_returning(modules[self._layer], [activations.clone()]))
            for name, outputs in self._trunk.items():
                repeat = partial(_repeat, count, copied=self._copied)
                repeated = [_pytree.tree_map(repeat, each) for each in outputs]
                scope.enter_context(_returning(modules[name], repeated))
            return self._model(_repeat(count, self._image, copied=self._copied))


def _repeat(count: int, value: Any, *, copied: bool) -> Any:
    """One image's tensor for `count` images; where it is not copied it cannot be written to."""
    if isinstance(value, Tensor) and value.ndim and len(value) == 1:
        if copied or count == 1:
            return value.repeat(count, *[1] * (value.ndim - 1))
        return value.expand(count, *value.shape[1:])
    return value


def _joined(outputs: list[Any]) -> Any:
    """The outputs for one image each as one for all: tensors, or tuples and mappings of tensors,
    one after the other, or a detector's lists of a dictionary for each image."""
    if isinstance(outputs[0], list) and isinstance(outputs[0][0], dict):
        return [row for each in outputs for row in each]
    return _pytree.tree_map(
        lambda first, *others: torch.cat([first, *others]) if isinstance(first, Tensor) else first,
        *outputs,
    )


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def _returning(module: nn.Module, outputs: list[Any]) -> ExitStack:
    """While it is open, the module's first calls return `outputs`; later ones are its own."""
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
