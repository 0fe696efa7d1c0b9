"""The `Subject` of methods that run a model on one image many times, and what they return."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from cam.errors import MethodUnsuited, NoGradientPath
from cam.hooks.capture import Capture, Trunk
from cam.hooks.grids import Grid, Located
from cam.hooks.inference import alone, evaluating
from cam.hooks.replay import Record, Replay
from cam.outputs.output import Output, scale_of
from cam.outputs.outputs import Outputs, forward, looked_at, outputs_of, watching
from cam.outputs.reading import AUTO, Reading
from cam.progress import Completeness, Passes, Progress
from cam.targets import ClassTarget, Target, TextTarget

Score = Callable[[Target, Output], Tensor]


def never() -> bool:
    """Return False: there is no time limit."""
    return False


@dataclass(frozen=True, eq=False)
class Attribution:
    """The result of a method of many passes."""

    maps: Tensor
    """float32 (targets, h, w), before the last relu."""
    completeness: tuple[Completeness, ...] | None = None
    """For each target, if the method guarantees completeness."""
    passes: Passes | None = None
    grid: Grid | None = None
    """Grid of the maps; None for the layer's own, or for maps of the image's size."""

    @staticmethod
    def of_colours(attributions: Tensor, wanted: Iterable[Tensor]) -> Attribution:
        """Return the maps of attributions of colours, (targets, C, H, W).

        Args:
            wanted: the sum that each target's attributions should have.
        """
        complete = tuple(
            Completeness(float(attributed), float(value))
            for attributed, value in zip(attributions.sum((1, 2, 3)), wanted, strict=True)
        )
        return Attribution(attributions.sum(1), complete)


Steps = Generator[Progress, None, Attribution]


@dataclass(frozen=True, eq=False)
class Subject:
    """The model, the image, the targets and the limits of a method of many passes."""

    model: nn.Module
    image: Tensor
    """float (1, C, H, W), preprocessed, on the model's device and in its dtype."""
    targets: tuple[Target, ...]
    """Resolved targets."""
    layer: str
    grid: Grid
    output: Tensor
    """Output of the layer for the image."""
    budget: int
    """Maximum number of forward passes of one image."""
    chunk: int
    """Maximum number of images in one forward pass."""
    located: Located
    """Grids of the layers that the targets read."""
    reading: Reading = AUTO
    """How the model's output is read, with a resolved activation."""
    graph: bool = False
    """Whether the layers before the captured one get a graph: `trunk="train"` of `Capture`."""
    record: Record | None = None
    """Record of the forward pass that found the targets, if the method replays."""
    stop: Callable[[], bool] = never
    """Return whether the time is up: a method that can be stopped then returns what it has."""

    @property
    def share(self) -> int:
        """Maximum number of images in one pass in which every target is differentiated."""
        return max(self.chunk // len(self.targets), 1)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the image."""
        return int(self.image.shape[-2]), int(self.image.shape[-1])

    def activations(self) -> Tensor:
        """Return the layer's activations as float32 (1, K, h, w)."""
        return self.grid.apply(self.output).float()

    def replay(self) -> Replay:
        """Return a `Replay`, which runs the model from the layer on for changed activations."""
        return Replay(self.model, self.layer, self.image, self.record)

    def outputs(self, images: Tensor) -> Outputs:
        """Return the model's outputs for images (n, C, H, W), in eval mode, with a graph if
        gradients are on."""
        looks = dict.fromkeys(name for target in self.targets for name in target.layers)
        with evaluating(self.model):
            return forward(self.model, images, self.reading, layers=looks, located=self.located)

    def said(self, images: Tensor) -> list[Output]:
        """Return the `outputs` for images (n, C, H, W), `detached`."""
        with torch.no_grad():
            return [output.detached() for output in self.outputs(images)]

    def scores(self, images: Tensor) -> Tensor:
        """Return each target's score for each image (n, C, H, W), computed a chunk at a time:
        float32 (n, targets)."""
        with torch.no_grad():
            return torch.cat(
                [self.scores_of(self.outputs(some)) for some in torch.split(images, self.chunk)]
            )

    def scores_of(self, outputs: Sequence[Output]) -> Tensor:
        """Return each target's score for each of n outputs: float32 (n, targets)."""
        columns = None
        if isinstance(outputs, Outputs) and not torch.is_grad_enabled():
            # With a graph, `scale_of` follows each score to the output of its own image.
            columns = outputs.columns
        if columns and all(isinstance(target, ClassTarget) for target in self.targets):
            return torch.stack([target.score(columns) for target in self.targets], 1).float()
        return torch.stack(
            [torch.stack([target.score(output) for target in self.targets]) for output in outputs]
        ).float()

    def replayed(self, replay: Replay, activations: Tensor) -> Tensor:
        """Return each target's score for each changed activation (n, …): float32 (n, targets).

        Raises:
            MethodUnsuited: if a target reads a layer, which may lie before this one.
        """
        if self.reads_earlier:
            raise MethodUnsuited(
                "a method that replays the model from a layer on needs a target made of the "
                "model's output, not of a layer's"
            )
        with torch.no_grad():
            return self.scores_of(self.replayed_outputs(replay, activations))

    def replayed_outputs(self, replay: Replay, activations: Tensor) -> Outputs:
        """Return the model's outputs if the layer's output is replaced by activations (n, …)."""
        looks = dict.fromkeys(name for target in self.targets for name in target.layers)
        with watching(self.model, looks) as seen:
            raw = replay.output(activations)
        count = len(activations)
        looked = looked_at(seen, looks, self.image.expand(count, -1, -1, -1), self.located)
        return outputs_of(
            raw, looked, size=self.size, reading=self.reading, batch=count, model=self.model
        )

    @property
    def reads_earlier(self) -> bool:
        """Whether a target reads a layer that may lie before the one of the map. That of a text is
        the model's last but for its logits."""
        return any(target.layers and not isinstance(target, TextTarget) for target in self.targets)

    def gradients(self, images: Tensor) -> Tensor:
        """Return each target's gradient at each image (n, C, H, W): float32 (targets, n, C, H, W).

        Raises:
            NoGradientPath: if no gradient of a target reaches the images.
        """
        with torch.inference_mode(False), torch.enable_grad():
            probe = images.detach().clone().requires_grad_()
            outputs = self.outputs(probe)
            scores = self.scores_of(outputs)
            scales = torch.ones_like(scores)
            if images.dtype == torch.float16:
                for row, output in enumerate(outputs):
                    scales[row] = torch.tensor([scale_of(output, score) for score in scores[row]])
            sums = (scores * scales).sum(0)
            gradients = torch.stack([gradient_at(probe, total) for total in sums]).float()
            return gradients / scales.T[..., None, None, None]

    @contextmanager
    def captured(self, images: Tensor) -> Iterator[tuple[Capture, Tensor]]:
        """Run the model on images (n, C, H, W) and capture the layer.

        Yield the capture and each target's score summed over the images, (targets,), with a graph
        from the layer on.
        """
        # No other thread of cam may run the model while the hooks are set.
        trunk: Trunk = "train" if self.graph else "inference"
        with alone(self.model), Capture(self.model, [self.layer], trunk=trunk) as capture:
            yield capture, self.scores_of(self.outputs(images)).sum(0)

    def of_probabilities(self) -> Subject:
        """Return a copy whose class targets have probabilities as scores, for methods that are
        defined by probabilities. Values of a regression remain the scores."""
        if self.reading.meaning == "value":
            return self
        targets = tuple(
            replace(target, of="probability") if isinstance(target, ClassTarget) else target
            for target in self.targets
        )
        return replace(self, targets=targets)


def gradient_at(images: Tensor, score: Tensor) -> Tensor:
    """Return the gradient of a score at the images from which it was computed; the graph is kept.

    Raises:
        NoGradientPath: if no gradient of the score reaches the images.
    """
    gradient = None
    if score.requires_grad:
        (gradient,) = torch.autograd.grad(score, images, retain_graph=True, allow_unused=True)
    if gradient is None:
        raise NoGradientPath(
            "no gradient of the target reaches the image: the model cuts it off on its way (by "
            "torch.no_grad, detach or an operation without a derivative)"
        )
    return gradient
