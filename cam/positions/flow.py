"""From which other layers a layer's output is computed, according to autograd's graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node

from cam.hooks.calls import hooked


def feeding(
    model: nn.Module, modules: Mapping[str, nn.Module], image: Tensor, layers: Iterable[str]
) -> dict[str, frozenset[str]]:
    """Return for each of the layers those of the others from which its output is computed directly,
    not through another of them. It is empty for the first layers, and where no graph is recorded.

    The function runs the model once, with a graph. If two layers return the same tensor, as a block
    and its last layer do, the first one feeds the second.
    """
    nodes: dict[str, Node] = {}

    def note(name: str, module: nn.Module, args: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.grad_fn is not None:
            nodes[name] = output.grad_fn

    with hooked({name: modules[name] for name in layers}, note), torch.enable_grad():
        # The model may change its input in place, which a leaf does not allow: a clone.
        model(image.detach().clone().requires_grad_().clone())
        return dict(_nearest(nodes))


def ancestors(outputs: Mapping[str, Tensor]) -> dict[str, set[str]]:
    """Return for each layer the set of other layers from which its output is computed.

    Args:
        outputs: layer name → output, of one forward pass under a `Capture`, with their graph.
    """
    return {name: behind(output, outputs) - {name} for name, output in outputs.items()}


def ends(reached: set[str], lineage: Mapping[str, set[str]]) -> set[str]:
    """Return the reached layers from which no other reached layer is computed.

    The gradient at a layer includes the gradient of the layers computed from it, so that to use
    both would count one of them twice.

    Args:
        lineage: as `ancestors` returns it.
    """
    return {name for name in reached if not any(name in lineage[other] for other in reached)}


def behind(end: Tensor, outputs: Mapping[str, Tensor], *, nearest: bool = False) -> set[str]:
    """Return the layers from whose outputs `end` is computed, according to the graph. If `end` is
    itself an output, its own layer is included. With `nearest`, return only the layers from which
    `end` is computed directly, not through another of `outputs`."""
    nodes = {output.grad_fn: name for name, output in outputs.items() if output.grad_fn}
    leaves = {id(output): name for name, output in outputs.items() if not output.grad_fn}
    if id(end) in leaves:
        return {leaves[id(end)]}
    reached, seen, waiting = set(), {end.grad_fn}, [end.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None:
            continue
        name = nodes.get(node) or leaves.get(id(getattr(node, "variable", None)))
        if name:
            reached.add(name)
        if name and nearest:
            continue
        for parent, _ in node.next_functions:
            if parent not in seen:
                seen.add(parent)
                waiting.append(parent)
    return reached


def _nearest(nodes: Mapping[str, Node]) -> Iterator[tuple[str, frozenset[str]]]:
    """Yield each name and the names at the nearest nodes before its own."""
    owners: dict[Node, str] = {}
    for name, node in nodes.items():
        owners.setdefault(node, name)
    before: dict[Node, frozenset[str]] = {}

    def behind(node: Node) -> frozenset[str]:
        owner = owners.get(node)
        return frozenset((owner,)) if owner else before[node]

    for node in _in_order(owners, lambda other: other in before):
        inputs = [parent for parent, _ in node.next_functions if parent is not None]
        before[node] = frozenset().union(*map(behind, inputs))
    for name, node in nodes.items():
        yield name, before[node] if owners[node] == name else frozenset((owners[node],))


def _in_order(ends: Iterable[Node], known: Callable[[Node], bool]) -> Iterator[Node]:
    """Yield all nodes from which `ends` are computed and `ends`, each after its inputs."""
    waiting = list(ends)
    while waiting:
        node = waiting[-1]
        if known(node):
            waiting.pop()
            continue
        missing = [parent for parent, _ in node.next_functions if parent and not known(parent)]
        if not missing:
            yield waiting.pop()
        waiting.extend(missing)
