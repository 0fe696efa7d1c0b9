"""AttnLRP: layer-wise relevance propagation for transformers, by rules of this package."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import torch
from torch import Tensor, nn

from cam.errors import CamError, MethodUnsuited
from cam.hooks.inference import evaluating
from cam.methods.relevance_rules import RelevanceRules
from cam.methods.subject import Attribution, Steps, Subject
from cam.methods.trial import Trial
from cam.outputs.outputs import forward
from cam.outputs.reading import AUTO, Reading
from cam.progress import Progress
from cam.targets import ClassTarget

LINEAR: Final = 0.05
"""γ of linear layers, of the paper's maps of vision transformers."""
CONVOLUTION: Final = 0.25
"""γ of convolutions."""


def attnlrp(subject: Subject) -> Steps:
    """map = relu(Σ_c R_c), R = x ⊙ ∂y/∂x for the image x, where the backward pass of each operation
    is that of its rule: see `RelevanceRules`.

    Achtibat et al., "AttnLRP: Attention-Aware Layer-Wise Relevance Propagation for Transformers",
    ICML 2024: equations 8 to 15, and γ in linear layers and convolutions (section 3.3.1 and
    appendix) against the noise of vision transformers. Biases and the softmax keep a part, so the
    relevance does not add up to y.

    Raises:
        MethodUnsuited: if a target is a probability, if the model has no attention, or if the model
            or a target has an operation without a rule.
    """
    for target in subject.targets:
        if isinstance(target, ClassTarget) and target.of != "logit":
            raise MethodUnsuited("attnlrp shares out logits, and no probabilities")
    with _failures_told(), evaluating(subject.model), _rules(subject.model) as rules:
        slopes = subject.gradients(subject.image)[:, 0]
    _require_attention(rules)
    yield Progress(1, 1)
    return Attribution((slopes * subject.image[0].float()).sum(1))


def require_rules(model: nn.Module, image: Tensor, reading: Reading = AUTO) -> None:
    """Check that a model has AttnLRP for images like `image`, (1, C, H, W).

    Raises:
        MethodUnsuited: if it has none.
    """
    with (
        _failures_told(),
        torch.inference_mode(False),
        torch.enable_grad(),
        evaluating(model),
        _rules(model) as rules,
    ):
        forward(model, image.clone().requires_grad_(), reading)
    _require_attention(rules)


def unsuited(trial: Trial, name: str) -> None:
    """Check that a model suits AttnLRP: see `Method.unsuited`."""
    if not trial.stop:
        require_rules(trial.model, trial.image, trial.reading)


@contextmanager
def _failures_told() -> Iterator[None]:
    """Let what goes wrong while the rules stand in for a model's operations say so.

    Raises:
        MethodUnsuited: instead of an error that is not cam's.
    """
    try:
        yield
    except (CamError, torch.OutOfMemoryError):
        raise
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as error:
        raise MethodUnsuited(
            f"its rules do not fit this model: {type(error).__name__}: "
            f"{' '.join(str(error).split())[:200]}"
        ) from error


def _rules(model: nn.Module) -> RelevanceRules:
    return RelevanceRules(model, linear=LINEAR, convolution=CONVOLUTION)


def _require_attention(rules: RelevanceRules) -> None:
    """Check what a pass has met.

    Raises:
        MethodUnsuited: if it met no attention, or an operation without a rule.
    """
    if not rules.attends:
        raise MethodUnsuited("it needs attention: this model has none")
    rules.require_all()
