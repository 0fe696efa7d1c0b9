"""CAM: the weights of a linear head that reads the layer's mean."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from cam.errors import MethodUnsuited
from cam.evaluation import evaluating
from cam.grids import Grid
from cam.methods.subject import Attribution, Progress, Steps, Subject
from cam.output import logits_of
from cam.targets import ClassTarget

TOLERANCE = 1e-3
"""Relative, of the mean that the head must have read: half precision has no more."""


def cam(subject: Subject) -> Steps:
    """map = relu(Σ_k w_k A_k), w the class's row in a linear head that reads the mean of A over
    its positions; with a contrast, the difference of two rows.

    Zhou et al., "Learning Deep Features for Discriminative Localization", CVPR 2016, equation 2;
    the paper has no relu: `signed` leaves it out. Of DenseNet's kind, which rectify between layer
    and mean, A is rectified, too.

    Raises:
        MethodUnsuited: if the head is another, or the target is no logit.
    """
    weights, rectified = pooled_head(subject.model, subject.image, subject.layer, subject.grid)
    a = subject.activations()
    a = a.relu() if rectified else a
    rows = []
    for target in subject.targets:
        if not isinstance(target, ClassTarget) or target.of != "logit":
            raise MethodUnsuited("cam explains classes' logits: the weights of its head")
        row = weights[target.index]
        if target.minus is not None:
            row = row - weights[target.minus]
        rows.append(-row if target.against else row)
    yield Progress(1, 1)
    return Attribution(torch.einsum("tk,khw->thw", torch.stack(rows).float(), a[0]))


def pooled_head(model: nn.Module, image: Tensor, layer: str, grid: Grid) -> tuple[Tensor, bool]:
    """The weights (C, K) of a linear head (or a convolution of one pixel) that reads the mean of
    the layer's output over positions, and whether that is rectified in between; told by what goes
    into the head, not by names.

    Raises:
        MethodUnsuited: if what goes into it is something else.
    """
    given: dict[str, Tensor] = {}
    outputs: dict[str, Any] = {}

    def note(name: str, module: nn.Module, args: Any, output: Any) -> None:
        if args and isinstance(args[0], Tensor):
            given[name] = args[0]
        # An in-place rectifier may follow.
        outputs[name] = output.clone() if isinstance(output, Tensor) else output

    modules = dict(model.named_modules())
    heads = [
        name
        for name, module in modules.items()
        if isinstance(module, nn.Linear | nn.Conv2d) and name
    ]
    with ExitStack() as scope:
        scope.enter_context(evaluating(model))
        scope.enter_context(torch.no_grad())
        for name in {*heads, layer}:
            scope.callback(modules[name].register_forward_hook(partial(note, name)).remove)
        logits = logits_of(model(image))
    if logits.ndim == 2 and isinstance(outputs.get(layer), Tensor):
        a = grid.apply(outputs[layer]).float()
        for name in reversed(heads):
            output = outputs.get(name)
            if not isinstance(output, Tensor) or output.numel() != logits.numel():
                continue
            read = given[name].float().flatten()
            weights = modules[name].weight
            assert isinstance(weights, Tensor)
            for rectified in (False, True):
                mean = (a.relu() if rectified else a).mean(dim=(2, 3)).flatten()
                if mean.shape == read.shape and _equal(mean, read):
                    return weights.detach().flatten(1), rectified
    raise MethodUnsuited(
        f"cam needs a linear head that reads the mean of the layer: after {layer!r} this model "
        "does something else; gradcam needs no such head"
    )


def _equal(one: Tensor, other: Tensor) -> bool:
    return bool((one - other).abs().max() <= TOLERANCE * other.abs().max())
