"""Let a transformer pass back relevance instead of gradients, for AttnLRP.

    with RelevanceRules(model) as rules:
        score = model(images)[0, 281]
        (slopes,) = torch.autograd.grad(score, images)
    relevance = images * slopes
    rules.foreign                            # operations that have no rule

No module is replaced: every function that the model calls in this thread gets the backward pass of
its rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from cam.errors import MethodUnsuited

PLAIN: Final = frozenset(
    {
        *("__get__", "__getitem__", "size", "dim", "numel", "clone", "contiguous", "float"),
        *("view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "permute"),
        *("transpose", "cat", "concat", "stack", "chunk", "split", "relu", "relu_", "dropout"),
        *("max_pool2d", "boolean_dispatch"),
    }
)
"""Functions through which relevance flows as the gradient does, whatever else they run."""
_LINEAR: Final = frozenset(
    {
        *("add", "add_", "__add__", "__radd__", "__iadd__", "sub", "sub_", "__sub__", "__rsub__"),
        *("__isub__", "rsub", "neg", "__neg__", "sum", "mean", "embedding", "fold"),
        *("avg_pool1d", "avg_pool2d", "adaptive_avg_pool1d", "adaptive_avg_pool2d", "max"),
        *("interpolate", "pad"),
        *("where", "masked_fill", "masked_scatter"),
        *("expand", "expand_as", "repeat", "repeat_interleave", "tile", "roll", "flip", "movedim"),
        *("narrow", "select", "index_select", "gather", "unbind", "unfold", "pixel_shuffle"),
        *("pixel_unshuffle", "tensor_split", "split_with_sizes", "view_as", "reshape_as", "t"),
        *("swapaxes", "to", "type", "type_as", "half", "bfloat16", "double", "__setitem__"),
        *("softmax", "dropout1d", "dropout2d", "relu6", "amax", "norm", "vector_norm"),
    }
)
"""Further ones. Softmax is one by equation 12 of the paper, and a norm is what a division by it
takes as a constant."""
_OF_FACTORS: Final = frozenset(
    {
        *("linear", "conv1d", "conv2d", "conv3d", "conv_transpose2d", "addmm"),
        "batch_norm",
        *("matmul", "__matmul__", "__rmatmul__", "bmm", "einsum"),
        *("mul", "__mul__", "__rmul__", "multiply", "mul_", "__imul__"),
        *("div", "__truediv__", "true_divide", "divide", "div_", "__itruediv__"),
    }
)
"""Linear if only one of the factors has a gradient."""
_ATTENTION: Final = ("scaled_dot_product_attention", "multi_head_attention_forward")
_ATTENDED: Final = ("query", "key", "value")
_PRODUCTS: Final = frozenset(
    {
        *("matmul", "__matmul__", "__rmatmul__", "bmm", "einsum"),
        *("mul", "__mul__", "__rmul__", "multiply"),
    }
)
_QUOTIENTS: Final = frozenset({"div", "__truediv__", "true_divide", "divide"})
_POWERS: Final = ("pow", "__pow__")
_ELEMENTWISE: Final = frozenset(
    {
        *("gelu", "silu", "mish", "sigmoid", "tanh", "hardtanh", "hardswish", "hardsigmoid"),
        *("leaky_relu", "elu", "selu", "celu", "softplus", "softsign", "logsigmoid"),
        *(*_POWERS, "square", "sqrt", "exp", "clamp", "clamp_min", "clip"),
    }
)
_ACTIVATIONS: Final = ("gelu", "silu", "swish", "mish")
"""What the names of classes have that compute one number of one number, 0 of 0, whichever functions
they do it by."""


class RelevanceRules(TorchFunctionMode):
    """A mode in which x ⊙ ∂y/∂x is the relevance of x for y (Achtibat et al., "AttnLRP:
    Attention-Aware Layer-Wise Relevance Propagation for Transformers", ICML 2024):

    - linear operations: R_i = Σ_j x_i w_ji R_j / z_j, with γ the rule γ (see `_Gamma`);
    - softmax: R_i = x_i (R_i − s_i Σ_j R_j), equation 12, which is its own gradient;
    - a product of two things that the model computes: half to each, equation 14, so a quarter to
      queries and keys and half to values;
    - functions of one number: R_i = R_j, equation 9; what they make of 0 is a bias;
    - normalisation: what it divides by is a constant, equation 15.

    Biases and softmax keep or add a part, so relevance does not add up to y. Within the block the
    model's parameters have no gradients.
    """

    def __init__(self, model: nn.Module, *, linear: float = 0, convolution: float = 0) -> None:
        """
        Args:
            linear, convolution: γ of the linear layers and of the convolutions; 0 for none.
        """
        super().__init__()
        self.foreign: set[str] = set()
        """The names of the functions without a rule through which a gradient flows."""
        self.attends = False
        """Whether some of the model's numbers are weighted by a softmax of others."""
        self._model = model
        self._gammas = {"linear": linear, "conv2d": convolution}
        self._given: list[Tensor] = []
        """Inputs of the activations that run at the moment."""
        self._scope = ExitStack()

    def __enter__(self) -> RelevanceRules:
        with ExitStack() as scope:
            for parameter in self._model.parameters():
                if parameter.requires_grad:
                    scope.callback(parameter.requires_grad_, True)
                    parameter.requires_grad_(False)
            for module in self._model.modules():
                if _is_activation(module):
                    scope.callback(module.register_forward_pre_hook(self._entered).remove)
                    scope.callback(module.register_forward_hook(self._left).remove)
            super().__enter__()  # type: ignore[no-untyped-call]
            self._scope = scope.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._scope.close()

    def require_all(self) -> None:
        """Check that every operation so far has a rule.

        Raises:
            MethodUnsuited: if there was one without; the message names it.
        """
        require_rules(self.foreign)

    def _entered(self, module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        self._given.append(given[0])
        return _unchanged(given)

    def _left(self, module: nn.Module, given: tuple[Any, ...], output: Tensor) -> Tensor:
        x = self._given.pop()
        return _by_ratio(x, output, torch.zeros_like(output[:0].sum())) if _is_live(x) else output

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = kwargs or {}
        name = getattr(func, "__name__", str(func))
        if self._given or not torch.is_grad_enabled() or name in PLAIN:
            return func(*args, **named)
        self.attends |= name in (*_ATTENTION, "softmax")
        if name in _ATTENTION:
            rest = dict(named)
            given = args[:3] + tuple(rest.pop(key) for key in _ATTENDED[len(args) :])
            return func(*_shared(given, (0.25, 0.25, 0.5)), *args[3:], **rest)
        if self._gammas.get(name) and _is_live(args[0]):
            return _Gamma.apply(self._gammas[name], func, args, dict(named), args[0])
        if name in _NORMS:
            return _NORMS[name](*args, **named)
        if name in _PRODUCTS and sum(map(_is_live, args)) > 1:
            return func(*_shared(args, (0.5,) * len(args)), **named)
        if name in _QUOTIENTS and _is_live(args[1]):
            return func(args[0], args[1].detach(), *args[2:], **named)
        if name == "rsqrt" or (name in _POWERS and _is_negative(*args[1:], **named)):
            return func(args[0].detach(), *args[1:], **named)
        live = sum(map(_is_live, _tensors([args, list(named.values())])))
        if live and name in _ELEMENTWISE:
            zero = func(torch.zeros_like(args[0][:0].sum()), *args[1:], **named)
            return _by_ratio(args[0], func(*_unchanged(args), **named), zero.detach())
        output = func(*args, **named)
        ruled = name in _LINEAR or (name in _OF_FACTORS and live == 1)
        if live and not ruled and any(map(_is_live, _tensors(output))):
            self.foreign.add(name)
        return output


def require_rules(foreign: set[str]) -> None:
    """Check that there are no operations without a rule.

    Raises:
        MethodUnsuited: if there are some; the message names them.
    """
    if foreign:
        raise MethodUnsuited(
            f"it needs a rule for each operation: {', '.join(sorted(foreign))} of this model has "
            "none"
        )


def _is_live(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


def _tensors(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)
    else:
        yield value


def _shared(values: tuple[Any, ...], parts: tuple[float, ...]) -> list[Any]:
    """Return the same numbers, which pass back a part of their gradients."""
    return [
        _Share.apply(value, part) if _is_live(value) else value
        for value, part in zip(values, parts, strict=True)
    ]


def _unchanged(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return arguments whose first may be changed in place, without a graph."""
    return args[0].detach().clone(), *args[1:]


def _is_negative(exponent: Any, **_: object) -> bool:
    """Return whether a power is what something is divided by, as in x · pow(mean(x²), −½)."""
    return not isinstance(exponent, Tensor) and exponent < 0


def _is_activation(module: nn.Module) -> bool:
    plain = not any(True for _ in module.children()) and not any(True for _ in module.parameters())
    return plain and any(name in type(module).__name__.lower() for name in _ACTIVATIONS)


def _by_ratio(x: Tensor, output: Tensor, zero: Tensor) -> Tensor:
    """Return the output of a function of each number of x, with its rise from `zero`, its value for
    0, over x as its slope."""
    still = x.detach()
    slope = torch.where(still == 0, 0, (output - zero) / still)
    return output + (x - still) * slope  # x - still is 0, with a gradient


class _Share(torch.autograd.Function):
    """The identity, which passes back a part of its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, part: float) -> Tensor:
        ctx.part = part
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Any:
        return slopes[0] * ctx.part, None


class _Gamma(torch.autograd.Function):
    """A linear operation with the rule γ for inputs of either sign (Andéol et al., "Learning
    Domain Invariant Representations by Joint Wasserstein Distance Minimization", 2021; zennit's
    `Gamma`): the weights whose products have the sign of the output count 1 + γ times."""

    @staticmethod
    def forward(
        ctx: Any,
        gamma: float,
        function: Callable[..., Tensor],
        args: tuple[Any, ...],
        named: dict[str, Any],
        x: Tensor,
    ) -> Tensor:
        def run(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
            rest = {key: value for key, value in named.items() if key not in ("weight", "bias")}
            return function(x, weight, bias, *args[3:], **rest)

        weight = args[1] if len(args) > 1 else named["weight"]
        bias = args[2] if len(args) > 2 else named.get("bias")
        ctx.run, ctx.gamma = run, gamma
        ctx.save_for_backward(x, weight, bias)
        return run(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Any:
        x, weight, bias = ctx.saved_tensors
        output = ctx.run(x, weight, bias)  # the one of the forward pass may be changed in place
        up = weight + ctx.gamma * weight.clamp(min=0)
        down = weight + ctx.gamma * weight.clamp(max=0)
        found = torch.zeros_like(x)
        for sign, of_positive, of_negative in ((1, up, down), (-1, down, up)):
            own = None if bias is None else bias + ctx.gamma * sign * (sign * bias).clamp(min=0)
            positive, negative = x.clamp(min=0).requires_grad_(), x.clamp(max=0).requires_grad_()
            with torch.enable_grad():
                total = ctx.run(positive, of_positive, own) + ctx.run(negative, of_negative, None)
            counts = (sign * output > 0) & (total != 0)
            share = torch.where(counts, slopes[0] * output / total.detach(), 0)
            at_positive, at_negative = torch.autograd.grad(total, [positive, negative], share)
            found += torch.where(x > 0, at_positive, 0) + torch.where(x < 0, at_negative, 0)
        return None, None, None, None, found


def _layer_norm(
    x: Tensor,
    shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *_: Any,
) -> Tensor:
    dims, wide = tuple(range(-len(shape), 0)), _widened(x)
    off = wide - wide.mean(dims, keepdim=True)
    spread = (off.detach() ** 2).mean(dims, keepdim=True)
    return _affine(off * torch.rsqrt(spread + eps), weight, bias).to(x.dtype)


def _group_norm(
    x: Tensor,
    groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    parts = x.reshape(len(x), groups, -1)
    normed = _layer_norm(parts, parts.shape[2:], eps=eps).reshape(x.shape)
    along = (-1, *(1,) * (x.ndim - 2))
    given = (None if each is None else each.reshape(along) for each in (weight, bias))
    return _affine(normed, *given)


def _rms_norm(
    x: Tensor, shape: Any, weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    dims, wide = tuple(range(-len(shape), 0)), _widened(x)
    power = (wide.detach() ** 2).mean(dims, keepdim=True)
    least = torch.finfo(x.dtype).eps if eps is None else eps
    return _affine(wide * torch.rsqrt(power + least), weight, None).to(x.dtype)


def _normalize(x: Tensor, p: float = 2, dim: int = 1, eps: float = 1e-12, **_: object) -> Tensor:
    length: Tensor = x.detach().norm(p, dim, keepdim=True)
    return x / length.clamp_min(eps)


def _widened(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    scaled = x if weight is None else x * weight
    return scaled if bias is None else scaled + bias


_NORMS: Final[dict[str, Callable[..., Tensor]]] = {
    "layer_norm": _layer_norm,
    "group_norm": _group_norm,
    "rms_norm": _rms_norm,
    "normalize": _normalize,
}
