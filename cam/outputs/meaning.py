"""What a model's outputs mean: logits, probabilities, values or features; found out by running it.

    reading, reason = resolve_reading(model, image)
    reading.activation                                 # "none": the outputs are probabilities

The values of the outputs decide, for several images and for changed layers, because probabilities
are made in many ways: by a softmax that is clamped, by an ensemble, by thresholds, by a hierarchy.
The results are stored for as long as the model exists.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, Final
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node

from cam.counts import counted
from cam.errors import UnsuitedActivation
from cam.hooks.inference import evaluating
from cam.outputs.kind import kinds
from cam.outputs.output import Output
from cam.outputs.outputs import one_each, outputs_of, size_of
from cam.outputs.reading import (
    AUTO,
    Activation,
    Meaning,
    Reading,
    activation_for,
    are_shares,
    features_of,
    logits_of,
)

SCALES: Final = (1.0, 0.1, 10.0)
"""Standard deviations of the images of noise for which the values of the outputs are judged."""
NOISE: Final = (1.0, 1e2, 1e4)
"""Standard deviations of the noise that is added to the outputs of layers. One of them is large
enough to carry logits out of 0 … 1, whatever their temperature."""
HUGE: Final = (1e2, 1e4, 1e6)
"""Standard deviations of images of noise that saturate probabilities."""
RESHAPING: Final = frozenset(
    {"Alias", "AsStrided", "Clone", "Expand", "Index", "Permute", "ReshapeAlias", "Select", "Slice"}
    | {"Split", "Squeeze", "T", "ToCopy", "Transpose", "Unbind", "UnsafeView", "Unsqueeze", "View"}
)
"""Operations that only select, reorder and copy numbers, by their autograd names."""
AVERAGING: Final = frozenset(
    {"Add", "Cat", "Clamp", "ClampMin", "ClampMax", "Cumprod", "Div", "Mean", "Mul", "Rsub"}
    | {"Stack", "Sub", "UpsampleBilinear2D", "UpsampleNearest2D"}
)
"""Operations that compute a mean of an ensemble, (1 - p, p), differences and products of
probabilities, or that bound and enlarge them."""
POOLING: Final = frozenset(
    {"AdaptiveAvgPool2D", "AdaptiveMaxPool2D", "AvgPool2D", "MaxPool2DWithIndices", "Mean"}
)
NORMALISING: Final = frozenset(
    {"CudnnBatchNorm", "NativeBatchNorm", "NativeGroupNorm", "NativeLayerNorm"}
)
RECTIFYING: Final = frozenset(
    {"Elu", "Gelu", "HardTanh", "Hardswish", "LeakyRelu", "Mish", "Relu", "Silu", "Threshold"}
)
"""Activations that follow a normalisation in a feature extractor."""
VALUES: Final = {"Tanh": "a tanh"}
POSITIVE: Final = {"Exp": "an exponential", "Relu": "a rectifier", "Softplus": "a softplus"}
"""Operations that make values and no logits, by their autograd names. Those of `POSITIVE` do so for
a single output: the evidence for several classes may be positive, too."""
SURE: Final = 20.0
"""Largest absolute value of a model's only output for all images, if it is a logit."""
WIDTH: Final = 16
"""Numbers of channels of feature extractors are multiples of it; numbers of classes seldom are."""
HEADS: Final = ("fc", "head", "heads", "classifier", "last_linear")
"""Names of the heads of torchvision's and timm's models."""

Known = tuple[Reading, str]
_KNOWN: WeakKeyDictionary[nn.Module, dict[Any, Known]] = WeakKeyDictionary()
"""Model → the resolved readings, by the reading that was given and by the model's structure."""


def resolve_reading(
    model: nn.Module, image: Tensor, reading: Reading = AUTO
) -> tuple[Reading, str]:
    """Return the reading with its activation and meaning resolved, and the reason as half a
    sentence.

    An activation other than `auto` is kept, and a tensor is then no features; if it is `none`,
    outputs outside 0 … 1 are values.
    Otherwise the first of these rules that applies decides:

    - the outputs of a detector are probabilities;
    - a model without a head has features: an output of Hugging Face's without logits, a tensor
      that is one of its entries, or that of a model whose head is an identity; outputs of length 1,
      as embeddings have; or a multiple of 16 channels behind a normalisation, without a layer
      with weights between;
    - the activation is `none` if the outputs of several images are all in 0 … 1 and there is
      evidence that they always are: the graph of the outputs ends in softmaxes or sigmoids; they
      add up to 1 over the classes; or they stay in 0 … 1 if noise is added inside the model;
    - `config.problem_type` of Hugging Face's classifier: `multi_label_classification` is `sigmoid`,
      and the outputs of a `regression` are values;
    - a single output outside 0 … 1 that is made of sigmoids or softmaxes is a value; so are the
      outputs of a tanh, and a single one of an exponential, a rectifier or a softplus;
    - the activation is `sigmoid` for one output, else `softmax`. For log-probabilities it is
      `softmax`, too, which is correct.

    This takes one forward pass with a graph for logits, and up to ten more if the outputs are in
    0 … 1. The model and torch's random state are restored afterwards, and the result is stored
    until the model has other modules.

    Args:
        image: float (1, C, H, W), on the model's device and in its dtype.

    Raises:
        NotLogits: see `outputs_of`.
        UnsuitedActivation: if the activation does not fit the outputs, if they are made of
            probabilities and are outside 0 … 1, if some of them are made of probabilities and
            others are not, if a single one is beyond ±20 for every image, or if they have the
            shape of the image and nothing says that they are scores of classes.
    """
    if reading.resolved:
        return reading, "it was given"
    key = (reading, tuple((type(module), _problem_type(module)) for module in model.modules()))
    known = _KNOWN.setdefault(model, {})
    if key not in known:
        devices = [image.device] if image.device.type == "cuda" else []
        with evaluating(model), torch.inference_mode(False), torch.random.fork_rng(devices):
            activation, meaning, reason = _Trial(model, image, reading).judge()
        known[key] = replace(reading, activation=activation, meaning=meaning), reason
    return known[key]


class _Trial:
    """Forward passes of a model, from which the meaning of its outputs is told."""

    def __init__(self, model: nn.Module, image: Tensor, reading: Reading) -> None:
        self.model, self.image, self.reading = model, image, reading
        self.problem: str | None = None
        """`problem_type` of Hugging Face's classifier whose logits the model returns."""

    def judge(self) -> tuple[Activation, Meaning, str]:
        with torch.enable_grad(), _returned(self.model) as returned:
            # The model may change its input in place, which a leaf does not allow: a clone.
            raw = self.model(self.image.detach().clone().requires_grad_().clone())
        size, count = size_of(self.image), len(self.image)
        said = outputs_of(raw, size=size, reading=self.reading, batch=count, model=self.model)
        one_each(said, self.image)
        if not self.reading.named and self.reading.activation == "auto":
            self._check_picture(said[0])
        if kind := kinds().get(said.kind):
            return "none", "classes", kind.reason
        given = self.reading.activation != "auto" and isinstance(raw, Tensor)
        known = given or self.reading.output is not None
        if not known and (evidence := _headless(self.model, raw, returned)):
            return "none", "features", evidence
        logits = logits_of(raw, self.reading, batch=count)
        if self.reading.activation != "auto":
            return self._given(self.reading.activation, logits)
        ending, computed = _ending(logits.grad_fn), _computed(logits.grad_fn)
        last = "" if computed is None else operation_of(computed)
        if logits.ndim == 2 and (values := VALUES.get(last)):
            return "none", "value", f"the model ends in {values}, which makes no logits"
        if logits.grad_fn is not None and operation_of(logits.grad_fn) == "LogSigmoid":
            raise UnsuitedActivation(
                "the model ends in a logsigmoid, and no activation turns its outputs into "
                "probabilities; let it return what goes into the logsigmoid"
            )
        for module, value in returned.items():
            if _is_like(value, logits):
                self.problem = _problem_type(module)
        images = self._in_range(logits.detach())
        if images and (reason := self._evidence(ending, images)):
            return "none", "classes", reason
        if _is_joined(logits.grad_fn):
            raise UnsuitedActivation(
                "some of the model's outputs are probabilities, behind a softmax or a sigmoid, and "
                "the others are not: let it return one kind, or name one of them with output"
            )
        told = f"its configuration has problem_type = {self.problem!r}"
        if self.problem == "multi_label_classification":
            return "sigmoid", "classes", told
        if self.problem == "regression":
            return "none", "value", told
        single = logits.shape[1] == 1
        if logits.ndim == 2 and single and (values := POSITIVE.get(last)):
            return "none", "value", f"the model ends in {values}, which makes no logits"
        if single and logits.ndim == 2 and not ending:
            self._check_lone(logits.detach())
        if ending and single and logits.ndim == 2 and not images:
            return "none", "value", f"its output is outside 0 … 1, though it ends in a {ending}"
        if ending and not single and not images and logits.isfinite().all():
            least, most = (float(end) for end in logits.detach().aminmax())
            raise UnsuitedActivation(
                f"the model ends in a {ending}, but its outputs are from {least:.3g} to {most:.3g} "
                "and not in 0 … 1, such as percentages: let it return the probabilities, or say "
                "with activation that the outputs are logits"
            )
        if isinstance(raw, Tensor) and logits.shape[1] % WIDTH == 0:
            if _is_normalised(logits.grad_fn):
                return "none", "features", "it ends in a normalisation, and no layer follows"
            if logits.ndim == 2 and self._has_length_1(logits.detach()):
                return "none", "features", "its output is a vector of length 1"
        reason = "the model's output has one logit" if single else _SEVERAL
        return activation_for(logits.shape[1], self.reading), "classes", reason

    def _given(self, activation: Activation, logits: Tensor) -> tuple[Activation, Meaning, str]:
        """Return the meaning of outputs whose activation was given as `none`."""
        if self._in_range(logits.detach()):
            return activation, "classes", "it was given"
        if logits.ndim == 2:
            return activation, "value", "it was given, and the outputs are outside 0 … 1"
        raise UnsuitedActivation(
            "the outputs at the pixels are not all in 0 … 1, so they are not probabilities; the "
            "activation of such a segmenter is softmax or sigmoid"
        )

    def _in_range(self, first: Tensor) -> list[Tensor]:
        """Return the finite outputs for several images, if all of them are in 0 … 1; else none.

        Args:
            first: the outputs for the image that was given.
        """
        outputs: list[Tensor] = []
        for turn, scale in enumerate((None, *SCALES)):
            values = first if scale is None else self._outputs(self._noise(scale, turn))
            if values is None or not values.isfinite().all():
                continue
            if not _are_shares(values):
                return []
            outputs.append(values)
        return outputs

    def _evidence(self, ending: str | None, images: Sequence[Tensor]) -> str | None:
        """Return the reason why outputs that are in 0 … 1 for several images always are, as half a
        sentence; None if there is none."""
        if ending:
            return f"the model ends in a {ending}"
        if images[0].shape[1] > 1 and all(_add_up(rows) for rows in images):
            return "its outputs are in 0 … 1 and add up to 1 over the classes"
        if self._bounded() or self._saturates():
            return "its outputs stay in 0 … 1, whatever the numbers inside the model are"
        return None

    def _bounded(self) -> bool:
        """Return whether the outputs change and stay in 0 … 1 if noise is added to the output of
        every layer that has parameters."""
        image = self.image if self.image.isfinite().all() else self._noise(1.0, 0)
        moved = False
        # Where the outputs for the one image are saturated, those for the faint one may not be.
        for base in (image, self._noise(min(SCALES), 0)):
            plain = self._outputs(base)
            for turn, scale in enumerate(NOISE):
                for sign in (1, -1):
                    with _disturbed(self.model, sign * scale):
                        torch.manual_seed(turn)
                        values = self._outputs(base)
                    if values is None or plain is None or not values.isfinite().all():
                        continue
                    if not _are_shares(values):
                        return False
                    moved |= bool((values - plain).abs().max() > 1e-3)
            if moved:
                break
        return moved

    def _saturates(self) -> bool:
        """Return whether the outputs for images of huge values reach both ends of 0 … 1 and do not
        leave it: the evidence for a model whose layers run no hooks, as TorchScript's."""
        if any(_is_layer(module) for module in self.model.modules()):
            return False
        outputs = [self._outputs(self._noise(scale, turn)) for turn, scale in enumerate(HUGE)]
        finite = [values for values in outputs if values is not None and values.isfinite().all()]
        if not finite or not all(map(_are_shares, finite)):
            return False
        values = torch.cat(finite)
        return bool(values.min() < 0.01) and bool(values.max() > 0.99)

    def _check_lone(self, first: Tensor) -> None:
        """Check that a model's only output can be a logit.

        Raises:
            UnsuitedActivation: if it makes a probability of 0 or of 1 for every image.
        """
        outputs = [first, *(self._outputs(self._noise(1.0, turn)) for turn in range(2))]
        numbers = torch.cat([values.float().flatten() for values in outputs if values is not None])
        if numbers.isfinite().all() and (numbers.min() > SURE or numbers.max() < -SURE):
            least, most = float(numbers.min()), float(numbers.max())
            raise UnsuitedActivation(
                f"the model's only output is from {least:.4g} to {most:.4g} for several images, "
                "which as a logit would be the same class for all, with a probability of 1: say "
                "with activation whether it is a value (none) or a logit (sigmoid)"
            )

    def _check_picture(self, said: Output) -> None:
        """Check that the output is not a picture, as that of an autoencoder.

        Raises:
            UnsuitedActivation: if it has as many channels as the input, at its size.
        """
        shape = None if said.segments is None else tuple(said.segments.shape)
        if shape == tuple(self.image.shape[1:]) and shape[0] > 1:
            raise UnsuitedActivation(
                f"the model's output has the shape of its input, {shape}, as a picture has that an "
                f"autoencoder makes: if it has scores of {counted(shape[0], 'class', 'classes')} "
                "at each pixel, say so with activation (softmax or sigmoid), or name the classes"
            )

    def _has_length_1(self, first: Tensor) -> bool:
        """Return whether the outputs are a vector of length 1, as embeddings are."""
        other = self._outputs(self._noise(1.0, 0))
        return other is not None and all(
            bool(((rows.float().norm(dim=1) - 1).abs() < 1e-3).all()) for rows in (first, other)
        )

    def _noise(self, scale: float, seed: int) -> Tensor:
        """Return an image of noise, which is the same on every device."""
        rng = torch.Generator().manual_seed(seed)
        return scale * torch.randn(self.image.shape, generator=rng).to(self.image)

    def _outputs(self, image: Tensor) -> Tensor | None:
        """Return the outputs for an image, (1, outputs, …); None if the model fails on it."""
        try:
            with torch.no_grad():
                raw = self.model(image.clone())
            return logits_of(raw, self.reading, batch=len(image)).detach()
        except Exception:  # a model may raise anything on images that are not photos
            return None


_SEVERAL: Final = "the model has several outputs and does not end in a softmax or sigmoid"


def _are_shares(values: Tensor) -> bool:
    """Return whether finite values are in 0 … 1, up to rounding."""
    return are_shares(values, max(1e-5, 2 * torch.finfo(values.dtype).eps))


def _add_up(values: Tensor) -> bool:
    """Return whether values (1, outputs, …) add up to 1 over the outputs, up to rounding."""
    slack = max(1e-3, 2 * torch.finfo(values.dtype).eps)
    return bool(((values.float().sum(1) - 1).abs() <= slack).all())


def _is_layer(module: nn.Module) -> bool:
    """Return whether a module computes with parameters of its own and runs hooks."""
    return not isinstance(module, torch.jit.ScriptModule) and any(
        parameter is not None and parameter.is_floating_point()
        for parameter in module._parameters.values()
    )


@contextmanager
def _disturbed(model: nn.Module, scale: float) -> Iterator[None]:
    """Add noise of this standard deviation to the output of every layer, in the block."""

    def disturb(module: nn.Module, args: Any, output: Any) -> Any:
        if not isinstance(output, Tensor) or not output.is_floating_point():
            return None
        return output + scale * torch.randn_like(output)

    with ExitStack() as scope:
        for module in model.modules():
            if module is not model and _is_layer(module):
                scope.callback(module.register_forward_hook(disturb).remove)
        yield


def _problem_type(module: nn.Module) -> str | None:
    """Return `problem_type` of the configuration of a model of Hugging Face."""
    problem = getattr(vars(module).get("config"), "problem_type", None)
    return problem if isinstance(problem, str) else None


@contextmanager
def _returned(model: nn.Module) -> Iterator[dict[nn.Module, Any]]:
    """Yield a dictionary that a forward pass in the block fills with the outputs of the model's
    parts that may be whole models: of those that have a configuration, and of the heads."""
    returned: dict[nn.Module, Any] = {}

    def note(module: nn.Module, args: Any, output: Any) -> None:
        returned[module] = output

    with ExitStack() as scope:
        for name, module in model.named_modules():
            if isinstance(module, torch.jit.ScriptModule):
                continue
            ends = {name.partition(".")[0], name.rpartition(".")[2]}
            if "config" in vars(module) or ends & {*HEADS} or _is_without_classes(module):
                scope.callback(module.register_forward_hook(note).remove)
        yield returned


def _is_like(value: Any, logits: Tensor) -> bool:
    """Return whether what a part of the model returned holds logits of the shape of the model's."""
    if isinstance(value, Tensor):
        return False
    try:
        return logits_of(value).shape == logits.shape
    except Exception:  # it may be of any class
        return False


def _headless(model: nn.Module, raw: Any, returned: dict[nn.Module, Any]) -> str | None:
    """Return the reason why a model's output is features, as half a sentence; None if it is not."""
    if features_of(raw):
        return "the output holds features and no logits"
    if not isinstance(raw, Tensor):
        return None
    if _is_without_classes(model):
        return "the model was made with num_classes = 0"
    for module, value in returned.items():
        whole = isinstance(value, Tensor) and _shares_memory(value, raw)
        if whole and _is_without_classes(module):
            return f"its {type(module).__name__} was made with num_classes = 0"
        if any(_shares_memory(feature, raw) for feature in features_of(value)):
            return f"the output is the features that {type(module).__name__} returns"
        is_head = isinstance(module, nn.Identity) and isinstance(value, Tensor)
        if is_head and _shares_memory(value, raw) and _is_pooled(raw.grad_fn):
            return "its head is an identity"
    return None


def _is_without_classes(module: nn.Module) -> bool:
    return getattr(module, "num_classes", None) == 0


def _shares_memory(one: Tensor, other: Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def _is_pooled(node: Node | None) -> bool:
    """Return whether the graph up to this node ends in a pooling or a normalisation."""
    node = _computed(node)
    return node is not None and operation_of(node) in POOLING | NORMALISING


def _is_normalised(node: Node | None) -> bool:
    """Return whether all ways in the graph up to this node lead to a normalisation through
    operations without weights."""
    while node is not None:
        operation = operation_of(node)
        if operation in NORMALISING:
            return True
        if operation not in RESHAPING | AVERAGING | POOLING | RECTIFYING:
            return False
        before = [parent for parent, _ in node.next_functions if parent is not None]
        if not all(map(_is_normalised, before[1:])):
            return False
        node = before[0] if before else None
    return False


def _is_joined(node: Node | None) -> bool:
    """Return whether the graph up to this node joins probabilities and other outputs."""
    node = _computed(node)
    if node is None or operation_of(node) not in ("Cat", "Stack"):
        return False
    kinds = {_ending(parent) is None for parent, _ in node.next_functions if parent is not None}
    return len(kinds) > 1


def operation_of(node: Node) -> str:
    """Return autograd's name of the operation behind a node: "Softmax" for SoftmaxBackward0."""
    return node.name().rpartition("::")[2].partition("Backward")[0].lstrip("_")


def _computed(node: Node | None) -> Node | None:
    """Return the last node of the graph up to this one that computes numbers."""
    while node is not None and operation_of(node) in RESHAPING:
        node = node.next_functions[0][0]
    return node


def _ending(node: Node | None) -> str | None:
    """Return `softmax` or `sigmoid` if the graph up to this node ends in one, else None."""
    if node is None:
        return None
    operation = operation_of(node)
    if operation in ("Softmax", "Sigmoid"):
        return operation.lower()
    before = [parent for parent, _ in node.next_functions if parent is not None]
    if operation == "Exp" and before and operation_of(before[0]) == "LogSoftmax":
        return "softmax"
    if operation in RESHAPING | AVERAGING and before:
        endings = [_ending(parent) for parent in before]
        return None if None in endings else endings[0]
    return None
