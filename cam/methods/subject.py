"""One image of one model, for methods that run the model on it again and again."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from cam.errors import MethodUnsuited, NoGradientPath
from cam.hooks.capture import Capture, Trunk
from cam.hooks.grids import Grid, Located
from cam.hooks.inference import alone, evaluating
from cam.hooks.replay import Record, Replay
from cam.outputs.output import (
    Output,
    detached,
    looked_at,
    one_each,
    outputs_of,
    scale_of,
    watching,
)
from cam.outputs.reading import AUTO, Reading
from cam.targets import ClassTarget, Target

Score = Callable[[Target, Output], Tensor]


def never() -> bool:
    """There is no limit on time."""
    return False


@dataclass(frozen=True)
class Progress:
    """How far a method is, in forward passes of one image."""

    done: int
    total: int
    method: str | None = None
    """The method's name, where an image is explained by several."""


@dataclass(frozen=True)
class Completeness:
    """Whether attributions add up to what they explain."""

    attributed: float
    """The sum of all attributions."""
    difference: float
    """What it should be: the score, less the score of the baseline."""


@dataclass(frozen=True)
class Passes:
    """How many of its passes a method of many has made."""

    made: int
    of: int
    """How many the formula takes: of a method of channels, those of all channels."""
    stopped: bool = False
    """Whether the time was up before the budget was."""

    @property
    def warning(self) -> str | None:
        """What is wrong with the map, where some are missing."""
        if self.made >= self.of:
            return None
        share = f"{self.made} of the {self.of} passes that the method takes were made"
        if self.stopped:
            return f"{share}, for the time was up; a job has all the time"
        return f"{share}, those of the channels of the greatest variance: a larger budget has more"


@dataclass(frozen=True, eq=False)
class Attribution:
    """What a method of many passes found: float32 (targets, h, w), before any relu."""

    maps: Tensor
    completeness: tuple[Completeness, ...] | None = None
    """For each target, where the method promises it."""
    passes: Passes | None = None


Steps = Generator[Progress, None, Attribution]


@dataclass(frozen=True, eq=False)
class Subject:
    """What a method of many passes gets to work with."""

    model: nn.Module
    image: Tensor
    """float (1, C, H, W), preprocessed, on the model's device and in its dtype."""
    targets: tuple[Target, ...]
    """Resolved."""
    layer: str
    grid: Grid
    output: Tensor
    """The layer's output for the image."""
    budget: int
    """Most forward passes of one image."""
    chunk: int
    """Most images in one forward pass."""
    located: Located
    """Where the layers lie that the targets look at."""
    reading: Reading = AUTO
    """How the model's output is read, its activation resolved."""
    graph: bool = False
    """See `Capture`."""
    record: Record | None = None
    """Of the forward pass that found the targets, where the method says that it replays."""
    stop: Callable[[], bool] = never
    """Whether the time is up: a method that can be stopped returns what it has."""

    @property
    def share(self) -> int:
        """Most images in one pass whose every target is differentiated."""
        return max(self.chunk // len(self.targets), 1)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the image."""
        return int(self.image.shape[-2]), int(self.image.shape[-1])

    def activations(self) -> Tensor:
        """The layer's activations as float32 (1, K, h, w)."""
        return self.grid.apply(self.output).float()

    def replay(self) -> Replay:
        """Return what runs the model again from the layer on, for changed activations."""
        return Replay(self.model, self.layer, self.image, self.record)

    def outputs(self, images: Tensor) -> list[Output]:
        """What the model says about images (n, C, H, W), in eval mode; a graph where gradients
        are on."""
        looks = dict.fromkeys(name for target in self.targets for name in target.layers)
        with evaluating(self.model), watching(self.model, looks) as seen:
            # The clone: the model may change it in place, which a leaf may not be.
            raw = self.model(images.clone())
            looked = looked_at(seen, looks, images, self.located)
            return one_each(self._read(raw, len(images), looked), images)

    def said(self, images: Tensor) -> list[Output]:
        """The same without a graph, on the CPU."""
        with torch.no_grad():
            return detached(self.outputs(images))

    def scores(self, images: Tensor) -> Tensor:
        """Each target's number for each image (n, C, H, W), a chunk at a time: float32
        (n, targets)."""
        with torch.no_grad():
            return torch.cat(
                [self.scores_of(self.outputs(some)) for some in torch.split(images, self.chunk)]
            )

    def scores_of(self, outputs: list[Output]) -> Tensor:
        """n outputs → float32 (n, targets)."""
        return torch.stack(
            [torch.stack([target.score(each) for target in self.targets]) for each in outputs]
        ).float()

    def replayed(self, replay: Replay, activations: Tensor) -> Tensor:
        """Each target's number for each changed activation (n, …): float32 (n, targets).

        Raises:
            MethodUnsuited: if a target looks at a layer: it may lie before this one.
        """
        if any(target.layers for target in self.targets):
            raise MethodUnsuited(
                "a method that replays the model from a layer on needs a target made of the "
                "model's output, not of a layer's"
            )
        with torch.no_grad():
            return self.scores_of(self.replayed_outputs(replay, activations))

    def replayed_outputs(self, replay: Replay, activations: Tensor) -> list[Output]:
        """What the model says where the layer's output is changed to activations (n, …)."""
        return self._read(replay.output(activations), len(activations))

    def _read(
        self, raw: Any, batch: int, looked: Mapping[str, Tensor] | None = None
    ) -> list[Output]:
        return outputs_of(raw, looked, size=self.size, reading=self.reading, batch=batch)

    def gradients(self, images: Tensor) -> Tensor:
        """Each target's gradient at each image (n, C, H, W): float32 (targets, n, C, H, W).

        Raises:
            NoGradientPath: if no gradient of a target reaches the images.
        """
        with torch.inference_mode(False), torch.enable_grad():
            probe = images.detach().clone().requires_grad_()
            outputs = self.outputs(probe)
            scores = self.scores_of(outputs)
            if images.dtype != torch.float16:
                return torch.stack([gradient_at(probe, each) for each in scores.sum(0)]).float()
            scales = torch.tensor(
                [
                    [scale_of(each, y) for y in row]
                    for each, row in zip(outputs, scores, strict=True)
                ]
            ).to(scores)
            sums = (scores * scales).sum(0)
            found = torch.stack([gradient_at(probe, each) for each in sums]).float()
            return found / scales.T[..., None, None, None]

    @contextmanager
    def captured(self, images: Tensor) -> Iterator[tuple[Capture, Tensor]]:
        """The layer captured while the model sees images (n, C, H, W), and each target's number
        summed over them: (targets,), with a graph from the layer on."""
        # The model is this thread's as long as the hooks are there.
        trunk: Trunk = "train" if self.graph else "inference"
        with alone(self.model), Capture(self.model, [self.layer], trunk=trunk) as capture:
            yield capture, self.scores_of(self.outputs(images)).sum(0)

    def of_probabilities(self) -> Subject:
        """The same with probabilities as numbers where a target has any, for methods that are
        defined by them."""
        targets = tuple(
            replace(target, of="probability") if isinstance(target, ClassTarget) else target
            for target in self.targets
        )
        return replace(self, targets=targets)


def gradient_at(images: Tensor, score: Tensor) -> Tensor:
    """The gradient of a score at the images that it was computed from; the graph is kept.

    Raises:
        NoGradientPath: if none reaches them.
    """
    found = None
    if score.requires_grad:
        (found,) = torch.autograd.grad(score, images, retain_graph=True, allow_unused=True)
    if found is None:
        raise NoGradientPath(
            "no gradient of the target reaches the image: the model cuts it off on its way (by "
            "torch.no_grad, detach or an operation without a derivative)"
        )
    return found
