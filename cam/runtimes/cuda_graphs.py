"""CUDA graphs of a forward pass, and of the gradient at a probe: one call of the driver in place of
hundreds.

A network's kernels take less time on a large card than Python takes to start them. A graph is
recorded once for each shape of a batch, within a second and without a compiler, and then replayed.
Its numbers are those of the module that was recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor, nn

WARM_UPS: Final = 3
"""Passes before a recording: libraries choose their kernels and allocate in the first ones, which
may not happen in a recording."""


class Graphed:
    """Replays a module's forward pass and the gradient at its probe. The recordings share their
    memory, so that several take little more than the largest one.

    Args:
        module: takes images and a probe, or None, and returns logits and an activation. It must do
            the same for all images of a shape.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._recorded: dict[torch.Size, _Recording] = {}
        self._pool: Any = None

    def __call__(self, images: Tensor, probe: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the logits and the activation.

        Args:
            images: (B, C, H, W), on the card. The first batch of a shape is recorded.
            probe: zeros that the gradient is taken at; None if none is, which is the same for each
                batch.
        """
        recording = self._recorded.get(images.shape)
        if recording is None:
            recording = _Recording(self._module, images, probe, self._pool)
            self._pool = recording.pool
            self._recorded[images.shape] = recording
        if probe is None:
            return recording.forward(images)
        logits, activation = _Replayed.apply(probe, images, recording)
        return logits, activation


class _Recording:
    """The graphs of one shape. Their tensors lie at fixed places, so that what a replay returns is
    a copy: the next replay writes into the same places."""

    def __init__(self, module: nn.Module, images: Tensor, probe: Tensor | None, pool: Any) -> None:
        self._images = images.clone()
        self._probe = None if probe is None else probe.detach().clone().requires_grad_()
        self._module = module
        self._warm_up()
        self._replay_forward, self.pool = _record(self._run, images.device, pool)
        if self._probe is not None:
            self._slope = torch.ones_like(self._logits)
            self._replay_backward, _ = _record(self._differentiate, images.device, self.pool)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        self._images.copy_(images)
        self._replay_forward()
        return self._logits.detach().clone(), self._activation.detach().clone()

    def backward(self, slope: Tensor) -> Tensor:
        """Return the gradient at the probe of the latest forward pass.

        Args:
            slope: the gradient at the logits.
        """
        self._slope.copy_(slope)
        self._replay_backward()
        return self._gradient.clone()

    def _warm_up(self) -> None:
        stream = torch.cuda.Stream(self._images.device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(self._images.device))
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                self._run()
                if self._probe is not None:
                    self._slope = torch.ones_like(self._logits)
                    self._differentiate()
        torch.cuda.current_stream(self._images.device).wait_stream(stream)

    def _run(self) -> None:
        self._logits, self._activation = self._module(self._images, self._probe)

    def _differentiate(self) -> None:
        # Each target of an image takes a backward pass, so that none may free what the next needs.
        assert self._probe is not None
        (self._gradient,) = torch.autograd.grad(
            self._logits, self._probe, self._slope, retain_graph=True
        )


class _Replayed(torch.autograd.Function):
    """A replay as one operation of a graph that begins at the probe."""

    @staticmethod
    def forward(
        ctx: Any, _: Tensor, images: Tensor, recording: _Recording
    ) -> tuple[Tensor, Tensor]:
        ctx.recording = recording
        logits, activation = recording.forward(images)
        ctx.mark_non_differentiable(activation)
        return logits, activation

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, None, None]:
        return ctx.recording.backward(slopes[0]), None, None


def _record(
    work: Callable[[], None], device: torch.device, pool: Any
) -> tuple[Callable[[], None], Any]:
    """Record what `work` does on the card. Return what does it again, and the pool of its memory.

    Args:
        pool: the pool of an earlier recording, which does not run at the same time; or None.
    """
    graph = torch.cuda.CUDAGraph()
    # Other threads answer by the unchanged model meanwhile, and may allocate.
    recording = torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local")
    with torch.cuda.device(device), recording:
        work()
    return lambda: graph.replay(), graph.pool()
