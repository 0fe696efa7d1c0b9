"""Run the modules of a model that follow a layer, on outputs of the layer computed elsewhere.

    tail = Tail(model, "blocks.11.norm1", image, logits_of)      # once
    raw = tail.output(images, {"blocks.11.norm1": a, "blocks.10": b})

Some models read other outputs after the layer, too: in a transformer the block's residual. Which
ones is found by trying: the outputs of all earlier modules are replaced by NaN, and an output that
the logits depend on makes them NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree

from cam.errors import LayerNotSpatial
from cam.hooks.inference import evaluating
from cam.hooks.replay import Record, Replay, recorded, returning


class Tail:
    """The modules of `model` that run after `layer`.

    Args:
        image: float (1, C, H, W), preprocessed, on the model's device and in its dtype.
        logits: returns the tensor that is read from the model's output.

    Raises:
        UnknownLayer, LayerDidNotRun, LayerReused: see `Replay`.
        LayerNotSpatial: if the layer, or another module whose output is read after it, returns
            something else than one tensor in one call.
    """

    def __init__(
        self, model: nn.Module, layer: str, image: Tensor, logits: Callable[[Any], Tensor]
    ) -> None:
        self._model, self._layer, self._image = model, layer, image
        with torch.inference_mode(False), torch.no_grad():
            with evaluating(model), recorded(model, layer) as record:
                model(image.clone())
            replay = Replay(model, layer, image, record)
            if replay.opaque:
                raise LayerNotSpatial(f"a module before layer {layer!r} returns no tensors")
            known = replay.trunk
            self._unknown = {name: [_unknown(output) for output in known[name]] for name in known}

            def misses(unknown: Sequence[str]) -> bool:
                trunk = {**known, **{name: self._unknown[name] for name in unknown}}
                raw = self._run(image, record.output, trunk)
                return bool(logits(raw).isnan().any())

            self.inputs = _needed(list(known), misses)
            """Names of the earlier modules whose outputs are read after the layer."""
        for name in self.inputs:
            if len(known[name]) != 1 or not isinstance(known[name][0], Tensor):
                raise LayerNotSpatial(
                    f"what follows layer {layer!r} reads the output of {name!r} as well, which is "
                    "not one tensor"
                )

    def output(self, images: Tensor, computed: Mapping[str, Tensor]) -> Any:
        """Return the model's output for a batch.

        Args:
            images: float (B, C, H, W), as the model takes them.
            computed: the outputs (B, …) of the layer and of the modules in `inputs`. A gradient can
                be taken at the layer's.
        """
        given = {name: [computed[name]] for name in self.inputs}
        return self._run(images, computed[self._layer], {**self._unknown, **given})

    def traced(self, activations: Tensor, computed: Mapping[str, Tensor]) -> Any:
        """Return the model's output for a batch whose size is not known, within a program that
        `torch.export` records.

        Args:
            activations: outputs (n, …) of the layer.
            computed: the outputs (n, …) of the modules in `inputs`.
        """
        modules = dict(self._model.named_modules())
        with ExitStack() as scope:
            scope.enter_context(returning(modules[self._layer], [activations]))
            for name, unknown in self._unknown.items():
                outputs = [computed[name]] if name in self.inputs else unknown
                scope.enter_context(returning(modules[name], outputs))
            return self._model(self._image)

    def _run(self, images: Tensor, activation: Tensor, trunk: dict[str, list[Any]]) -> Any:
        record = Record()
        record.runs, record.output, record.trunk = 1, activation, trunk
        return Replay(self._model, self._layer, images, record).output(activation)


def _needed(names: Sequence[str], misses: Callable[[Sequence[str]], bool]) -> tuple[str, ...]:
    """Return the modules whose outputs the logits depend on, in their order.

    Args:
        misses: returns whether the logits depend on the output of a module in a part of `names`.
    """
    needed = []
    while misses(names):
        low, high = 0, len(names)  # the logits depend on one of names[:high], none of names[:low]
        while high - low > 1:
            middle = (low + high) // 2
            if misses(names[:middle]):
                high = middle
            else:
                low = middle
        needed.append(names[low])
        names = names[high:]
    return tuple(needed)


def _unknown(value: Any) -> Any:
    """Return a module's output with NaN in place of its floating-point numbers."""

    def without(leaf: Any) -> Any:
        if isinstance(leaf, Tensor) and leaf.is_floating_point():
            return torch.full_like(leaf, torch.nan)
        return leaf

    return _pytree.tree_map(without, value)
