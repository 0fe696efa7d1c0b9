"""The OpenVINO path: a model compiled by OpenVINO for explanations at one layer, on the CPU.

Behind a pooled linear head, the compiled network returns the logits and the layer's output, from
which the gradient follows without a backward pass. In other models OpenVINO runs the modules up to
the layer, and PyTorch runs and differentiates those that follow it.

OpenVINO is an optional dependency; nothing imports it before `OpenVinoPath.settle`.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, Protocol

import torch
from torch import Tensor, nn

from cam.agreement import EXACT
from cam.errors import LayerNotSpatial
from cam.explanation import Question
from cam.hooks.inference import evaluating
from cam.methods.head import PooledHead
from cam.outputs.outputs import watching
from cam.outputs.reading import AUTO, Reading, logits_of
from cam.passes.batch_answer import BatchAnswer
from cam.passes.compiled_path import CompiledPath
from cam.passes.onepass import answer_by_head
from cam.runtimes.shared import AtLeaf, answer_at_leaf
from cam.runtimes.tail import Tail

if TYPE_CHECKING:
    import openvino

HINTS: Final = {torch.float32: "f32", torch.bfloat16: "bf16"}
"""The dtypes that OpenVINO can compute in, with its names for them."""
LARGEST_BATCH: Final = 4096
SIZE_BYTES: Final = 8
ROUNDED: Final = 0.1
"""Largest difference, as a share of the maximum, between an output of a network in half precision
and the model's, at which the network counts as the model's."""


class NetworkStore(Protocol):
    """Keeps a model's converted network for the next process."""

    def read(self, what: str) -> bytes | None:
        """Return what was kept under this name; None if there is nothing."""

    def write(self, what: str, content: bytes) -> None:
        """Keep a content, if that is possible."""


def is_installed() -> bool:
    """Return whether OpenVINO is installed."""
    return find_spec("openvino") is not None


class OpenVinoPath(CompiledPath):
    """A model compiled by OpenVINO for explanations at one layer.

    The model is exported by `torch.export`, which refuses models whose operations depend on the
    numbers of an image. Weights and activations are converted to `dtype` within OpenVINO; maps, and
    the modules after the layer, are computed in float32.

    Only one thread may call `explain` at a time.

    Args:
        model: a classifier or segmenter on the CPU, in eval mode and float32. It is not changed,
            and the modules after the layer are run from it.
        layer: the layer at which maps are made; its output must be a tensor.
        dtype: a key of `HINTS`.
        sizes: the batch sizes that `cam.runtimes.fidelity.judge` tests. Any other size can be
            explained, too.
        head: the model's pooled linear head at that layer, if it has one: see `cam.methods.head`.
        reading: how the model's output is read, with the activation resolved.
        kept: keeps the converted network of this model. A network that was kept is compared with
            the model before it is used.
    """

    runtime = "openvino"
    way = "compiled"

    def __init__(
        self,
        model: nn.Module,
        layer: str,
        *,
        dtype: torch.dtype,
        sizes: Sequence[int],
        head: PooledHead | None = None,
        reading: Reading = AUTO,
        kept: NetworkStore | None = None,
    ) -> None:
        self.layer, self.dtype = layer, dtype
        self.sizes = tuple(sorted(set(sizes)))
        self._model, self._head, self._reading = model, head, reading
        self._kept = kept
        self._tail: Tail | None = None
        self._request: openvino.InferRequest | None = None

    def settle(self, image: Tensor) -> str | None:
        """Convert and compile the model for images of one size. OpenVINO uses as many threads as
        PyTorch does in the calling thread.

        Args:
            image: float32 (1, C, H, W), preprocessed.

        Returns:
            None.

        Raises:
            Exception: whatever `torch.export` or OpenVINO raises for a model that it does not
                support.
            LayerNotSpatial: if an output that has to be passed from OpenVINO to PyTorch is not a
                tensor.
        """
        names = [self.layer]
        if self._head is None:
            reading = self._reading
            self._tail = Tail(
                self._model, self.layer, image, lambda raw: logits_of(raw, reading, batch=None)
            )
            names += self._tail.inputs
        traced = _Traced(self._model, names, self._reading if self._head else None)
        what = f"network {names} {tuple(image.shape[1:])} {traced.reading}"
        if self._kept and self._takes_over(traced, image, self._kept.read(what)):
            return None
        network = converted(traced, image)
        self._request = self._compiled(network)
        if self._kept:
            self._kept.write(what, written(network))
        return None

    def _takes_over(self, traced: _Traced, image: Tensor, content: bytes | None) -> bool:
        """Compile a network that was kept. Return whether it returns what the model does."""
        if content is None:
            return False
        try:
            self._request = self._compiled(read(content))
            outputs = self._infer(image)
        except Exception:  # it is not known what is in the file
            return False
        with torch.inference_mode(False), torch.no_grad(), evaluating(traced):
            expected = traced(image.clone())
        most = EXACT if self.dtype == torch.float32 else ROUNDED
        return len(outputs) == len(expected) and all(
            one.shape == other.shape
            and float((one - other).abs().max()) <= most * float(other.abs().max())
            for one, other in zip(outputs, expected, strict=True)
        )

    def _compiled(self, network: openvino.Model) -> openvino.InferRequest:
        return compiled(network, self.dtype)

    def explain(self, images: Tensor, questions: Sequence[Question]) -> BatchAnswer:
        """Answer one question or several for each image, as `explain_batch` does.

        Args:
            images: float32 (B, C, H, W) of the size that `settle` was given.
            questions: questions that `takes` accepts; one for each image, or the same number for
                each.
        """
        first, *others = self._infer(images)
        with torch.inference_mode(False):
            if self._head:
                logits, (activation,) = first, others
                return answer_by_head(
                    self._head, questions, activation, logits, images, self._reading
                )
            assert self._tail
            with torch.enable_grad(), evaluating(self._model):
                given = images.clone() if images.is_inference() else images
                leaf = first.requires_grad_()
                computed = dict(zip(self._tail.inputs, others, strict=True))
                raw = self._tail.output(given, {self.layer: leaf, **computed})
                logits = logits_of(raw, self._reading, batch=len(images))
                signals = AtLeaf(self.layer, leaf, leaf.detach())
                return answer_at_leaf(
                    self._model, signals, questions, logits, given, self._reading, count=len(given)
                )

    def _infer(self, images: Tensor) -> list[Tensor]:
        assert self._request, "settle compiles the model first"
        return inferred(self._request, images)


class _Traced(nn.Module):
    """A model that returns the outputs of some of its layers, after its logits if there is a
    reading for them."""

    def __init__(self, model: nn.Module, layers: Sequence[str], reading: Reading | None) -> None:
        super().__init__()
        self.model, self._layers, self.reading = model, layers, reading

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        with watching(self.model, self._layers) as seen:
            raw = self.model(images)
        missing = [name for name in self._layers if name not in seen]
        if missing:
            raise LayerNotSpatial(f"layer {missing[0]!r} does not return a tensor")
        tensors = [seen[name] for name in self._layers]
        if self.reading:
            tensors.insert(0, logits_of(raw, self.reading))
        return tuple(tensors)


def compiled(network: openvino.Model, dtype: torch.dtype) -> openvino.InferRequest:
    """Compile a network for the CPU, with as many threads as PyTorch uses in the calling thread.

    Args:
        dtype: a key of `HINTS`, in which the network computes.
    """
    import openvino

    settings = {
        "INFERENCE_PRECISION_HINT": HINTS[dtype],
        "PERFORMANCE_HINT": "LATENCY",  # one stream, which uses all the threads
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "ENABLE_CPU_PINNING": False,
    }
    return openvino.Core().compile_model(network, "CPU", settings).create_infer_request()


def inferred(request: openvino.InferRequest, images: Tensor) -> list[Tensor]:
    """Return the outputs of a compiled network for images (B, …), as float32 tensors of their
    own, without a graph."""
    outputs = request.infer([images.numpy()], share_inputs=True, share_outputs=True)
    with torch.inference_mode(False):
        # The network writes its next outputs into the same memory.
        return [torch.from_numpy(array).clone() for array in outputs.to_tuple()]


def converted(traced: nn.Module, image: Tensor) -> openvino.Model:
    """Convert a model to OpenVINO's form, for any number of images of one size.

    `openvino.convert_model` does the same, but it reports its use to its maker over the network
    unless the user has refused.
    """
    from openvino.frontend import FrontEndManager
    from openvino.frontend.pytorch.fx_decoder import TorchFXPythonDecoder
    from openvino.frontend.pytorch.torchdynamo.export_decompositions import ops_to_not_decompose
    from torch.export import Dim, export
    from torch.export.decomp_utils import CustomDecompTable

    with torch.inference_mode(False), torch.no_grad(), evaluating(traced):
        # The export would fix the size of a batch of one.
        images = image.clone().expand(2, *image.shape[1:]).contiguous()
        sizes = ({0: Dim("batch", min=1, max=LARGEST_BATCH)},)
        program = export(traced, (images,), dynamic_shapes=sizes, strict=False)
        table = CustomDecompTable()  # type: ignore[no-untyped-call]
        for operation in ops_to_not_decompose():
            if operation in table:
                table.pop(operation)  # type: ignore[no-untyped-call]
        decoder = TorchFXPythonDecoder(program.run_decompositions(table).module())
        front = FrontEndManager().load_by_framework("pytorch")
        return front.convert(front.load(decoder))


def written(network: openvino.Model) -> bytes:
    """Return a network in OpenVINO's form as bytes: the size of its description, that, and its
    weights."""
    import openvino

    with TemporaryDirectory() as folder:
        description, weights = Path(folder) / "network.xml", Path(folder) / "network.bin"
        openvino.serialize(network, description, weights)
        head = description.read_bytes()
        return len(head).to_bytes(SIZE_BYTES) + head + weights.read_bytes()


def read(content: bytes) -> openvino.Model:
    """Return the network that `written` has made the bytes of."""
    import openvino

    end = SIZE_BYTES + int.from_bytes(content[:SIZE_BYTES])
    return openvino.Core().read_model(content[SIZE_BYTES:end], content[end:])
