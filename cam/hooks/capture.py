"""Activations of named layers and their gradients, from one forward pass of a shared model.

    with Capture(model, ["layer3", "layer4"]) as capture:
        logits = model(images)
        capture.backward(logits[:, 285].sum())
        capture.activations["layer4"], capture.gradients["layer4"]

A *forward hook* on each layer takes its output; a *tensor gradient hook* on that output takes the
gradient. Until the first of the layers has run, gradients are off: the graph starts there, so the
trunk costs what inference costs and no parameter ever sees a gradient.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from cam.errors import (
    LayerDidNotRun,
    LayerNotSpatial,
    LayerReused,
    NoGradientPath,
    ScriptedModel,
    UnknownLayer,
)
from cam.hooks.change import Change, Edit
from cam.hooks.nested import first_tensor, replaced

Trunk = Literal["inference", "train"]


class Capture:
    """Hooks on `layers` of `model` for the length of a `with` block and one forward pass in it.

    A layer may return a tensor, or a tuple, list or mapping: then the first floating-point tensor
    in it is captured. On exit every hook is gone and the caller's grad mode is back, also after
    an exception. The model's parameters, their `.grad` and its train/eval mode are never touched.

    To train with hooks on the way, say `trunk="train"`: then everything has a graph, and
    `loss.backward()` within the block gives every parameter its gradient, through the changes.

        with Capture(model, ["layer4"], change={"layer4": clamped}, trunk="train"):
            criterion(model(images), labels).backward()
    Hooks on a module see every thread's forward: one thread at a time may capture from one model,
    which `cam.hooks.inference.alone` sees to.

    Args:
        layers: names as `model.named_modules()` gives them; `cam.leaves(model)` for all that hold
            no other.
        inputs: whether to keep what goes into them, too.
        change: what to do to inputs, outputs and gradients on their way; its layers are captured
            like the others, as changed.
        each_call: whether a layer may run more than once; its second output is then named
            "layer#2", and so on.
        trunk: how the layers before the captured ones run: for "inference" without a graph; for
            "train" with one, as they do without a `Capture`.

    Raises:
        UnknownLayer: on enter, before any hook is set, if a name is not a module of the model.
        ScriptedModel: on enter, if a layer is TorchScript.
        LayerReused: in the forward pass, if a layer runs a second time and `each_call` is not set.
        NoGradientPath: in a tensor's own `backward()`, if trunk is "inference" and parameters that
            are to be trained get no gradient by it.
    """

    def __init__(
        self,
        model: nn.Module,
        layers: Iterable[str],
        *,
        inputs: bool = False,
        change: Mapping[str, Change] | None = None,
        each_call: bool = False,
        trunk: Trunk = "inference",
    ) -> None:
        self._model = model
        self._keep_inputs = inputs
        self._change = dict(change or {})
        self._each_call = each_call
        self._trunk = trunk
        self._layers = tuple(dict.fromkeys([*layers, *self._change]))
        self._calls: Counter[str] = Counter()
        self._inputs: dict[str, Tensor] = {}
        self._captured: dict[str, Tensor] = {}
        self._gradients: dict[str, Tensor] = {}
        self.unrecorded: set[str] = set()
        """The layers that the model runs in torch.inference_mode."""
        self._scope = ExitStack()

    def __enter__(self) -> Capture:
        modules = dict(self._model.named_modules())
        for layer in self._layers:
            if not layer or layer not in modules:
                raise UnknownLayer(f"the model has no layer {layer!r}")
            if isinstance(modules[layer], torch.jit.ScriptModule):
                raise ScriptedModel(f"layer {layer!r} is TorchScript, which runs no hooks")
        with ExitStack() as scope:
            # Inference tensors may not be saved for a backward pass, not even after a clone.
            scope.enter_context(torch.inference_mode(False))
            scope.enter_context(torch.set_grad_enabled(self._trunk == "train"))
            for layer in self._layers:
                change = self._change.get(layer, Change())
                if change.input:
                    before = partial(_change_input, change.input)
                    scope.callback(modules[layer].register_forward_pre_hook(before).remove)
                hook = partial(self._take_output, layer, change)
                scope.callback(modules[layer].register_forward_hook(hook).remove)
            self._scope = scope.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._scope.close()

    @property
    def activations(self) -> dict[str, Tensor]:
        """Layer name → its output, detached, as the layer returned it (a later in-place op leaves
        it alone), in the model's own dtype."""
        return {name: output.detach() for name, output in self.outputs.items()}

    @property
    def outputs(self) -> dict[str, Tensor]:
        """The activations with their graph, to differentiate further."""
        for layer in self._layers:
            if not self._calls[layer]:
                raise LayerDidNotRun(f"layer {layer!r} did not run in this forward pass")
        if self._each_call:
            return dict(self._captured)
        return {layer: self._captured[layer] for layer in self._layers}

    @property
    def interrupted(self) -> bool:
        """Whether a layer ran inside a block of the model that sets the grad mode (torch.no_grad,
        torch.set_grad_enabled), which put back the mode that was there before the layer: off."""
        return bool(self._calls) and not torch.is_grad_enabled()

    @property
    def inputs(self) -> dict[str, Tensor]:
        """Layer name → the first floating-point tensor that went in, detached; of a layer that got
        none, nothing. Only with `inputs=True`."""
        return dict(self._inputs)

    @property
    def reached(self) -> dict[str, Tensor]:
        """The `gradients` of those layers that the last `backward` reached."""
        return dict(self._gradients)

    @property
    def gradients(self) -> dict[str, Tensor]:
        """Layer name → ∂score/∂activation of the last `backward`, shaped like the activation."""
        for name in self._captured or self._layers:
            if name not in self._gradients:
                raise no_path([name], self.unrecorded)
        return dict(self._gradients)

    def backward(
        self, score: Tensor, *, retain_graph: bool = False, create_graph: bool = False
    ) -> None:
        """Differentiate `score` (a scalar tensor) back to the captured layers and no further.

        Replaces the `gradients` of an earlier call; that call must have had `retain_graph=True`.
        With `create_graph` they can be differentiated again. Writes no parameter's `.grad`.

        Raises:
            LayerDidNotRun: if a layer took no part in the forward pass.
            NoGradientPath: if the score depends on none of the layers; a layer on which it does
                not depend while it does on another is reported by `gradients`.
        """
        outputs = list(self.outputs.values())
        self._gradients.clear()
        if not score.requires_grad:
            raise no_path(self._layers, self.unrecorded)
        torch.autograd.grad(
            score,
            outputs,
            retain_graph=retain_graph or create_graph,
            create_graph=create_graph,
            allow_unused=True,
        )

    def _take_output(
        self, layer: str, change: Change, module: nn.Module, args: Any, output: Any
    ) -> Any:
        self._calls[layer] += 1
        name = layer
        if self._calls[layer] > 1:
            if not self._each_call:
                parent = layer.rpartition(".")[0]
                advice = f"; name the block around it, {parent!r}" if parent else ""
                raise LayerReused(f"layer {layer!r} runs more than once in a forward pass{advice}")
            name = f"{layer}#{self._calls[layer]}"
        where, tensor = first_tensor(output)
        if tensor is None:
            kind = type(output).__name__
            raise LayerNotSpatial(f"layer {layer!r} returns no floating-point tensor but {kind}")
        if self._keep_inputs:
            _, given = first_tensor(args)
            if given is not None:
                self._inputs[name] = given.detach().clone()
        torch.set_grad_enabled(True)
        if torch.is_inference_mode_enabled():  # the model's own
            self.unrecorded.add(name)
        if change.output:
            tensor = change.output(tensor)
        # The first clone is ours even if the layer returned its input, which others may still
        # change in place; the second is the model's, to change in place as it likes (autograd
        # forbids that on a leaf). A layer below another captured one stays in its graph.
        captured = (tensor if tensor.requires_grad else tensor.detach()).clone()
        if not captured.requires_grad:
            captured.requires_grad_()
            self._watch_for_losses(captured, layer)
        for hook in (change.gradient, partial(self._gradients.__setitem__, name)):
            if hook:
                handle = captured.register_hook(hook)  # type: ignore[no-untyped-call]
                self._scope.callback(handle.remove)
        self._captured[name] = captured
        return replaced(output, where, captured.clone())

    def _watch_for_losses(self, captured: Tensor, layer: str) -> None:
        """Raise where a tensor's own `backward()` comes to the captured one, which it does last,
        and parameters that are to be trained have got no gradient."""
        if self._trunk == "train":
            return
        before = {
            name: (parameter.grad, None if parameter.grad is None else parameter.grad._version)
            for name, parameter in self._model.named_parameters()
            if parameter.requires_grad
        }
        if not before:
            return

        def tell(leaf: Tensor) -> None:
            leaf.grad = None
            now = dict(self._model.named_parameters())
            lost = [
                name
                for name, (grad, version) in before.items()
                if now[name].grad is grad and (grad is None or grad._version == version)
            ]
            if lost:
                more = f" and {len(lost) - 1} others" if len(lost) > 1 else ""
                raise NoGradientPath(
                    f"backward() gives no gradient to {lost[0]}{more}: what runs before layer "
                    f"{layer!r} has no graph; pass trunk='train' to train the model, or "
                    "differentiate with capture.backward(score)"
                )

        self._scope.callback(captured.register_post_accumulate_grad_hook(tell).remove)  # type: ignore[no-untyped-call]


def no_path(layers: Iterable[str], unrecorded: Collection[str] = ()) -> NoGradientPath:
    """Why no gradient came to these layers, as far as it shows."""
    for layer in layers:
        if layer in unrecorded:
            return NoGradientPath(
                f"no gradient reaches layer {layer!r}: the model runs it in torch.inference_mode, "
                "which records none"
            )
    names = ", ".join(map(repr, layers))
    return NoGradientPath(
        f"the target does not depend on layer {names}, or the model cuts off the gradient between "
        "them (by detach or an operation without a derivative)"
    )


def _change_input(edit: Edit, module: nn.Module, args: tuple[Any, ...]) -> Any:
    where, tensor = first_tensor(args)
    return args if tensor is None else replaced(args, where, edit(tensor))
