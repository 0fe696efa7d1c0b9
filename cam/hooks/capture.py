"""Capture the activations of named layers and their gradients in one forward pass of a model.

    with Capture(model, ["layer3", "layer4"]) as capture:
        logits = model(images)
        capture.backward(logits[:, 285].sum())
        capture.activations["layer4"], capture.gradients["layer4"]

A *forward hook* on each layer takes its output; a *tensor gradient hook* on that output takes the
gradient. Gradients are off until the first of the layers has run, so the graph starts there: the
layers before it cost as much as in inference, and no parameter receives a gradient.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from cam.errors import (
    InvalidOption,
    LayerDidNotRun,
    LayerNotSpatial,
    LayerReused,
    NoGradientPath,
    ScriptedModel,
    unknown_layer,
)
from cam.hooks.calls import Modules, call_of, name_of
from cam.hooks.change import Change, Edit
from cam.hooks.nested import first_tensor, replaced

Trunk = Literal["inference", "train"]


class Capture:
    """Set hooks on `layers` of `model` for a `with` block that contains one forward pass.

    A layer may return a tensor, or a tuple, list or mapping: then the first floating-point tensor
    in it is captured. On exit every hook is removed and the caller's grad mode is restored, also
    after an exception. `Capture` never changes the model's parameters, their `.grad` or its
    train/eval mode.

    To train while hooks are set, pass `trunk="train"`. Then every layer has a graph, and
    `loss.backward()` within the block gives every parameter its gradient, through the changes.

        with Capture(model, ["layer4"], change={"layer4": clamped}, trunk="train"):
            criterion(model(images), labels).backward()

    Hooks on a module see the forward passes of all threads. Only one thread at a time may capture
    from a model; `cam.hooks.inference.alone` ensures this.

    Args:
        layers: names as in `model.named_modules()`, or the modules themselves; or one of these.
            `cam.leaves(model)` returns the names of all modules without submodules. "layer#2" is
            the second call of a module that runs several times in a forward pass.
        inputs: whether to keep the inputs of the layers, too.
        change: layer name → the changes to its input, output and gradient. These layers are
            captured like the others, as changed.
        each_call: whether a layer may run more than once. Its second output is then named
            "layer#2", and so on.
        trunk: how the layers before the captured layers run: without a graph ("inference"), or
            with one ("train"), as they do without a `Capture`.

    Raises:
        UnknownLayer: on enter, before any hook is set, if a layer is not a module of the model.
        InvalidOption: in the forward or backward pass, if a change returns another shape.
        ScriptedModel: on enter, if a layer is TorchScript.
        LayerReused: in the forward pass, if a layer runs a second time and `each_call` is not set.
        LayerNotSpatial: in the forward pass, if a layer returns no floating-point tensor.
        NoGradientPath: in a tensor's own `backward()`, if `trunk` is "inference" and a parameter
            that requires a gradient gets none.
    """

    def __init__(
        self,
        model: nn.Module,
        layers: Iterable[str | nn.Module] | str | nn.Module,
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
        # A Sequential is a module and a sequence of modules: it is one layer.
        several = [layers] if isinstance(layers, str | nn.Module) else layers
        self._asked = (*several, *self._change)
        self._layers: tuple[str, ...] = ()
        self._calls: Counter[str] = Counter()
        self._inputs: dict[str, Tensor] = {}
        self._captured: dict[str, Tensor] = {}
        self._gradients: dict[str, Tensor] = {}
        self._differentiated = False
        self.unrecorded: set[str] = set()
        """Names of the layers that the model runs in torch.inference_mode."""
        self._scope = ExitStack()

    def __enter__(self) -> Capture:
        modules, every = Modules(self._model), dict(self._model.named_modules())
        names = (
            name_of(each, self._model) if isinstance(each, nn.Module) else each
            for each in self._asked
        )
        self._layers = tuple(dict.fromkeys(names))
        for layer in self._layers:
            if layer in modules:
                continue
            if layer and (layer in every or call_of(layer)[0] in every):
                raise ScriptedModel(f"layer {layer!r} is TorchScript, which runs no hooks")
            raise unknown_layer(layer, every)
        with ExitStack() as scope:
            # Autograd cannot save inference tensors for a backward pass. A clone that is made in
            # inference mode is an inference tensor as well.
            scope.enter_context(torch.inference_mode(False))
            scope.enter_context(torch.set_grad_enabled(self._trunk == "train"))
            for layer in self._layers:
                change = self._change.get(layer, Change())
                if change.input:
                    before = partial(_change_input, change.input, layer)
                    scope.callback(modules[layer].register_forward_pre_hook(before).remove)
                hook = partial(self._take_output, layer, change)
                scope.callback(modules[layer].register_forward_hook(hook).remove)
            self._scope = scope.pop_all()
        return self

    def __exit__(self, *raised: object) -> None:
        self._scope.close()

    @property
    def activations(self) -> dict[str, Tensor]:
        """Layer name → its output, detached, in the model's own dtype, as the layer returned it.
        A later in-place operation of the model does not change it."""
        return {name: output.detach() for name, output in self.outputs.items()}

    @property
    def outputs(self) -> dict[str, Tensor]:
        """The activations with their graph, for further differentiation.

        Raises:
            LayerDidNotRun: if a layer took no part in the forward pass.
        """
        for layer in self._layers:
            if not self._calls[layer]:
                raise LayerDidNotRun(f"layer {layer!r} did not run in this forward pass")
        if self._each_call:
            return dict(self._captured)
        return {layer: self._captured[layer] for layer in self._layers}

    @property
    def interrupted(self) -> bool:
        """Whether the model itself has switched gradients off again after a captured layer. This
        happens if the layer runs inside a block of the model that sets the grad mode
        (torch.no_grad, torch.set_grad_enabled): on exit, the block restores the mode from before
        the layer, which is off."""
        return bool(self._calls) and not torch.is_grad_enabled()

    @property
    def inputs(self) -> dict[str, Tensor]:
        """Layer name → the first floating-point tensor among its inputs, detached. A layer without
        such an input has no entry. Empty unless `inputs=True`."""
        return dict(self._inputs)

    @property
    def reached(self) -> dict[str, Tensor]:
        """The `gradients` of the layers that the last `backward` reached. Other layers have no
        entry."""
        return dict(self._gradients)

    @property
    def gradients(self) -> dict[str, Tensor]:
        """Layer name → ∂score/∂activation of the last `backward`, shaped like the activation.

        Raises:
            NoGradientPath: if a layer has no gradient.
        """
        if not self._gradients and not self._differentiated:
            raise NoGradientPath(
                "no gradient has come back yet: call capture.backward(score) before the gradients "
                "are read"
            )
        for name in self._captured or self._layers:
            if name not in self._gradients:
                raise no_path([name], self.unrecorded)
        return dict(self._gradients)

    def backward(
        self, score: Tensor, *, retain_graph: bool = False, create_graph: bool = False
    ) -> None:
        """Differentiate `score` (a scalar tensor) back to the captured layers and no further.

        The call replaces the `gradients` of an earlier call, which must have been made with
        `retain_graph=True`. With `create_graph` the gradients can be differentiated again. No
        parameter's `.grad` is written.

        Raises:
            LayerDidNotRun: if a layer took no part in the forward pass.
            NoGradientPath: if the score has no graph. If the score has a graph but does not depend
                on a layer, `gradients` raises the error.
        """
        outputs = list(self.outputs.values())
        self._gradients.clear()
        self._differentiated = True
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
                block = f"the block around it, {parent!r}, or " if parent else ""
                raise LayerReused(
                    f"layer {layer!r} runs more than once in a forward pass; name {block}one call "
                    f"of it, such as '{layer}#1'"
                )
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
            tensor = _changed(change.output, tensor, f"the output of layer {layer!r}")
        # The first clone is kept here: the layer may have returned its input, which other code
        # may still change in place. The second clone goes on into the model, which may change it
        # in place (autograd forbids this on a leaf). A tensor that already has a graph, from an
        # earlier captured layer, stays in that graph.
        captured = (tensor if tensor.requires_grad else tensor.detach()).clone()
        if not captured.requires_grad:
            captured.requires_grad_()
            self._watch_for_losses(captured, layer)
        edit = change.gradient and partial(
            _changed, change.gradient, what=f"the gradient at layer {layer!r}"
        )
        for hook in (edit, partial(self._gradients.__setitem__, name)):
            if hook:
                handle = captured.register_hook(partial(_if_any, hook))  # type: ignore[no-untyped-call]
                self._scope.callback(handle.remove)
        self._captured[name] = captured
        return replaced(output, where, captured.clone())

    def _watch_for_losses(self, captured: Tensor, layer: str) -> None:
        """Raise NoGradientPath when a tensor's own `backward()` reaches the captured tensor, which
        happens last, and a parameter that requires a gradient has received none."""
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


def gradient_stop(model: nn.Module) -> str | None:
    """Return the reason why no gradient passes through a part of the model, as half a sentence;
    None if nothing is known of such a part. A module that is run by other means than PyTorch states
    it as its attribute `no_gradient`."""
    reasons = (getattr(module, "no_gradient", None) for module in model.modules())
    return next(filter(None, reasons), None)


def no_path(layers: Iterable[str], unrecorded: Collection[str] = ()) -> NoGradientPath:
    """Return the error that says why no gradient reached these layers, as far as is known."""
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


def _if_any(hook: Callable[[Tensor], Any], gradient: Tensor | None) -> Any:
    """Call a hook with a gradient. An operation without a derivative passes None."""
    return None if gradient is None else hook(gradient)


def _change_input(edit: Edit, layer: str, module: nn.Module, args: tuple[Any, ...]) -> Any:
    where, tensor = first_tensor(args)
    if tensor is None:
        return args
    return replaced(args, where, _changed(edit, tensor, f"the input of layer {layer!r}"))


def _changed(edit: Edit, tensor: Tensor, what: str) -> Tensor:
    """Return a tensor as changed by an edit.

    Raises:
        InvalidOption: if the edit returns another shape, with which a model may run on, silently.
    """
    changed = edit(tensor)
    if changed.shape != tensor.shape:
        raise InvalidOption(
            f"the change makes {tuple(changed.shape)} of {what}, which is {tuple(tensor.shape)}; "
            "it should keep the shape"
        )
    return changed
