"""The same answers faster: one layer's forward and backward pass compiled, in half precision where
the device has units for it.

Behind a pooled linear head there is no backward pass, so the forward pass is compiled as for
inference alone: its weights frozen into it, batch norms and rectifiers folded into convolutions.
Else the trunk runs without a graph, and a probe of zeros is added to the layer's output: the
gradient at the probe is the gradient at the layer, and nothing before it is differentiated.
Batches are filled up to the sizes that were compiled.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo import config as dynamo
from torch._inductor import config as inductor

from cam.errors import CamError, LayerNotSpatial, NoGradientPath
from cam.explanation import Answer, Question
from cam.grids import grids_of
from cam.head import PooledHead
from cam.onepass import answer
from cam.output import logits_of, outputs_of, size_of


class FastPath:
    """A model's own copy, compiled for explanations at one layer.

    Args:
        model: a classifier or segmenter, in eval mode; it is copied and left alone.
        layer: where maps are made; its output must be a tensor.
        dtype: of the copy's weights and activations; maps are computed in float32 all the same.
        sizes: of the batches to compile for.
        compile: whether to compile at all; without, the copy is only recast and laid out anew.
        head: the model's at that layer, if it has one: see `cam.head`.

    Raises:
        LayerNotSpatial: in the first pass, if the layer returns no tensor.
    """

    def __init__(
        self,
        model: nn.Module,
        layer: str,
        *,
        dtype: torch.dtype,
        sizes: Sequence[int],
        compile: bool = True,  # noqa: A002
        head: PooledHead | None = None,
    ) -> None:
        self.layer, self.dtype = layer, dtype
        self.sizes = tuple(sorted(set(sizes)))
        self._head = head
        probed = _Probed(copy.deepcopy(model).eval().requires_grad_(False), layer)
        probed.to(dtype=dtype, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._run: Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor]] = probed
        self._plain = probed
        self._compiled: set[int] = set()
        if compile:
            self._run = torch.compile(probed, dynamic=False)
        self._shape: torch.Size | None = None

    def takes(self, question: Question) -> bool:
        """Whether it can answer the question."""
        return (
            bool(question.targets)
            and not question.in_steps
            and set(question.layers) == {self.layer}
            and not question.looks_at
        )

    def explain(self, images: Tensor, questions: Sequence[Question]) -> list[Answer | CamError]:
        """Answer a question for each image, as `explain_batch` does.

        Args:
            images: float (B, C, H, W), B at most the largest size; on the model's device.
            questions: such as it `takes`.
        """
        count = len(images)
        size = next(each for each in self.sizes if each >= count)
        filled = images.to(self.dtype)
        if size > count:
            rest = filled.new_zeros(size - count, *images.shape[1:])
            filled = torch.cat([filled, rest])
        filled = filled.contiguous(memory_format=torch.channels_last)
        with torch.inference_mode(False), self._compiling(size):
            # Inference tensors may not enter a graph.
            filled = filled.clone() if filled.is_inference() else filled
            if self._head:
                with torch.no_grad():
                    logits, activation = self._run(filled, None)
                return self._by_head(self._head, logits[:count], activation[:count], questions)
            with torch.enable_grad():
                probe = self._probe(filled)
                logits, activation = self._run(filled, probe)
                signals = _AtProbe(self.layer, probe, activation.detach())
                grids = grids_of(signals.activations, filled)
                outputs = outputs_of(logits, size=size_of(images))[:count]
                return answer(questions, outputs, signals, grids)

    def _by_head(
        self, head: PooledHead, logits: Tensor, activation: Tensor, questions: Sequence[Question]
    ) -> list[Answer | CamError]:
        signals = head.signals(activation, logits)
        with torch.enable_grad():
            return answer(questions, outputs_of(signals.logits), signals, signals.grids)

    @contextmanager
    def _compiling(self, size: int) -> Iterator[None]:
        """The compiler's settings, for the first pass of a batch size."""
        with ExitStack() as scope:
            if size not in self._compiled:
                # One graph for each size, be they many; the compiler's default is 8.
                limit = dynamo.recompile_limit + len(self.sizes)
                scope.enter_context(dynamo.patch(recompile_limit=limit))
                if self._head:
                    scope.enter_context(inductor.patch(freezing=True))
            yield
        self._compiled.add(size)

    def _probe(self, images: Tensor) -> Tensor:
        if self._shape is None:
            with torch.no_grad():
                _, activation = self._plain(images[:1], images.new_zeros(()))
            self._shape = activation.shape[1:]
        zeros = images.new_zeros(len(images), *self._shape)
        if zeros.ndim == 4:
            zeros = zeros.contiguous(memory_format=torch.channels_last)
        return zeros.requires_grad_()


class _Probed(nn.Module):
    """A model that adds a probe to a layer's output, if it gets one, and returns that beside its
    logits."""

    def __init__(self, model: nn.Module, layer: str) -> None:
        super().__init__()
        self.model = model
        self._kept: list[Tensor | None] = []
        self.model.get_submodule(layer).register_forward_hook(self._take)

    def forward(self, images: Tensor, probe: Tensor | None) -> tuple[Tensor, Tensor]:
        self._kept = [probe]
        logits = logits_of(self.model(images))
        activation = self._kept.pop()
        assert activation is not None
        self._kept = []
        return logits, activation

    def _take(self, module: nn.Module, args: Any, output: Any) -> Tensor:
        if not isinstance(output, Tensor):
            raise LayerNotSpatial(f"the layer returns a {type(output).__name__}, not a tensor")
        # The activation that is kept is not the one that an in-place operation may change.
        probe = self._kept.pop()
        probed = output if probe is None else output + probe
        self._kept.append(probed.clone())
        return probed


class _AtProbe:
    """What `answer` needs of a pass: see `cam.onepass.Signals`."""

    def __init__(self, layer: str, probe: Tensor, activation: Tensor) -> None:
        self._layer, self._probe, self._activation = layer, probe, activation
        self._gradient: Tensor | None = None

    @property
    def activations(self) -> dict[str, Tensor]:
        return {self._layer: self._activation}

    @property
    def gradients(self) -> dict[str, Tensor]:
        if self._gradient is None:
            raise NoGradientPath(f"the target does not depend on layer {self._layer!r}")
        return {self._layer: self._gradient}

    def backward(self, score: Tensor, *, retain_graph: bool = False) -> None:
        (self._gradient,) = torch.autograd.grad(
            score, self._probe, retain_graph=retain_graph, allow_unused=True
        )
