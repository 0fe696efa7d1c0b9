"""The fast path: compiled explanations at one layer, in half precision where the device has it.

Behind a pooled linear head there is no backward pass. The forward pass is then compiled for
inference: its weights are frozen, and batch norms and rectifiers are folded into convolutions. On a
CUDA device nothing is compiled: batch norms are folded, and the kernels are recorded as CUDA
graphs, which takes seconds and no compiler.
In other models the trunk runs without a graph, and a probe of zeros is added to the layer's output:
the gradient at the probe is the gradient at the layer, and nothing before it is differentiated.
Batches are padded to the sizes that were compiled. Where compiling fails or makes the copy slower,
the copy runs uncompiled, like any other model.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from cam.errors import LayerNotSpatial
from cam.explanation import Question
from cam.methods.head import PooledHead
from cam.outputs.reading import AUTO, Reading, logits_of
from cam.passes.batch_answer import BatchAnswer
from cam.passes.compiled_path import CompiledPath
from cam.passes.layout import fastest
from cam.passes.onepass import answer_by_head, begin_batch
from cam.positions.locate import inherit
from cam.runtimes.cuda_graphs import Graphed
from cam.runtimes.folding import fold
from cam.runtimes.shared import AtLeaf, answer_at_leaf, padded
from cam.targets import ClassTarget


class FastPath(CompiledPath):
    """A copy of a model in another precision, compiled for explanations at one layer.

    Args:
        model: a classifier or segmenter, in eval mode; it is copied and not changed.
        layer: the layer at which maps are made; its output must be a tensor.
        dtype: the dtype of the copy's weights and activations; maps are computed in float32 in any
            case.
        sizes: the batch sizes to compile for.
        compile: whether to compile the copy, or to record it as CUDA graphs where it is on a CUDA
            device. If False, the copy only changes its dtype and its memory layout.
        head: the model's pooled linear head at that layer, if it has one: see `cam.methods.head`.
        reading: how the model's output is read, with the activation resolved: the compiled model
            has no graph that shows the activation.

    Raises:
        LayerNotSpatial: in the first pass, if the layer's output is not a tensor.
    """

    runtime = "torch"

    def __init__(
        self,
        model: nn.Module,
        layer: str,
        *,
        dtype: torch.dtype,
        sizes: Sequence[int],
        compile: bool = True,  # noqa: A002
        head: PooledHead | None = None,
        reading: Reading = AUTO,
    ) -> None:
        self.layer, self.dtype = layer, dtype
        self.sizes = tuple(sorted(set(sizes)))
        self.compiled = compile
        """Whether the copy runs compiled, or as CUDA graphs."""
        self._head, self._reading, self._model = head, reading, model
        self._copy = copy.deepcopy(model).eval().requires_grad_(False)
        inherit(model, self._copy)
        self._copy.to(dtype=dtype, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._probed = _Probed(self._copy, layer, reading)
        self._run: Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor]] = self._probed
        devices = {parameter.device.type for parameter in self._copy.parameters()}
        self._graphed = devices == {"cuda"}
        self.way = "recorded as CUDA graphs" if self._graphed else "compiled"
        if compile and self._graphed:
            self._run = Graphed(self._probed)
        elif compile:
            self._run = torch.compile(self._probed, dynamic=False)
        self._seen_sizes: set[int] = set()
        self._shape: torch.Size | None = None

    def settle(self, image: Tensor) -> str | None:
        """Fold batch norms, compile for one image, (1, C, H, W), and measure whether that is
        faster.

        The compiled copy is used only if it is at least as fast as the uncompiled one: on some
        processors a compiled transformer is much slower.

        Returns:
            The reason why the copy runs uncompiled; None if it runs compiled.
        """
        laid_out = image.to(self.dtype).contiguous(memory_format=torch.channels_last)
        if fold(self._copy, laid_out, self.layer):
            inherit(self._model, self._copy)
        if not self.compiled:
            return "compilation is turned off"
        question = [Question((ClassTarget(),), "gradcam", (self.layer,))]
        try:
            seconds = fastest(lambda: self.explain(image, question).wait())
        except Exception as error:  # a compiler may raise anything
            self.compiled = False
            return " ".join(str(error).split())[:300] or type(error).__name__
        self.compiled = False
        plain = fastest(lambda: self.explain(image, question).wait())
        if plain < seconds:
            return f"{seconds * 1000:.0f} ms an image compiled, {plain * 1000:.0f} ms not compiled"
        self.compiled = True
        return None

    def explain(self, images: Tensor, questions: Sequence[Question]) -> BatchAnswer:
        """Answer one question or several for each image, as `begin_batch` does.

        Args:
            images: float (B, C, H, W), on the model's device; B is at most the largest size.
            questions: questions that `takes` accepts; one for each image, or the same number for
                each.
        """
        count = len(images)
        if not self.compiled:
            recast = images.to(self.dtype).contiguous(memory_format=torch.channels_last)
            return begin_batch(
                self._copy, recast, questions, head=self._head, reading=self._reading
            )
        filled = padded(images, self.sizes, self.dtype)
        with torch.inference_mode(False), self._preparing(len(filled)):
            if self._head:
                with torch.no_grad():
                    logits, activation = self._run(filled, None)
                return answer_by_head(
                    self._head, questions, activation[:count], logits[:count], images, self._reading
                )
            with torch.enable_grad():
                probe = self._probe(filled)
                logits, activation = self._run(filled, probe)
                signals = AtLeaf(self.layer, probe, activation.detach())
                return answer_at_leaf(
                    self._copy, signals, questions, logits, filled, self._reading, count=count
                )

    def package(self, shape: Sequence[int]) -> bytes:
        """Return the forward pass for a batch of this size, compiled ahead of time for this device
        and processor: a file that `cam.runtimes.packaged.PackagedPath` runs. It takes half a minute
        and more, and a C++ compiler.

        Args:
            shape: (B, C, H, W) of the images.
        """
        from torch._inductor import aoti_compile_and_package

        device = next(self._copy.parameters()).device
        filled = padded(torch.zeros(*shape, device=device), shape[:1], self.dtype)
        with TemporaryDirectory() as folder, torch.no_grad():
            program = torch.export.export(self._probed, (filled, None))
            file = aoti_compile_and_package(
                program,
                package_path=str(Path(folder) / "forward.pt2"),
                inductor_configs={"freezing": True},
            )
            return Path(file).read_bytes()

    def _preparing(self, size: int) -> AbstractContextManager[None]:
        return nullcontext() if self._graphed else self._compiling(size)

    @contextmanager
    def _compiling(self, size: int) -> Iterator[None]:
        """Set the compiler's options for the first pass of a batch size."""
        # Importing the compiler takes seconds, and most models are never compiled.
        from torch._dynamo import config as dynamo
        from torch._inductor import config as inductor

        with ExitStack() as scope:
            if size not in self._seen_sizes:
                # The compiler keeps one graph for each batch size; its default limit is 8.
                limit = dynamo.recompile_limit + len(self.sizes)
                scope.enter_context(dynamo.patch(recompile_limit=limit))
                if self._head:
                    scope.enter_context(inductor.patch(freezing=True))
            yield
        self._seen_sizes.add(size)

    def _probe(self, images: Tensor) -> Tensor:
        if self._shape is None:
            with torch.no_grad():
                _, activation = self._probed(images[:1], images.new_zeros(()))
            self._shape = activation.shape[1:]
        zeros = images.new_zeros(len(images), *self._shape)
        if zeros.ndim == 4:
            zeros = zeros.contiguous(memory_format=torch.channels_last)
        return zeros.requires_grad_()


class _Probed(nn.Module):
    """A model that adds a given probe to a layer's output and returns that output with its
    logits."""

    def __init__(self, model: nn.Module, layer: str, reading: Reading) -> None:
        super().__init__()
        self.model, self._reading = model, reading
        self._kept: list[Tensor | None] = []
        self.model.get_submodule(layer).register_forward_hook(self._take)

    def forward(self, images: Tensor, probe: Tensor | None) -> tuple[Tensor, Tensor]:
        self._kept = [probe]
        logits = logits_of(self.model(images), self._reading, batch=len(images))
        activation = self._kept.pop()
        assert activation is not None
        self._kept = []
        return logits, activation

    def _take(self, module: nn.Module, args: Any, output: Any) -> Tensor | None:
        if not self._kept:  # the model was called directly, without a probe
            return None
        if not isinstance(output, Tensor):
            raise LayerNotSpatial(f"the layer returns a {type(output).__name__}, not a tensor")
        # A clone is kept, because an in-place operation after the layer may change its output.
        probe = self._kept.pop()
        probed = output if probe is None else output + probe
        self._kept.append(probed.clone())
        return probed
