"""Layer-wise relevance propagation (LRP), by zennit, for networks for which it has rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import replace
from importlib import import_module
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.overrides import TorchFunctionMode

from cam.errors import MethodUnsuited, to_install
from cam.hooks.inference import evaluating
from cam.methods.relevance_rules import PLAIN, require_rules
from cam.methods.subject import Attribution, Steps, Subject
from cam.methods.trial import Trial
from cam.outputs.outputs import forward
from cam.outputs.reading import AUTO, Reading
from cam.progress import Progress
from cam.targets import ClassTarget

TOLERANCE: Final = 0.05
"""Largest share of the score that may be lost on the way to the image, or be added. The ε of the
rules, and positions at which no input is positive, absorb a little."""
SAME: Final = 1e-3
"""Largest change of the logits by merging batch normalisations, relative to the largest: zennit
leaves their ε in place."""
_WEIGHTED: Final = (nn.Linear, _ConvNd, _BatchNorm)
_STATELESS: Final = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.Softplus),
    *(nn.MaxPool2d, nn.AdaptiveMaxPool2d),
    *(nn.Dropout, nn.Dropout2d, nn.Identity, nn.Flatten, nn.Unflatten),
)
"""Modules whose rule needs no inputs of theirs: the rules of the others know those of one call."""
_RULED: Final[tuple[type[nn.Module], ...]] = (
    *(nn.Linear, nn.Conv2d, nn.BatchNorm1d, nn.BatchNorm2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d),
    *_STATELESS,
)
"""Modules for which the composite has a rule, or that pass on relevance as they pass on numbers.
Their subclasses may compute something else."""


def lrp(subject: Subject) -> Steps:
    """map = relu(Σ_c R_c), R_j = Σ_k a_j w⁺_jk / (Σ_i a_i w⁺_ik) R_k from R = y on.

    a are a layer's inputs and w⁺ its positive weights (z⁺: Montavon et al., "Explaining NonLinear
    Classification Decisions with Deep Taylor Decomposition", Pattern Recognition 2017). That is the
    rule for convolutions, into which batch normalisations are merged. The first convolution
    distributes evenly (flat), and linear layers use all weights and add ε = 1e-6 to the sum (ε:
    Bach et al., "On Pixel-Wise Explanations …", PLoS ONE 2015, equation 58). Together they are
    zennit's `EpsilonPlusFlat` (Kohlbrenner et al., "Towards Best Practice in Explaining Neural
    Network Decisions with LRP", IJCNN 2020), without relevance for biases. Conservation: all
    relevance, of either sign, adds up to y, except for the ε.

    Raises:
        MethodUnsuited: if zennit is not installed, if a target is not one class's logit, if the
            model has an operation without a rule, or if more than `TOLERANCE` of the score is lost.
    """
    for target in subject.targets:
        if not isinstance(target, ClassTarget) or target.of != "logit" or target.minus is not None:
            raise MethodUnsuited("lrp shares out the logit of one class, and no other score")
    model = ruled(subject.model, subject.image, subject.reading)
    gradients = _propagated(replace(subject, model=model))
    yield Progress(1, 1)
    (scores,) = subject.scores(subject.image)
    sums = gradients.sum((1, 2, 3))  # of a score of 1, or of −1 for what speaks against a class
    _require_conserved(sums)
    relevance = gradients * (scores * sums.sign()).reshape(-1, 1, 1, 1)
    return Attribution.of_colours(relevance, scores)


def unsuited(trial: Trial, name: str) -> None:
    """Check that a model suits LRP: see `Method.unsuited`. Whether the score is conserved depends
    on the image.

    Raises:
        MethodUnsuited: see `lrp`.
    """
    if not trial.stop:
        ruled(trial.model, trial.image, trial.reading)


@torch.inference_mode(False)
def ruled(model: nn.Module, image: Tensor, reading: Reading = AUTO) -> nn.Module:
    """Return a copy of a model whose batch normalisations are merged into its convolutions, and
    whose residual blocks of torchvision add by a module. The model itself is not changed.

    Raises:
        MethodUnsuited: see `lrp`.
    """
    canonizer, layer = _zennit("torchvision").ResNetCanonizer, _zennit("layer")
    foreign = {
        type(module).__name__
        for module in model.modules()
        if (isinstance(module, _WEIGHTED) or not any(True for _ in module.children()))
        and type(module) not in _RULED
    }
    require_rules(foreign)
    for module in model.modules():
        if isinstance(module, _BatchNorm) and (module.weight is None or module.running_var is None):
            raise MethodUnsuited("it needs batch normalisations with weights and statistics")
    with evaluating(model), torch.no_grad():
        (output,) = forward(model, image.clone(), reading)
    if output.logits is None or output.kind not in ("classes", "value"):
        raise MethodUnsuited("it shares out the logit of a class: it needs a classifier")
    try:
        copied = deepcopy(model).eval()
    except (RuntimeError, TypeError) as error:
        raise MethodUnsuited(f"it changes a copy of the model, which has none: {error}") from None
    misplaced = MethodUnsuited(
        "it needs each batch normalisation right behind a convolution: this model has another one"
    )
    try:
        canonizer().apply(copied)
    except RuntimeError:  # the next module in the list has another number of channels
        raise misplaced from None
    for module in copied.modules():
        if isinstance(module, _BatchNorm):
            assert module.running_mean is not None  # see above
            if module.running_mean.any() or module.bias.any():
                raise misplaced
    with evaluating(copied), torch.no_grad():
        with _Functions(copied, (*_RULED, layer.Sum)) as functions:
            copied(image.clone())
        (changed,) = forward(copied, image.clone(), reading)
    require_rules(functions.foreign)
    assert changed.logits is not None
    off = (changed.logits - output.logits).abs().max()
    if not bool(off <= SAME * output.logits.abs().max()):
        raise MethodUnsuited("merging the batch normalisations changes the output of this model")
    return copied


def _propagated(subject: Subject) -> Tensor:
    """Return the relevance of each target's score, divided by the score: (targets, C, H, W)."""
    composite = _zennit("composites").EpsilonPlusFlat(zero_params=["bias"])
    with torch.inference_mode(False), torch.enable_grad(), composite.context(subject.model):
        return subject.gradients(subject.image)[:, 0]


def _require_conserved(sums: Tensor) -> None:
    """Check the sums of the relevance of scores of 1 or −1.

    Raises:
        MethodUnsuited: if one is off by more than `TOLERANCE`.
    """
    worst = float(sums[(sums.abs() - 1).abs().argmax()].abs())
    if not abs(worst - 1) <= TOLERANCE:
        raise MethodUnsuited(
            f"lrp is to share out the whole score, and what arrives at the photo is {worst:.0%} of "
            "it: the rules do not fit this model"
        )


def _zennit(module: str) -> Any:
    """Return a module of zennit.

    Raises:
        MethodUnsuited: if zennit is not installed.
    """
    try:
        return import_module(f"zennit.{module}")
    except ImportError:
        raise MethodUnsuited(f"it needs the package zennit; {to_install('lrp')}") from None


class _Functions(TorchFunctionMode):
    """Notes the functions without a rule that a model runs outside the modules that have one, and
    further calls of a module whose rule knows the inputs of one call alone."""

    def __init__(self, model: nn.Module, ruled: tuple[type[nn.Module], ...]) -> None:
        super().__init__()
        self.foreign: set[str] = set()
        self._inside = 0
        self._ran: set[nn.Module] = set()
        self._modules = [module for module in model.modules() if isinstance(module, ruled)]
        self._hooks = ExitStack()

    def __enter__(self) -> _Functions:
        for module in self._modules:
            self._hooks.callback(module.register_forward_pre_hook(self._entered).remove)
            self._hooks.callback(module.register_forward_hook(self._left).remove)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._hooks.close()

    def _entered(self, module: nn.Module, args: Any) -> None:
        self._inside += 1
        if module in self._ran and not isinstance(module, _STATELESS):
            self.foreign.add(f"a second call of {type(module).__name__}")
        self._ran.add(module)

    def _left(self, module: nn.Module, args: Any, output: Any) -> None:
        self._inside -= 1

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name = getattr(func, "__name__", str(func))
        if not self._inside and name not in PLAIN:
            self.foreign.add(name)
        return func(*args, **(kwargs or {}))
