"""Gradients behind a pooled linear head, from its weights and without a backward pass.

    head = pooled_head(model, image, "layer4", grid)   # once
    explain_batch(model, images, questions, head=head)

If the logits are z = W mean(A) + b, then ∂y/∂A_kij = Σ_c (∂y/∂z_c) W_ck / (hw) for every score y
that is computed from the logits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from cam.errors import MethodUnsuited
from cam.hooks.calls import Modules, hooked
from cam.hooks.grids import Grid
from cam.hooks.inference import evaluating
from cam.hooks.quantised import is_quantised, weights_of
from cam.methods.subject import Attribution, Steps, Subject
from cam.methods.trial import Trial
from cam.outputs.reading import AUTO, Reading, logits_of
from cam.progress import Progress
from cam.targets import ClassTarget

TOLERANCE = 1e-3
"""Relative tolerance of the comparisons that recognise the head. For a dtype whose machine epsilon
is larger, as bfloat16's is, that epsilon is the tolerance."""


@dataclass(frozen=True, eq=False)
class PooledHead:
    """A mean over positions and a linear map, between a layer and a classifier's logits."""

    layer: str
    grid: Grid
    """Position of the h × w grid in the layer's output."""
    weights: Tensor
    """float32 (C, K), for C outputs and K channels. Each output is a class, but a single output
    stands for two classes."""
    rectified: bool
    """Whether negative activations are set to 0 before the mean, as in DenseNet."""


class HeadSignals:
    """Activations and gradients at the head's layer, without a graph through the model: the
    `cam.passes.maps.Signals` of a forward pass that had this `output` at the layer and ended in
    `logits`, (B, C)."""

    def __init__(self, head: PooledHead, output: Tensor, logits: Tensor) -> None:
        self._head = head
        self.grids = {head.layer: head.grid.upright}
        self.activations = self.outputs = {head.layer: head.grid.apply(output)}
        self.reached: dict[str, Tensor] = {}
        self.logits = logits.float().clone().requires_grad_()
        """float32 (B, C), a copy of the head's logits: the leaf of every score's graph."""

    def backward(self, score: Tensor, *, retain_graph: bool = False) -> None:
        (of_logits,) = torch.autograd.grad(score, self.logits, retain_graph=retain_graph)
        ((layer, a),) = self.activations.items()
        weights = self._head.weights
        if of_logits.device.type == "cpu":
            # A class's logit depends on one row: the others' product is most of an explanation.
            (rows,) = of_logits.any(0).nonzero(as_tuple=True)
            of_logits, weights = of_logits[:, rows], weights[rows]
        means = of_logits @ weights / (a.shape[2] * a.shape[3])
        gradients = means[:, :, None, None].expand(a.shape)
        self.reached = {layer: gradients * (a > 0) if self._head.rectified else gradients}


def pooled_head(
    model: nn.Module, image: Tensor, layer: str, grid: Grid, reading: Reading = AUTO
) -> PooledHead:
    """Return the linear head (or 1 × 1 convolution) that reads the mean over positions of the
    layer's output and returns the logits.

    The head is recognised by its input and output in one forward pass, not by its name.

    Args:
        image: (1, C, H, W), on the model's device and in its dtype.
        grid: of the layer's output.
        reading: says where the logits are.

    Raises:
        MethodUnsuited: if the model has no such head.
    """
    given: dict[str, Tensor] = {}
    outputs: dict[str, Any] = {}

    def note(name: str, module: nn.Module, args: Any, output: Any) -> None:
        if args and isinstance(args[0], Tensor):
            given[name] = args[0]
        # A copy, because an in-place rectifier may follow.
        outputs[name] = output.clone() if isinstance(output, Tensor) else output

    modules = Modules(model)
    heads = [
        name
        for name, module in modules.items()
        if name and (isinstance(module, nn.Linear | nn.Conv2d) or is_quantised(module))
    ]
    noted = {name: modules[name] for name in (*heads, layer)}
    with evaluating(model), torch.no_grad(), hooked(noted, note):
        # A copy, because the model may change its input in place.
        logits = logits_of(model(image.clone()), reading, batch=len(image))
    if logits.ndim == 2 and isinstance(outputs.get(layer), Tensor):
        a = grid.apply(outputs[layer]).float()
        for name in reversed(heads):
            output = outputs.get(name)
            if not isinstance(output, Tensor) or output.numel() != logits.numel():
                continue
            if not output.is_floating_point() or not _equal(output, logits):
                continue
            read = given[name].flatten()
            weights = _weights(modules[name])
            if weights is None or not read.is_floating_point():
                continue
            if weights[0].numel() != read.numel():  # a larger window, or groups
                continue
            for rectified in (False, True):
                mean = (a.relu() if rectified else a).mean(dim=(2, 3)).flatten()
                if mean.shape == read.shape and _equal(mean, read):
                    rows = weights.flatten(1)
                    return PooledHead(layer, grid, rows, rectified)
    raise MethodUnsuited(
        f"cam needs a linear head that reads the mean of the layer: after {layer!r} this model "
        "does something else; gradcam needs no such head"
    )


def _weights(module: nn.Module) -> Tensor | None:
    """Return the weights of a linear layer or a convolution, float32 (C, K, …); None if they are
    not a floating-point tensor."""
    weights = weights_of(module)[0] if is_quantised(module) else module.weight
    if not isinstance(weights, Tensor) or not weights.is_floating_point():
        return None
    return weights.detach().float()


def _equal(one: Tensor, other: Tensor) -> bool:
    """Return whether the tensors are equal within the tolerance of the coarser dtype."""
    coarse = max(TOLERANCE, torch.finfo(one.dtype).eps, torch.finfo(other.dtype).eps)
    one, other = one.float().flatten(), other.float().flatten()
    return bool((one - other).abs().max() <= coarse * other.abs().max())


def cam(subject: Subject) -> Steps:
    """map = relu(Σ_k w_k A_k), w the class's row in a linear head that reads the mean of A over
    its positions; with a contrast, the difference of two rows. A head of one output has the row w
    for the positive class and −w for the negative one.

    Zhou et al., "Learning Deep Features for Discriminative Localization", CVPR 2016, equation 2.
    The paper has no relu; `signed` leaves it out. For models that apply a relu between the layer
    and the mean, such as DenseNet, A is rectified, too.

    Raises:
        MethodUnsuited: if the model has no such head, or if a target is not a class's logit.
    """
    head = pooled_head(subject.model, subject.image, subject.layer, subject.grid, subject.reading)
    weights = head.weights
    if len(weights) == 1:
        weights = torch.cat([-weights, weights])
    a = subject.activations()
    a = a.relu() if head.rectified else a
    rows = []
    for target in subject.targets:
        if not isinstance(target, ClassTarget) or target.of != "logit":
            raise MethodUnsuited("cam explains classes' logits: the weights of its head")
        row = weights[target.index]
        if target.minus is not None:
            row = row - weights[target.minus]
        rows.append(-row if target.against else row)
    yield Progress(1, 1)
    return Attribution(torch.einsum("tk,khw->thw", torch.stack(rows), a[0]))


def unsuited(trial: Trial, name: str) -> str | None:
    """Return why a model does not suit CAM at its default layer: see `Method.unsuited`.

    Raises:
        MethodUnsuited: the reason.
    """
    if trial.output.logits is None:
        return "it needs a classifier with a linear head"
    if trial.layer is None or trial.grid is None:
        return "it needs a default layer that a linear head reads"
    pooled_head(trial.model, trial.image, trial.layer, trial.grid, trial.reading)
    return None
