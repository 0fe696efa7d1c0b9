"""Find the layers whose output is the model's own output: the logits before they are resized.

The last layer of most segmenters returns the logits at a lower resolution. A map at that layer
shows the explained class's own logits again, and nothing of what the model computed them from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from torch import Tensor
from torch.autograd.graph import Node

from cam.outputs.kind import kinds
from cam.outputs.meaning import RESHAPING, operation_of
from cam.outputs.output import Kind

_KEEPING: Final = RESHAPING | frozenset(
    {"Add", "Cat", "ConstantPadNd", "Div", "Exp", "LogSoftmax", "Mul", "Neg", "Rsub", "Sigmoid"}
    | {"Softmax", "Stack", "UpsampleBicubic2D", "UpsampleBilinear2D", "UpsampleNearest2D"}
    | {"UpsampleNearestExact2D", "UpsampleBilinear2DAa", "UpsampleBicubic2DAa", "GridSampler2D"}
    | {"Clamp", "MaskedFill", "NativeBatchNorm", "ReflectionPad2D", "ReplicationPad2D", "Tanh"}
    | {"Where"}
)
"""Operations behind which the logits are the same numbers, resized, scaled, limited, turned into
probabilities, or added up from the logits of several branches; by their autograd names."""


def logit_layers(numbers: Tensor, layers: Mapping[str, Tensor], kind: Kind) -> set[str]:
    """Return the layers whose output becomes the model's logits without further computation.

    The graph of the logits is followed through operations that reshape, select, resize and scale
    numbers, turn them into probabilities, or add several. A layer whose output it reaches returns
    logits. For a kind of `cam.outputs.KINDS`, the graph of the scores is followed, also through the
    operations of `OutputKind.choosing` and through products of scores, such as of a class's with an
    objectness.

    Args:
        numbers: the logits, or the scores of detections, with their graph.
        layers: layer name → its output in the same forward pass, with its graph.
        kind: the kind of the output.
    """
    if numbers.grad_fn is None:
        return set()
    known = kinds().get(kind)
    choosing = known.choosing if known else frozenset[str]()
    names: dict[Node | int, list[str]] = {}
    for name, tensor in layers.items():
        names.setdefault(tensor.grad_fn or id(tensor), []).append(name)
    reached: set[str] = set()
    seen, waiting = {numbers.grad_fn}, [numbers.grad_fn]
    while waiting:
        node = waiting.pop()
        reached.update(names.get(node, names.get(id(getattr(node, "variable", None)), ())))
        for before in _before(node, choosing):
            if before not in seen:
                seen.add(before)
                waiting.append(before)
    return reached


def no_evidence(name: str) -> str:
    """Return the warning about a map at a layer that `logit_layers` returns."""
    return (
        f"layer {name!r} returns the model's own output, so the map shows the target's logits "
        "again and not what they were computed from; an earlier layer shows that"
    )


def _before(node: Node, choosing: frozenset[str]) -> Iterable[Node]:
    """Return the nodes from which a node got the same numbers."""
    operation = operation_of(node)
    if operation not in _KEEPING | choosing:
        return ()
    before = [parent for parent, _ in node.next_functions if parent is not None]
    # The product of two computed tensors is a computation, as that with a gate is. A parameter,
    # such as a trained temperature or the weight of a branch, scales.
    computed = [parent for parent in before if not _is_parameter(parent)]
    gated = operation in ("Mul", "Div") and len(computed) > 1 and not choosing
    return () if gated else before


def _is_parameter(node: Node) -> bool:
    """Return whether a node stands for a parameter, or for parameters turned into weights."""
    operation = operation_of(node)
    if operation == "AccumulateGrad":
        return True
    before = [parent for parent, _ in node.next_functions if parent is not None]
    return operation in _KEEPING and bool(before) and all(map(_is_parameter, before))
