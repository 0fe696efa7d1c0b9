"""One image of one model, for methods that run the model on it again and again."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from cam.evaluation import evaluating
from cam.grids import Grid
from cam.replay import Replay
from cam.targets import ClassTarget, logits_of


@dataclass(frozen=True, eq=False)
class Subject:
    """What a perturbation method gets to work with."""

    model: nn.Module
    image: Tensor
    """float (1, C, H, W), preprocessed, on the model's device and in its dtype."""
    targets: tuple[ClassTarget, ...]
    """Resolved."""
    layer: str
    grid: Grid
    output: Tensor
    """The layer's output for the image."""
    budget: int
    """Most forward passes of one image."""
    chunk: int
    """Most images in one forward pass."""

    def activations(self) -> Tensor:
        """The layer's activations as float32 (1, K, h, w)."""
        return self.grid.apply(self.output).float()

    def replay(self) -> Replay:
        return Replay(self.model, self.layer, self.image)

    def scores(self, images: Tensor) -> Tensor:
        """Each target's number for each image (n, C, H, W): float32 (n, targets)."""
        with evaluating(self.model), torch.no_grad():
            return self.scores_of(logits_of(self.model(images)).float())

    def scores_of(self, logits: Tensor) -> Tensor:
        """(n, classes) → (n, targets)."""
        return torch.stack(
            [torch.stack([target.score(row) for target in self.targets]) for row in logits]
        )

    def gradients(self, images: Tensor) -> Tensor:
        """Each target's gradient at each image (n, C, H, W): float32 (targets, n, C, H, W)."""
        with evaluating(self.model), torch.inference_mode(False), torch.enable_grad():
            probe = images.detach().clone().requires_grad_()
            # The clone: a leaf may not be changed in place, as a model's first layer might.
            logits = logits_of(self.model(probe.clone())).float()
            found = [
                torch.autograd.grad(
                    torch.stack([target.score(row) for row in logits]).sum(),
                    probe,
                    retain_graph=True,
                )[0]
                for target in self.targets
            ]
        return torch.stack(found).float()

    def of_probabilities(self) -> Subject:
        """The same with probabilities as numbers, for methods that are defined by them."""
        targets = tuple(replace(target, of="probability") for target in self.targets)
        return replace(self, targets=targets)
