"""FullGrad: the score is distributed over the input and every bias of the network."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from cam.errors import MethodUnsuited
from cam.hooks.grids import Grid, Size
from cam.hooks.inference import alone
from cam.hooks.quantised import is_quantised, weights_of
from cam.methods.subject import Attribution, Steps, Subject, gradient_at
from cam.methods.trial import Trial
from cam.positions.locate import locate
from cam.progress import Completeness, Progress

_EPSILON = 1e-5
"""ε of a frozen batch normalisation without an `eps` attribute, as in Hugging Face's DETR."""
_CONVOLUTIONS = (nn.Conv2d, nn.ConvTranspose2d)
_WITHOUT = (nn.LayerNorm, nn.GroupNorm, _InstanceNorm, nn.RMSNorm)
"""Normalisations that have no constant bias: the mean that they subtract, or the scale by which
they divide, depends on the image."""


def fullgrad(subject: Subject) -> Steps:
    """map = Σ_c ψ(|X ⊙ ∂y/∂X|)_c + Σ_l Σ_k ψ(|b_l ⊙ ∂y/∂Z_l|)_k over the layers l that add a bias
    b_l to their feature maps Z_l (a batch normalisation adds β − γ μ/σ); ψ min-max scales over a
    layer and resizes to the image.

    Srinivas & Fleuret, "Full-Gradient Representation", NeurIPS 2019, equation 5 and section 4,
    with the authors' ψ; pytorch-grad-cam scales each channel separately. Completeness
    (proposition 1): X · ∂y/∂X + Σ_l b_l · ∂y/∂Z_l = y, for a network of rectifiers.

    Raises:
        MethodUnsuited: if no convolution or batch normalisation of the model has a bias, if the
            model has a normalisation without a constant bias, or if a layer is TorchScript.
    """
    require_biases(subject.model)
    maps, complete = [], []
    with torch.inference_mode(False), torch.enable_grad(), _biased(subject.model) as at:
        probe = subject.image.detach().clone().requires_grad_()
        scores = subject.scores_of(subject.outputs(probe))[0]
        located = locate(subject.model, subject.image, at)
        for score in scores:
            for _, gradients in at.values():
                gradients.clear()
            g = gradient_at(probe, score)
            share = (g * subject.image).float()
            total, attributed = _spread(share, None, subject.size), float(share.sum())
            for name, (bias, gradients) in at.items():
                for gradient in gradients:
                    share = (bias * gradient).float()
                    attributed += float(share.sum())
                    if share.ndim == 4:
                        total = total + _spread(share, located.grid(name), subject.size)
            maps.append(total)
            complete.append(Completeness(attributed, float(score.detach())))
    yield Progress(1, 1)
    return Attribution(torch.stack(maps), tuple(complete))


def require_biases(model: nn.Module) -> None:
    """Check that FullGrad can distribute a score over the biases of the model.

    Raises:
        MethodUnsuited: if it cannot; see `fullgrad`.
    """
    modules = list(model.modules())
    if any(isinstance(module, torch.jit.ScriptModule) for module in modules):
        raise MethodUnsuited("it needs hooks on all layers: some are TorchScript, which runs none")
    if any(isinstance(module, _WITHOUT) for module in modules):
        raise MethodUnsuited(
            "it needs a convolutional network without layer, group or instance normalisation"
        )
    if not any(bias.ndim == 4 for module in modules if (bias := _bias(module)) is not None):
        raise MethodUnsuited("it needs convolutions with biases: this model has none")


def _spread(share: Tensor, grid: Grid | None, size: Size) -> Tensor:
    """Return Σ_k ψ(|share|)_k: (1, K, h, w) → (H, W)."""
    values = share.abs()
    low, high = values.min(), values.max()
    values = (values - low) / (high - low).clamp(min=1e-20)
    # Summing and resizing are both linear. To sum first is cheaper.
    total = values.sum(1, keepdim=True)
    if grid is None:
        return interpolate(total, size=size, mode="bilinear")[0, 0]
    return grid.enlarge(grid.apply(total), size)[0, 0]


@contextmanager
def _biased(model: nn.Module) -> Iterator[dict[str, tuple[Tensor, list[Tensor]]]]:
    """Yield a dictionary: module name → its bias and the list of gradients at its output.

    The bias is shaped to multiply the gradients. Every backward pass appends to the lists.
    """
    at: dict[str, tuple[Tensor, list[Tensor]]] = {}

    def note(name: str, bias: Tensor, output: Any) -> None:
        if isinstance(output, Tensor) and output.requires_grad:
            if output.ndim == 2:  # a normalisation of vectors
                bias = bias.flatten()
            _, gradients = at.setdefault(name, (bias, []))
            # The hook is set before an in-place rectifier can change the output, so the gradient
            # is that of the output before the rectifier.
            output.register_hook(gradients.append)  # type: ignore[no-untyped-call]

    def after(name: str, bias: Tensor, module: nn.Module, args: Any, output: Any) -> None:
        note(name, bias, output)

    def before(name: str, bias: Tensor, module: nn.Module, args: Any) -> None:
        note(name, bias, args[0])

    with alone(model), ExitStack() as scope:
        for name, module in model.named_modules():
            bias = _bias(module)
            if bias is None:
                continue
            inner = next(module.children(), None) if _normalises(module) else None
            if inner is None:
                handle = module.register_forward_hook(partial(after, name, bias))
            else:  # timm's normalisations contain their activation: its input is their output
                handle = inner.register_forward_pre_hook(partial(before, name, bias))
            scope.callback(handle.remove)
        yield at


def _normalises(module: Any) -> bool:
    """Return whether the module is a batch normalisation with stored statistics.

    It may be torch's, or the frozen one of torchvision, timm, Detectron2 or Hugging Face's DETR,
    each of which is a separate class.
    """
    statistics = (getattr(module, "running_mean", None), getattr(module, "running_var", None))
    known = isinstance(module, _BatchNorm) or "FrozenBatchNorm" in type(module).__name__
    return known and all(isinstance(statistic, Tensor) for statistic in statistics)


def _bias(module: Any) -> Tensor | None:
    """Return what the module adds, (1, K, 1, 1), or (K,) for a linear layer; None if it adds
    nothing."""
    if _normalises(module):
        scale = (module.running_var + getattr(module, "eps", _EPSILON)).rsqrt()
        if module.weight is not None:
            scale = scale * module.weight
        added = -module.running_mean * scale
        if module.bias is not None:
            added = added + module.bias
        shaped: Tensor = added.detach()[None, :, None, None]
        return shaped
    if is_quantised(module):
        return weights_of(module)[1]
    bias = getattr(module, "bias", None)
    if isinstance(bias, Tensor) and isinstance(module, _CONVOLUTIONS):
        return bias.detach()[None, :, None, None]
    if isinstance(bias, Tensor) and isinstance(module, nn.Linear):
        return bias.detach()
    return None


def unsuited(trial: Trial, name: str) -> None:
    """Check that a model suits FullGrad: see `Method.unsuited`."""
    require_biases(trial.model)
