"""The fast path of a model that was compiled ahead of time, by `FastPath.package`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from typing import Any

import torch
from torch import Tensor

from cam.explanation import Question
from cam.methods.head import PooledHead
from cam.outputs.reading import Reading
from cam.passes.batch_answer import BatchAnswer
from cam.passes.compiled_path import CompiledPath
from cam.passes.onepass import answer_by_head
from cam.runtimes.shared import padded


class PackagedPath(CompiledPath):
    """Explanations behind a pooled linear head, whose forward pass is native code from files.

    The files are run as they are: load none that others could have written.

    Args:
        packages: size of the batch → the file's content, of at least one size.
        layer: the layer at which maps are made, and which the files return.
        dtype: the dtype that the files compute in.
        head: the model's head at that layer.
        reading: how the model's output is read, with the activation resolved.
    """

    runtime = "torch"
    way = "compiled ahead of time"

    def __init__(
        self,
        packages: Mapping[int, bytes],
        layer: str,
        *,
        dtype: torch.dtype,
        head: PooledHead,
        reading: Reading,
    ) -> None:
        self.layer, self.dtype, self.sizes = layer, dtype, tuple(sorted(packages))
        self._packages, self._head, self._reading = packages, head, reading
        self._run: dict[int, Callable[..., Any]] = {}

    def settle(self, image: Tensor) -> None:
        """Load the files on the device of an image, (1, C, H, W)."""
        from torch._inductor import aoti_load_package

        index = -1 if image.device.index is None else image.device.index
        self._run = {
            size: aoti_load_package(BytesIO(content), device_index=index)
            for size, content in self._packages.items()
        }

    def explain(self, images: Tensor, questions: Sequence[Question]) -> BatchAnswer:
        """Answer one question or several for each image, as `FastPath.explain` does.

        Args:
            images: float (B, C, H, W), on the device of `settle`; B is at most the largest size.
        """
        count, filled = len(images), padded(images, self.sizes, self.dtype)
        with torch.inference_mode(False), torch.no_grad():
            logits, activation = self._run[len(filled)](filled, None)
        return answer_by_head(
            self._head, questions, activation[:count], logits[:count], images, self._reading
        )
