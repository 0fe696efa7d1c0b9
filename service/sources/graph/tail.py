"""Operations of an OpenVINO network, run by torch, so that gradients pass through them.

Operations with constant weights become `nn.Linear` and `nn.Conv2d`, which a search for a linear
head recognises. The operations are those that stand between the last feature map of a classifier
and its logits, and in the last block of a transformer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    import openvino

Run = Callable[..., Any]
SIMPLE: Final[dict[str, Run]] = {
    "Abs": torch.abs,
    "Add": torch.add,
    "Divide": torch.div,
    "Erf": torch.erf,
    "Exp": torch.exp,
    "HSwish": functional.hardswish,
    "HSigmoid": functional.hardsigmoid,
    "Log": torch.log,
    "Maximum": torch.maximum,
    "Minimum": torch.minimum,
    "Mish": functional.mish,
    "Multiply": torch.mul,
    "Negative": torch.neg,
    "Power": torch.pow,
    "Relu": torch.relu,
    "Sigmoid": torch.sigmoid,
    "SoftPlus": functional.softplus,
    "Sqrt": torch.sqrt,
    "Subtract": torch.sub,
    "Tanh": torch.tanh,
}
"""Operations that torch has under another name, without attributes."""
MANY: Final = 4096
"""Most operations that are run by torch one after the other."""


class UnknownOperation(Exception):
    """An operation, or one of its options, is not one that torch can run here."""


class Operations(nn.Module):
    """The operations that lead from one tensor of a network to another.

    Args:
        operations: in an order in which each follows those that it reads.
        start, end: the tensors, (B, …), that are the input and the output.

    Raises:
        UnknownOperation: if one of them cannot be run by torch.
    """

    def __init__(
        self, operations: Sequence[openvino.Node], start: openvino.Output, end: openvino.Output
    ) -> None:
        super().__init__()
        self._start, self._end = _key(start), _key(end)
        self._steps: list[tuple[Run, list[Any], list[str]]] = []
        linear: dict[str, nn.Linear | nn.Conv2d] = {}
        if len(operations) > MANY:
            raise UnknownOperation(f"{len(operations)} operations are too many")
        for operation in operations:
            given = [_constant(source) for source in operation.input_values()]
            sources = [_key(source) for source in operation.input_values()]
            own = [_key(output) for output in operation.outputs()]
            if self._pool_first(operation, sources, own, linear):
                continue
            if (before := _with_bias(operation, given, linear)) is not None:
                linear[own[0]] = linear[before]
                self._steps.append((_same, [before], own))
                continue
            run = _built(operation, given)
            reads: list[Any] = [
                source if value is None else value
                for source, value in zip(sources, given, strict=True)
            ]
            if isinstance(run, nn.Linear | nn.Conv2d):
                self.add_module(f"{len(linear)}", run)
                linear[own[0]] = run
                reads = reads[:1]
            self._steps.append((run, reads, own))

    def _pool_first(
        self,
        operation: openvino.Node,
        sources: Sequence[str],
        own: Sequence[str],
        linear: dict[str, nn.Linear | nn.Conv2d],
    ) -> bool:
        """Run a mean over all positions before the 1 × 1 convolution that it reads, as a linear
        layer: the numbers are the same, and a linear head is recognised. Return whether the
        operation is such a mean."""
        if not is_mean_of_classes(operation):
            return False
        layer = linear.get(sources[0])
        if not isinstance(layer, nn.Conv2d):
            return False
        (reads,) = (reads for run, reads, _ in self._steps if run is layer)
        # Without the convolution, and the sum with its bias, which nothing else reads.
        self._steps = [
            step for step in self._steps if step[0] is not layer and step[2][0] != sources[0]
        ]
        head = nn.Linear(layer.in_channels, layer.out_channels, bias=layer.bias is not None)
        head.weight = nn.Parameter(layer.weight.flatten(1), requires_grad=False)
        if layer.bias is not None:
            head.bias = nn.Parameter(layer.bias.detach(), requires_grad=False)
        name = next(name for name, module in self.named_children() if module is layer)
        self.add_module(name, head)
        pooled = f"mean of {reads[0]}"
        self._steps.append((partial(torch.mean, dim=(2, 3)), reads[:1], [pooled]))
        self._steps.append((head, [pooled], [own[0]]))
        linear[own[0]] = head
        if operation.get_attributes()["keep_dims"]:
            self._steps.append((_as_map, [own[0]], [own[0]]))
            del linear[own[0]]
        return True

    def forward(self, values: Tensor) -> Tensor:
        known: dict[str, Any] = {self._start: values}
        for run, reads, own in self._steps:
            result = run(*(known[each] if isinstance(each, str) else each for each in reads))
            known.update(zip(own, result if isinstance(result, tuple) else (result,), strict=False))
        ended: Tensor = known[self._end]
        return ended


def _with_bias(
    operation: openvino.Node,
    given: Sequence[Tensor | None],
    linear: dict[str, nn.Linear | nn.Conv2d],
) -> str | None:
    """Add a constant that follows a layer to its bias, if nothing else reads the layer's output.
    Return the key of that output; None if the operation is something else."""
    if operation.get_type_name() != "Add":
        return None
    for turn, source in enumerate(operation.input_values()):
        layer, constant = linear.get(_key(source)), given[1 - turn]
        if layer is None or constant is None or len(source.get_target_inputs()) > 1:
            continue
        channels, axis = len(layer.weight), -1 if isinstance(layer, nn.Linear) else -3
        if constant.numel() == 1 or (
            constant.numel() == channels
            and constant.ndim >= -axis
            and constant.shape[axis] == channels
        ):
            before = torch.zeros(channels) if layer.bias is None else layer.bias.detach()
            bias = before + constant.reshape(-1).float()
            layer.bias = nn.Parameter(bias, requires_grad=False)
            return _key(source)
    return None


def is_mean_of_classes(operation: openvino.Node) -> bool:
    """Return whether an operation is the mean over the positions of a 1 × 1 convolution, perhaps
    with a bias, that nothing else reads."""
    if operation.get_type_name() != "ReduceMean" or len(operation.get_input_partial_shape(0)) != 4:
        return False
    axes = _constant(operation.input_value(1))
    if axes is None or sorted(int(axis) % 4 for axis in axes.reshape(-1)) != [2, 3]:
        return False
    return _is_pointwise(operation.input_value(0))


def _is_pointwise(tensor: openvino.Output) -> bool:
    node = tensor.get_node()
    if len(tensor.get_target_inputs()) != 1:
        return False
    if node.get_type_name() == "Add" and _constant(node.input_value(1)) is not None:
        return _is_pointwise(node.input_value(0))
    if node.get_type_name() != "Convolution":
        return False
    options, sides = node.get_attributes(), list(node.get_input_shape(1))[2:]
    padded = any((*options["pads_begin"], *options["pads_end"]))
    return {*options["strides"], *sides} == {1} and not padded


def _as_map(values: Tensor) -> Tensor:
    return values[:, :, None, None]


def _same(value: Tensor) -> Tensor:
    return value


def _key(tensor: openvino.Output) -> str:
    return f"{tensor.get_node().get_name()}:{tensor.get_index()}"


def _constant(tensor: openvino.Output) -> Tensor | None:
    """Return the numbers of a constant, also of one that is stored in half precision; None of
    another tensor."""
    node = tensor.get_node()
    if node.get_type_name() == "Convert":
        inner = _constant(node.input_value(0))
        return inner.float() if inner is not None and tensor.element_type.is_real() else None
    if node.get_type_name() != "Constant":
        return None
    return torch.from_numpy(node.get_data().copy())


def _built(operation: openvino.Node, given: Sequence[Tensor | None]) -> Run:
    """Return the function or module that does what an operation does."""
    kind, options = operation.get_type_name(), operation.get_attributes()
    if kind in SIMPLE:
        return SIMPLE[kind]
    build = BUILDERS.get(kind)
    if build is None:
        raise UnknownOperation(f"an operation {kind}")
    try:
        return build(options, list(given))
    except (KeyError, IndexError, AttributeError, TypeError, ValueError) as error:
        raise UnknownOperation(f"an operation {kind} with {options}") from error


def _numbers(given: Tensor | None) -> list[int]:
    if given is None:
        raise UnknownOperation("an operation whose axes or sizes are computed")
    return [int(number) for number in given.reshape(-1).tolist()]


def _matmul(options: dict[str, Any], given: list[Tensor | None]) -> Run:
    weights = given[1]
    if weights is not None and weights.ndim == 2 and not options["transpose_a"]:
        rows = weights if options["transpose_b"] else weights.T
        layer = nn.Linear(rows.shape[1], rows.shape[0], bias=False)
        layer.weight = nn.Parameter(rows.float().contiguous(), requires_grad=False)
        return layer

    def multiply(one: Tensor, other: Tensor) -> Tensor:
        one = one.mT if options["transpose_a"] and one.ndim > 1 else one
        other = other.mT if options["transpose_b"] and other.ndim > 1 else other
        return one @ other

    return multiply


def _convolution(options: dict[str, Any], given: list[Tensor | None], *, groups: bool) -> Run:
    weights = given[1]
    if weights is None or weights.ndim != 4 + groups:
        raise UnknownOperation("a convolution whose weights are computed, or that is not 2-D")
    before, after = _pads(options)
    count = weights.shape[0] if groups else 1
    kernel = weights.float().flatten(0, 1) if groups else weights.float()
    layer = nn.Conv2d(
        kernel.shape[1] * count,
        kernel.shape[0],
        (kernel.shape[2], kernel.shape[3]),
        stride=tuple(options["strides"]),
        dilation=tuple(options["dilations"]),
        padding=before,
        groups=count,
        bias=False,
    )
    layer.weight = nn.Parameter(kernel.contiguous(), requires_grad=False)
    if before != after:
        raise UnknownOperation("a convolution that pads one side more than the other")
    return layer


def _pads(options: dict[str, Any]) -> tuple[tuple[int, int], tuple[int, int]]:
    if options["auto_pad"] not in ("explicit", "notset", "valid"):
        raise UnknownOperation(f"a window with {options['auto_pad']}")
    if options["auto_pad"] == "valid":
        return (0, 0), (0, 0)
    (top, left), (bottom, right) = options["pads_begin"], options["pads_end"]
    return (top, left), (bottom, right)


def _pool(options: dict[str, Any], given: list[Tensor | None], *, mean: bool) -> Run:
    before, after = _pads(options)
    if before != after or options["rounding_type"] not in ("floor", "ceil"):
        raise UnknownOperation("a pooling that pads one side more than the other")
    size = {
        "kernel_size": tuple(options["kernel"]),
        "stride": tuple(options["strides"]),
        "padding": before,
        "ceil_mode": options["rounding_type"] == "ceil",
    }
    if mean:
        count = not options["exclude-pad"]
        return partial(functional.avg_pool2d, count_include_pad=count, **size)
    dilation = tuple(options.get("dilations") or (1, 1))
    return partial(functional.max_pool2d, dilation=dilation, **size)


def _reshape(options: dict[str, Any], given: list[Tensor | None]) -> Run:
    pattern = _numbers(given[1])

    def reshape(values: Tensor, _: Tensor) -> Tensor:
        sizes = [
            values.shape[axis] if size == 0 and options["special_zero"] else size
            for axis, size in enumerate(pattern)
        ]
        return values.reshape(sizes)

    return reshape


def _squeeze(options: dict[str, Any], given: list[Tensor | None]) -> Run:
    if len(given) == 1:
        return torch.squeeze
    axes = tuple(_numbers(given[1]))
    return lambda values, _: values.squeeze(axes)


def _unsqueeze(options: dict[str, Any], given: list[Tensor | None]) -> Run:
    axes = _numbers(given[1])

    def unsqueeze(values: Tensor, _: Tensor) -> Tensor:
        rank = values.ndim + len(axes)
        for axis in sorted(axis % rank for axis in axes):
            values = values.unsqueeze(axis)
        return values

    return unsqueeze


def _transpose(options: dict[str, Any], given: list[Tensor | None]) -> Run:
    order = _numbers(given[1])
    return lambda values, _: values.permute(order)


def _reduced(name: str) -> Callable[[dict[str, Any], list[Tensor | None]], Run]:
    def build(options: dict[str, Any], given: list[Tensor | None]) -> Run:
        axes, keep = _numbers(given[1]), options["keep_dims"]
        return lambda values, _: getattr(torch, name)(values, dim=axes, keepdim=keep)

    return build


def _gather(options: dict[str, Any], given: list[Tensor | None]) -> Run:
    index, (axis,) = given[1], _numbers(given[2])
    if index is None or options["batch_dims"]:
        raise UnknownOperation("a selection by indices that are computed")
    where = index.long()

    def gather(values: Tensor, *_: Tensor) -> Tensor:
        dim = axis % values.ndim
        chosen = values.index_select(dim, where.reshape(-1) % values.shape[dim])
        return chosen.reshape(*values.shape[:dim], *where.shape, *values.shape[dim + 1 :])

    return gather


def _split(options: dict[str, Any], given: list[Tensor | None]) -> Run:
    (axis,), sizes = _numbers(given[1]), _numbers(given[2])

    def split(values: Tensor, *_: Tensor) -> tuple[Tensor, ...]:
        rest = values.shape[axis] - sum(size for size in sizes if size >= 0)
        return torch.split(values, [rest if size < 0 else size for size in sizes], axis)

    return split


def _slice(options: dict[str, Any], given: list[Tensor | None]) -> Run:
    starts, stops, steps = (_numbers(each) for each in given[1:4])
    axes = _numbers(given[4]) if len(given) > 4 else list(range(len(starts)))
    if any(step < 1 for step in steps):
        raise UnknownOperation("a slice that runs backwards")

    def cut(values: Tensor, *_: Tensor) -> Tensor:
        for axis, start, stop, step in zip(axes, starts, stops, steps, strict=True):
            where = [slice(None)] * (axis % values.ndim) + [slice(start, stop, step)]
            values = values[tuple(where)]
        return values

    return cut


def _normalised(options: dict[str, Any], given: list[Tensor | None]) -> Run:
    axes, eps = _numbers(given[1]), float(options["eps"])
    inside = options["eps_mode"].lower().startswith("inside")

    def normalised(values: Tensor, _: Tensor) -> Tensor:
        centred = values - values.mean(axes, keepdim=True)
        if not options["normalize_variance"]:
            return centred
        variance = centred.square().mean(axes, keepdim=True)
        return centred / ((variance + eps).sqrt() if inside else variance.sqrt() + eps)

    return normalised


def _attention(options: dict[str, Any], given: list[Tensor | None]) -> Run:
    mask, scale = (given[place] if len(given) > place else None for place in (3, 4))
    if options["causal"] or (len(given) > 3 and mask is None) or (len(given) > 4 and scale is None):
        raise UnknownOperation("an attention with a mask that is computed")
    masked = mask if mask is not None and mask.any() else None
    factor = None if scale is None else float(scale)

    def attend(query: Tensor, key: Tensor, value: Tensor, *_: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(query, key, value, masked, scale=factor)

    return attend


def _gelu(options: dict[str, Any], given: list[Tensor | None]) -> Run:
    tanh = options.get("approximation_mode", "ERF").upper() == "TANH"
    return partial(functional.gelu, approximate="tanh" if tanh else "none")


def _swish(options: dict[str, Any], given: list[Tensor | None]) -> Run:
    return lambda values, *beta: values * torch.sigmoid(beta[0] * values if beta else values)


BUILDERS: Final[dict[str, Callable[[dict[str, Any], list[Tensor | None]], Run]]] = {
    "AvgPool": partial(_pool, mean=True),
    "Clamp": lambda options, _: partial(torch.clamp, min=options["min"], max=options["max"]),
    "Concat": lambda options, _: lambda *values: torch.cat(values, options["axis"]),
    "Convolution": partial(_convolution, groups=False),
    "Elu": lambda options, _: partial(functional.elu, alpha=options["alpha"]),
    "Gather": _gather,
    "Gelu": _gelu,
    "GroupConvolution": partial(_convolution, groups=True),
    "HardSigmoid": lambda *_: lambda values, slope, shift: (slope * values + shift).clamp(0, 1),
    "LogSoftmax": lambda options, _: partial(torch.log_softmax, dim=options["axis"]),
    "MVN": _normalised,
    "MatMul": _matmul,
    "MaxPool": partial(_pool, mean=False),
    "PRelu": lambda *_: lambda values, slope: torch.where(values < 0, slope * values, values),
    "ReduceMax": _reduced("amax"),
    "ReduceMean": _reduced("mean"),
    "ReduceSum": _reduced("sum"),
    "Reshape": _reshape,
    "ScaledDotProductAttention": _attention,
    "Slice": _slice,
    "Softmax": lambda options, _: partial(torch.softmax, dim=options["axis"]),
    "Squeeze": _squeeze,
    "Swish": _swish,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
    "VariadicSplit": _split,
}
"""Operations with attributes, or whose axes and sizes are inputs."""
