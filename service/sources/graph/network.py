"""Read a network from an ONNX or OpenVINO file as a chain of torch modules.

    graph = read_graph(Path("model.onnx"), Wish())
    logits = graph.module(images)                  # (B, classes)

OpenVINO runs the network. The network is cut at tensors that every path from the images to the
outputs passes through: at the last such tensor of each resolution. Each part is a module, named
after the tensor at its end, so hooks see and change these tensors as in any other model.
OpenVINO does not compute gradients. If the operations after the last cut are well-known ones (see
`tail`), torch runs them, so gradients reach the last layer.
"""

from __future__ import annotations

import hashlib
import json
from ast import literal_eval
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import torch
from torch import Tensor, nn

from cam.counts import counted
from cam.runtimes.openvino import compiled, inferred
from service.core.errors import one_line
from service.sources.graph.tail import Operations, is_mean_of_classes

if TYPE_CHECKING:
    import openvino

FORMS: Final = {"onnx": ".onnx", "openvino": ".xml"}
"""Kind of source → the suffix of its files."""
METADATA: Final = "gradcam"
"""Key of the metadata that `gradcam export` writes."""
NAMES: Final = "names"
"""Key under which Ultralytics' exporter writes the labels, as a Python dictionary."""
LAYERS: Final = 5
"""Largest number of resolutions, counted from the end, of which layers are kept."""
STREAM: Final = 4
"""Number of layers that are kept at the last resolution if its tensors are tokens. The very last
layer is not enough: after the attention of a transformer's last block, only the class token is
read."""
LEAST_SIDE: Final = 2
"""Least height and width of a layer's map."""
ENDINGS: Final[dict[str, Literal["softmax", "sigmoid"]]] = {
    "Softmax": "softmax",
    "Sigmoid": "sigmoid",
}
"""Operations that end a network and turn logits into probabilities."""
AFTER_MEAN: Final = {"Reshape", "Squeeze", "Add", "Multiply"}
"""Operations between a mean and the logits that do not mix the classes."""
SCALING: Final = {"Add", "Divide", "Multiply", "Subtract"}
"""Operations that scale or shift a tensor by weights."""
ACTIVATIONS: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "softmax": partial(torch.softmax, dim=1),
    "sigmoid": torch.sigmoid,
}
LOGITS: Final = ("logits", "out")
TOLERANCE: Final = 1e-4
"""Largest difference between the outputs of the chain and of the whole network, as a share of the
largest output."""


class GraphError(Exception):
    """The file is not a network that can be explained; the message is the reason."""


@dataclass(frozen=True)
class Wish:
    """What an entry of the catalog says about a network."""

    output: str | int | None = None
    """Name or index of the logits."""
    activation: str = "auto"
    size: tuple[int, int] | None = None
    """Height and width of the images; None for the network's own."""
    layers: tuple[str, ...] = ()
    """Further layers to cut at, as names of operations."""


@dataclass(frozen=True, eq=False)
class Graph:
    """A network that was read from a file."""

    module: nn.Module
    size: tuple[int, int]
    """Height and width of the images."""
    activation: Literal["softmax", "sigmoid"] | None
    """The activation at the end of the network, which was removed so that the module returns
    logits; None if the module returns the network's own output."""
    stated: Mapping[str, Any] = field(default_factory=dict)
    """What `gradcam export` has written into the file about the model."""


class NetworkPart(nn.Module):
    """A part of a network that OpenVINO runs. It is compiled at its first run.

    Args:
        batch: the number of images that the part takes; None for any number.
    """

    no_gradient = "OpenVINO runs the network, and computes no gradients"

    def __init__(self, network: openvino.Model, batch: int | None) -> None:
        super().__init__()
        self._network, self._batch = network, batch
        self._request: openvino.InferRequest | None = None
        self._threads = 0

    def forward(self, values: Tensor) -> Tensor:
        if self._request is None or self._threads != torch.get_num_threads():
            self._request = compiled(self._network, torch.float32)
            self._threads = torch.get_num_threads()
        request = self._request
        outputs: Tensor = _WithoutGradient.apply(
            values,
            lambda plain: _in_batches(plain, self._batch, lambda some: inferred(request, some)[0]),
        )
        return outputs


class _WithoutGradient(torch.autograd.Function):
    """A function that appears in autograd's graph, although no gradient passes through it. The
    graph thus shows which layer is computed from which."""

    @staticmethod
    def forward(_: Any, values: Tensor, run: Callable[[Tensor], Tensor]) -> Tensor:
        return run(values.detach().contiguous())

    @staticmethod
    def backward(*_: Any) -> tuple[None, None]:
        return None, None


class TorchSegment(nn.Module):
    """A part of a network that torch runs, so gradients pass through it.

    Args:
        batch: as for `NetworkPart`.
    """

    def __init__(self, operations: Operations, batch: int | None) -> None:
        super().__init__()
        self.operations, self._batch = operations, batch

    def forward(self, values: Tensor) -> Tensor:
        return _in_batches(values, self._batch, self.operations)


class Chain(nn.Sequential):
    """The parts of a network, one after the other.

    Args:
        digest: digest of the network, which stands for the module's weights.
    """

    def __init__(self, parts: OrderedDict[str, nn.Module], digest: str) -> None:
        super().__init__(parts)
        self._digest = digest
        self.names: Sequence[str] = ()
        """Names of the classes, if they are known."""

    def get_extra_state(self) -> str:
        return self._digest


def _in_batches(values: Tensor, size: int | None, run: Callable[[Tensor], Tensor]) -> Tensor:
    """Run a part that takes exactly `size` images (None: any number). Images of a batch of another
    size are run one by one, each repeated `size` times."""
    if size is None or len(values) == size:
        return run(values)
    rows = [run(row.expand(size, *row.shape).contiguous())[:1] for row in values]
    return torch.cat(rows)


def read_graph(file: Path, wish: Wish) -> Graph:
    """Read a network and cut it into a chain of modules, on the CPU and in float32.

    Args:
        file: a `.onnx` file, or a `.xml` file with its `.bin` file beside it.

    Raises:
        GraphError: if the file cannot be read, or if the network does not take one batch of RGB
            images and return one batch of logits.
    """
    network = _read(file)
    digest, stated, named = _digest(network), _stated(network), _named(network, file)
    size = _fit_input(network, wish)
    network = _with_output(network, wish.output)
    _fix_batch(network)
    batch = network.inputs[0].shape[0]
    whole = compiled(network, torch.float32)
    image = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(0))
    expected = _in_batches(image, batch, lambda some: inferred(whole, some)[0])
    failure: Exception | None = None
    fixed = _cut(network.clone(), batch, wish, False, digest, named)
    for differentiable, dynamic in product((True, False), repeat=2):
        try:
            form = _with_any_batch(network) if dynamic else network.clone()
            graph = _cut(form, None if dynamic else batch, wish, differentiable, digest, named)
            if _names(graph.module) != _names(fixed.module):
                # It computes sizes from other tensors, which bypass the layers.
                failure = failure or RuntimeError("its layers depend on the number of images")
                continue
            with torch.no_grad():
                both = graph.module(image)
                singly = torch.cat([graph.module(row[None]) for row in image])
        except Exception as error:  # OpenVINO may raise anything
            failure = error
            continue
        if graph.activation:
            activate = ACTIVATIONS[graph.activation]
            both, singly = activate(both), activate(singly)
        if all(_agree(each, expected) for each in (both, singly)):
            return Graph(graph.module, size, graph.activation, stated)
    why = f": {one_line(failure)}" if failure else ""
    raise GraphError(f"the parts of the network do not give the outputs of the whole{why}")


def _names(module: nn.Module) -> list[str]:
    return [name for name, _ in module.named_children()]


def _agree(one: Tensor, other: Tensor) -> bool:
    slack = TOLERANCE * float(other.nan_to_num().abs().max())
    return one.shape == other.shape and torch.allclose(
        one, other, rtol=0, atol=slack, equal_nan=True
    )


def _read(file: Path) -> openvino.Model:
    from openvino.frontend import FrontEndManager

    if not file.stat().st_size:
        raise GraphError(f"{file} cannot be read: it is empty")
    if file.suffix == ".xml" and not file.with_suffix(".bin").is_file():
        raise GraphError(f"there is no file {file.with_suffix('.bin')}, which holds the weights")
    try:
        # With `read_model`, each frontend would try the file and log its own error.
        front = FrontEndManager().load_by_framework("ir" if file.suffix == ".xml" else "onnx")
        network: openvino.Model = front.convert(front.load(str(file)))
    except Exception as error:  # the frontends raise many kinds
        raise GraphError(f"{file} cannot be read: {_told(error)}") from None
    return network


def _stated(network: openvino.Model) -> dict[str, Any]:
    """Return what the file says about the model; {} if that cannot be parsed."""

    def text(key: str) -> str:
        # The metadata of an ONNX file is under "framework".
        paths = [path for path in ([key], ["framework", key]) if network.has_rt_info(path)]
        return str(network.get_rt_info(paths[0]).value) if paths else ""

    try:
        if own := text(METADATA):
            stated = json.loads(own)
            return stated if isinstance(stated, dict) else {}
        names = literal_eval(text(NAMES) or "{}")
        return {"labels": [str(names[index]) for index in range(len(names))]} if names else {}
    except (ValueError, SyntaxError, KeyError, TypeError, RecursionError, MemoryError):
        return {}


def _told(error: Exception) -> str:
    """Return a frontend's error message without the references to its source files."""
    lines = str(error).splitlines()
    plain = [line.strip() for line in lines if line.strip() and "/src/" not in line.split(":")[0]]
    told = " ".join(line for line in plain if not line.startswith(("Check '", "Exception from")))
    return (told or one_line(error))[:400]


def _fit_input(network: openvino.Model, wish: Wish) -> tuple[int, int]:
    """Change the network so that it takes float32 (batch, 3, height, width). Return the height and
    the width."""
    from openvino import Layout, Type
    from openvino.preprocess import PrePostProcessor

    if len(network.inputs) != 1:
        names = ", ".join(map(_name, network.inputs)) or "none"
        raise GraphError(
            f"the network has {len(network.inputs)} inputs ({names}); it should have one, a batch "
            "of images"
        )
    (given,) = network.inputs
    shape, kind = given.partial_shape, given.element_type
    if shape.rank.is_dynamic or len(shape) != 4:
        raise GraphError(f"the input has the shape {shape}; images have (batch, 3, height, width)")
    if not kind.is_real():
        raise GraphError(
            f"the input is of type {kind.get_type_name()}; it should be float32: normalised pixels"
        )
    dims = [None if dim.is_dynamic else dim.get_length() for dim in shape]
    last = dims[3] == 3 and dims[1] != 3
    channels = dims[3] if last else dims[1]
    if channels not in (3, None):
        raise GraphError(
            f"the input has the shape {shape}: {counted(channels, 'channel')}, not 3 (RGB)"
        )
    own = dims[1:3] if last else dims[2:4]
    if wish.size and any(
        side not in (None, want) for side, want in zip(own, wish.size, strict=True)
    ):
        raise GraphError(
            f"the network takes only images of {own[0]} × {own[1]} pixels, but input_size is "
            f"{wish.size[0]} × {wish.size[1]}"
        )
    height, width = (side or want for side, want in zip(own, wish.size or (224, 224), strict=True))
    try:
        network.reshape([shape[0], height, width, 3] if last else [shape[0], 3, height, width])
        process = PrePostProcessor(network)
        process.input().tensor().set_element_type(Type.f32).set_layout(Layout("NCHW"))
        process.input().model().set_layout(Layout("NHWC" if last else "NCHW"))
        for number, output in enumerate(network.outputs):
            if output.element_type.is_real():
                process.output(number).tensor().set_element_type(Type.f32)
        process.build()
    except Exception as error:
        raise GraphError(
            f"the network does not take {height} × {width} images: {_told(error)}"
        ) from None
    return height, width


def _with_output(network: openvino.Model, wanted: str | int | None) -> openvino.Model:
    """Return the network with the logits as its only output."""
    import openvino

    outputs = list(network.outputs)
    named = {name: output for output in outputs for name in output.names}
    names = ", ".join(map(_name, outputs))
    if isinstance(wanted, int):
        if wanted >= len(outputs):
            raise GraphError(f"output is {wanted}, but the network has {len(outputs)}: {names}")
        chosen = outputs[wanted]
    elif wanted is not None:
        if wanted not in named:
            raise GraphError(f"the network has no output {wanted!r}; it has {names}")
        chosen = named[wanted]
    elif len(outputs) == 1:
        (chosen,) = outputs
    else:
        found = [named[name] for name in LOGITS if name in named]
        if not found:
            raise GraphError(
                f"the network has {len(outputs)} outputs, {names}; say which with output"
            )
        chosen = found[0]
    if not chosen.element_type.is_real():
        raise GraphError(
            f"the output {_name(chosen)} is of type {chosen.element_type.get_type_name()}, like "
            "indices of classes; it should be float32 logits"
        )
    source = chosen.node.input_value(0)
    return openvino.Model([source], network.get_parameters(), "network")


def _fix_batch(network: openvino.Model) -> None:
    """Set the batch size of a network to 1, unless its batch size is fixed at another number."""
    shape = network.inputs[0].partial_shape
    try:
        network.reshape([1, *list(shape)[1:]])
    except Exception as error:
        if shape.is_dynamic:
            raise GraphError(f"the network does not take a single image: {_told(error)}") from None
        network.reshape(shape)


def _with_any_batch(network: openvino.Model) -> openvino.Model:
    """Return a copy of a network that takes any number of images instead of one.

    An exported network may reshape to the batch size at its export, as in (1, 512). The copy leaves
    that size open.
    """
    from openvino import opset13 as operations

    copy = network.clone()
    (parameter,) = copy.get_parameters()
    (batch, *sides) = copy.inputs[0].shape
    for operation in _between(parameter, copy.get_ordered_ops()):
        if operation.get_type_name() != "Reshape":
            continue
        pattern = operation.input_value(1).get_node()
        before, after = operation.get_input_partial_shape(0), operation.get_output_partial_shape(0)
        if (
            pattern.get_type_name() == "Constant"
            and before.is_static
            and after.is_static
            and len(after) > 1
            and before[0] == after[0] == batch
        ):
            rest = [dim.get_length() for dim in list(after)[1:]]
            free = operations.constant([-1, *rest], dtype="int64")
            operation.input(1).replace_source_output(free.output(0))
    copy.reshape([-1, *sides])
    return copy


def _cut(
    network: openvino.Model,
    batch: int | None,
    wish: Wish,
    differentiable: bool,
    digest: str,
    named: Set[str],
) -> Graph:
    """Cut a network at its layers. With `differentiable`, torch runs all parts after the first
    layer of the last resolution.

    Args:
        named: as `_named` returns it.
    """
    from openvino._offline_transformations import apply_moc_transformations

    # The general simplifications that OpenVINO's own command makes at each conversion.
    apply_moc_transformations(network, cf=True)
    (parameter,) = network.get_parameters()
    (result,) = network.get_results()
    end, activation = result.input_value(0), None
    ending = ENDINGS.get(end.get_node().get_type_name())
    if ending and wish.activation in ("auto", ending) and _over_classes(end.get_node()):
        end, activation = end.get_node().input_value(0), ending
    if batch is None and end.partial_shape[0].is_static:
        raise RuntimeError("the batch is fixed inside the network")
    ordered = _between(parameter, network.get_ordered_ops(), end)
    cuts, last = _layers(ordered, parameter, end, wish.layers, named)
    names = [_title(cut, ordered, named) for cut in cuts]
    parts: list[tuple[str, nn.Module]] = []
    ends = [parameter.output(0), *cuts, end]
    torch_from = len(cuts) - last + 1 if differentiable else len(ends)
    for number, (start, stop) in enumerate(pairwise(ends)):
        name = names[number] if number < len(names) else "head"
        if number >= torch_from:
            inside = _between(start.get_node(), ordered, stop)
            part: nn.Module = TorchSegment(Operations(inside, start, stop), batch)
        else:
            part = NetworkPart(_part(network, start, stop), batch)
        parts.append((name, part))
    return Graph(Chain(OrderedDict(parts), digest), (0, 0), activation)


def _over_classes(operation: openvino.Node) -> bool:
    """Return whether a softmax runs over the second axis. A sigmoid has no axis: True."""
    rank = len(operation.get_output_partial_shape(0))
    axis = operation.get_attributes().get("axis")
    return axis is None or axis % rank == 1


def _between(
    start: openvino.Node, ordered: Sequence[openvino.Node], end: openvino.Output | None = None
) -> list[openvino.Node]:
    """Return the operations between `start` and `end`, in their order: those that depend on `start`
    and that `end` depends on."""
    reached = {start.get_name()}
    for operation in ordered:
        if any(source.get_node().get_name() in reached for source in operation.input_values()):
            reached.add(operation.get_name())
    needed = set[str]() if end is not None else reached
    if end is not None:
        needed.add(end.get_node().get_name())
        for operation in reversed(ordered):
            if operation.get_name() in needed:
                needed.update(source.get_node().get_name() for source in operation.input_values())
    return [
        operation
        for operation in ordered
        if operation.get_name() in reached & needed and operation.get_name() != start.get_name()
    ]


def _layers(
    ordered: Sequence[openvino.Node],
    parameter: openvino.Node,
    end: openvino.Output,
    wanted: Sequence[str],
    named: Set[str],
) -> tuple[list[openvino.Output], int]:
    """Return the tensors to cut at, and how many of them have the last resolution.

    Args:
        wanted: names of further layers, from `_title` or from the file.
        named: as `_named` returns it.
    """
    bottlenecks = _bottlenecks(ordered, parameter, end)
    own = _own_maps(ordered)
    bottlenecks = [each for each in bottlenecks if each.get_node().get_name() not in own]
    groups: OrderedDict[object, list[openvino.Output]] = OrderedDict()
    for tensor in bottlenecks:
        resolution = _resolution(tensor)
        if resolution is not None:
            groups.setdefault(resolution, []).append(tensor)
    kept = list(groups.values())[-LAYERS:]
    if not kept:
        raise GraphError(
            "no tensor lies on the image and is on every path from the input to the output of the "
            "network, so no layer can be looked at"
        )
    stream = 1
    if len(kept[-1][0].partial_shape) == 3:
        stream = STREAM
        kept[-1] = [each for each in kept[-1] if not _is_scaled(each)]
    chosen = [group[-1] for group in kept[:-1]] + kept[-1][-stream:]
    # The first layer, which is before any rectifier, shows best where positions lie on the image.
    first = next(iter(groups.values()))[0]
    if all(_key(first) != _key(each) for each in chosen):
        chosen.insert(0, first)
    for name in wanted:
        found = [
            each
            for each in bottlenecks
            if name in _names_of(each) or name == _title(each, ordered, named)
        ]
        if not found and any(name in _names_of(op.output(0)) for op in ordered):
            raise GraphError(
                f"{name!r} is not a layer at which the network can be cut: other paths bypass it"
            )
        chosen += [each for each in found if _key(each) not in map(_key, chosen)]
    order = [_key(each) for each in bottlenecks]
    chosen.sort(key=lambda each: order.index(_key(each)))
    return chosen, len(kept[-1][-stream:])


def _is_scaled(tensor: openvino.Output) -> bool:
    """Return whether a single operation reads a tensor, and scales or shifts it by weights, as a
    normalisation does. The layer is then the output of that operation, not its input."""
    readers = list(tensor.get_target_inputs())
    if len(readers) != 1:
        return False
    reader = readers[0].get_node()
    others = [source.get_node() for source in reader.input_values() if _key(source) != _key(tensor)]
    return (
        reader.get_type_name() in SCALING
        and len(others) == 1
        and others[0].get_type_name() in ("Constant", "Convert")
    )


def _own_maps(ordered: Sequence[openvino.Node]) -> set[str]:
    """Return the operations of a last 1 × 1 convolution, if the logits are the means of its output.
    A map at that output would show only the logits."""
    for place in range(len(ordered) - 1, 0, -1):
        if is_mean_of_classes(ordered[place]):
            node = ordered[place].input_value(0).get_node()
            names = {node.get_name()}
            if node.get_type_name() == "Add":
                names.add(node.input_value(0).get_node().get_name())
            return names
        if ordered[place].get_type_name() not in AFTER_MEAN:
            break
    return set()


def _names_of(tensor: openvino.Output) -> set[str]:
    name = tensor.get_node().get_friendly_name()
    return {name, _plain(name), *tensor.names}


def _key(tensor: openvino.Output) -> tuple[str, int]:
    return tensor.get_node().get_name(), tensor.get_index()


def _bottlenecks(
    ordered: Sequence[openvino.Node], parameter: openvino.Node, end: openvino.Output
) -> list[openvino.Output]:
    """Return the tensors that are on every path from the input to the output, in order."""

    last: dict[tuple[str, int], int] = {}
    for position, operation in enumerate(ordered):
        for source in operation.input_values():
            last[_key(source)] = position
    last[_key(end)] = len(ordered)
    alive = {_key(parameter.output(0))}
    found = []
    for position, operation in enumerate(ordered):
        alive = {each for each in alive if last.get(each, -1) > position}
        own = [output for output in operation.outputs() if _key(output) in last]
        alive.update(map(_key, own))
        if len(alive) == 1 and own and _key(own[0]) in alive and _key(own[0]) != _key(end):
            found.append(own[0])
    return found


def _resolution(tensor: openvino.Output) -> object | None:
    """Return the height and width of a tensor, or its number of tokens; None if it has neither."""
    shape = tensor.partial_shape
    if shape.rank.is_dynamic or any(dim.is_dynamic for dim in list(shape)[1:]):
        return None
    if not tensor.element_type.is_real():
        return None
    sides = [dim.get_length() for dim in list(shape)[1:]]
    if len(sides) == 3:
        first, second, third = sides
        height, width = (first, second) if first == second != third else (second, third)
        return (height, width) if min(height, width) >= LEAST_SIDE else None
    return sides[0] if len(sides) == 2 and sides[0] >= LEAST_SIDE**2 else None


def _part(network: openvino.Model, start: openvino.Output, stop: openvino.Output) -> openvino.Model:
    """Return the part of a network from one tensor to another as a separate network, which shares
    the weights."""
    import openvino
    from openvino import opset13 as operations

    copy = network.clone()
    nodes = {node.get_friendly_name(): node for node in copy.get_ordered_ops()}
    first, last = (
        nodes[each.get_node().get_friendly_name()].output(each.get_index())
        for each in (start, stop)
    )
    if first.get_node().get_type_name() == "Parameter":
        return openvino.Model([last], copy.get_parameters(), "part")
    given = operations.parameter(first.partial_shape, first.element_type)
    for reader in list(first.get_target_inputs()):
        reader.replace_source_output(given.output(0))
    return openvino.Model([last], [given], "part")


def _name(tensor: Any) -> str:
    return str(min(tensor.names, default=tensor.node.get_friendly_name()))


def _title(tensor: openvino.Output, ordered: Sequence[openvino.Node], named: Set[str]) -> str:
    """Return the name of a tensor as a layer: its name in the file. OpenVINO adds operations that
    are not in the file, such as those of a normalisation, and numbers them differently at each
    load. The name of such an operation is its kind and its position among the operations of that
    kind.

    Args:
        named: as `_named` returns it.
    """
    node = tensor.get_node()
    names = [name for name in tensor.names if not name.isdecimal()]
    if names:
        return _plain(min(names).removesuffix(":0"))
    if node.get_friendly_name() in named:
        return _plain(node.get_friendly_name())
    kind = node.get_type_name()
    alike = [each.get_name() for each in ordered if each.get_type_name() == kind]
    return f"{kind}_{alike.index(node.get_name())}"


def _named(network: openvino.Model, file: Path) -> Set[str]:
    """Return the names of the operations that have a name in the file. In an OpenVINO file, every
    operation has one. In a network that was just read from ONNX, the other operations are named by
    their kind and a number that differs between processes."""
    own = file.suffix == FORMS["openvino"]
    return {
        operation.get_friendly_name()
        for operation in network.get_ordered_ops()
        if own or operation.get_friendly_name() != operation.get_name()
    }


def _plain(name: str) -> str:
    """Return a valid name for a torch module. A "#" is replaced, too, because it marks one of
    several calls of a module."""
    return name.replace(".", "_").replace("#", "_")


def _digest(network: openvino.Model) -> str:
    """Return a digest of a network's operations and weights."""
    digest = hashlib.blake2b(digest_size=16)
    for operation in network.get_ordered_ops():
        digest.update(f"{operation.get_type_name()} {operation.get_attributes()}|".encode())
        if operation.get_type_name() == "Constant":
            digest.update(np.ascontiguousarray(operation.get_data()).view(np.uint8).data)
    return digest.hexdigest()
