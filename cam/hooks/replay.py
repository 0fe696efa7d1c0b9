"""Run a model from one of its layers on, many times, without the modules before that layer.

    replay = Replay(model, "layer4", image)          # one forward pass of one image
    logits = replay.output(changed)                  # (n, classes), for n changed activations

While `output` runs, every module that finished before the layer ran returns its stored output for
`image`, and the layer itself returns the changed activations. Only the modules after the layer are
computed. Between the calls the model is in its original state, and other code may use it.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree

from cam.errors import LayerDidNotRun, LayerNotSpatial, LayerReused, UnknownLayer
from cam.hooks.inference import evaluating


class Replay:
    """The stored outputs of a model for one image, up to `layer`.

    Args:
        image: float (1, C, H, W), preprocessed, on the model's device and in its dtype.

    Raises:
        UnknownLayer: if the model has no such layer.
        LayerDidNotRun: if the layer takes no part in the forward pass.
        LayerReused: if the layer runs more than once in the forward pass.
        LayerNotSpatial: if the layer does not return a tensor.
    """

    def __init__(self, model: nn.Module, layer: str, image: Tensor) -> None:
        modules = dict(model.named_modules())
        if not layer or layer not in modules:
            raise UnknownLayer(f"the model has no layer {layer!r}")
        self._model, self._layer, self._image = model, layer, image
        self._trunk: dict[str, list[Any]] = {}
        self._copied = False
        runs = 0
        found: Any = None

        def note(name: str, module: nn.Module, args: Any, output: Any) -> None:
            nonlocal runs, found
            if name == layer:
                runs += 1
                found = _cloned(output)
            elif not runs and not layer.startswith(f"{name}."):
                # Modules that run later may change the output in place.
                kept = _pytree.tree_map(_cloned, output)
                self._trunk.setdefault(name, []).append(kept)

        with ExitStack() as scope:
            scope.enter_context(evaluating(model))
            scope.enter_context(torch.no_grad())
            for name, module in modules.items():
                if name and not isinstance(module, torch.jit.ScriptModule):
                    scope.callback(module.register_forward_hook(partial(note, name)).remove)
            model(image.clone())  # the model may change its input in place
        if runs != 1:
            why = "did not run" if not runs else "runs more than once"
            raise (LayerReused if runs else LayerDidNotRun)(f"layer {layer!r} {why} in this pass")
        if not isinstance(found, Tensor):
            kind = type(found).__name__
            raise LayerNotSpatial(f"layer {layer!r} returns a {kind}, not a tensor")
        self.activation = found
        # The outputs of modules inside a stored module are not needed.
        self._trunk = {
            name: outputs
            for name, outputs in self._trunk.items()
            if not any(name.startswith(f"{other}.") for other in self._trunk)
            and not name.startswith(f"{layer}.")
        }

    @property
    def _opaque(self) -> bool:
        """Whether a stored output holds an object of an unknown type. Such an object, made for one
        image, cannot be repeated for several."""
        plain = Tensor | int | float | str | None
        return any(not isinstance(leaf, plain) for leaf in _pytree.tree_leaves(self._trunk))

    def output(self, activations: Tensor) -> Any:
        """Return the model's output that results from n outputs of the layer, (n, …)."""
        if self._opaque and len(activations) > 1:
            # A stored output that cannot be repeated (a detector's list of images) is replayed
            # for one activation at a time.
            return _joined([self.output(each[None]) for each in activations])
        try:
            return self._run(activations)
        except RuntimeError as error:
            if "single memory location" not in str(error) or self._copied:
                raise
        self._copied = True  # the model changes a stored output in place
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
    """Repeat the tensor of one image for `count` images. With `copied=False` the result may share
    memory among the images and then cannot be written to. Other values are returned unchanged."""
    if isinstance(value, Tensor) and value.ndim and len(value) == 1:
        if copied or count == 1:
            return value.repeat(count, *[1] * (value.ndim - 1))
        return value.expand(count, *value.shape[1:])
    return value


def _joined(outputs: list[Any]) -> Any:
    """Join outputs for one image each into one output for all images. An output is a tensor, a
    tuple or mapping of tensors, or a detector's list with a dictionary for each image."""
    if isinstance(outputs[0], list) and isinstance(outputs[0][0], dict):
        return [row for each in outputs for row in each]
    return _pytree.tree_map(
        lambda first, *others: torch.cat([first, *others]) if isinstance(first, Tensor) else first,
        *outputs,
    )


def _cloned(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def _returning(module: nn.Module, outputs: list[Any]) -> ExitStack:
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
