"""Explanations of a batch from one forward pass.

The answers to questions that differ in everything: see `explain_batch`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import cycle
from typing import Protocol

import torch
from torch import Tensor, nn

from cam.capture import Capture
from cam.errors import CamError, LayerDidNotRun, MethodUnsuited, NoGradientPath, NonFinite
from cam.evaluation import evaluating
from cam.explanation import Answer, Found, Question, compose, score_of
from cam.grids import Grid
from cam.head import PooledHead
from cam.levels import ancestors, ends
from cam.locate import locate
from cam.methods import METHODS
from cam.methods.detection import fused_levels
from cam.output import (
    Output,
    detached,
    looked_at,
    outputs_of,
    resolve_reading,
    size_of,
    tells_activation,
    watching,
)
from cam.reading import AUTO, Reading, logits_of
from cam.targets import Target


def explain_batch(
    model: nn.Module,
    images: Tensor,
    questions: Sequence[Question],
    *,
    head: PooledHead | None = None,
    reading: Reading = AUTO,
) -> list[Answer | CamError]:
    """Answer a question for each image of a batch with one forward pass, and one backward pass
    for as many targets as the longest question has.

    In eval mode no image of a batch sees another, so the gradient of the summed targets is each
    image's own.

    Args:
        images: float (B, C, H, W), preprocessed, on the model's device and in its dtype.
        questions: one for each image, or the same number for each: the first of every image, the
            second of every image, and so on. They may differ in everything.
        head: the model's, from `pooled_head`: where the questions are about its layer alone there
            is no backward pass, and no graph.
        reading: how the model's output is read. Where its activation is `auto` and the pass does
            not show it, one more pass of one image tells: see `resolve_reading`.

    Returns:
        For each question its answer, or the error that is its own: a target that cannot be, or
        numbers that are not finite.

    Raises:
        CamError: that concerns the batch: a layer or method that cannot be used.
    """
    for question in questions:
        question.check()
        if question.in_steps:
            raise MethodUnsuited(f"{question.method} takes many steps: see explain_in_steps")
    if not any(question.targets for question in questions):  # predictions alone
        reading, _ = resolve_reading(model, images[:1], reading)
        with evaluating(model), torch.inference_mode():
            raw = model(images)
            said = detached(
                outputs_of(raw, size=size_of(images), reading=reading, batch=len(images))
            )
        return [
            compose(question, question.resolve(each), each, [])
            for question, each in zip(questions, cycle(said), strict=False)
        ]
    if head and all(_by_head(head, question) for question in questions):
        with evaluating(model), watching(model, [head.layer]) as seen, torch.inference_mode():
            logits = logits_of(model(images), reading, batch=len(images))
            if head.layer not in seen:
                raise LayerDidNotRun(f"layer {head.layer!r} did not run in this forward pass")
        return answer_by_head(head, questions, seen[head.layer], logits, images, reading)
    layers = dict.fromkeys(
        name for question in questions if question.targets for name in question.layers
    )
    looks = dict.fromkeys(name for question in questions for name in question.looks_at)
    located = locate(model, images[:1], [*layers, *looks])
    with (
        evaluating(model),
        Capture(model, layers) as capture,
        watching(model, looks) as seen,
    ):
        raw = model(images)
        if tells_activation(raw, reading, len(images)):
            outputs = outputs_of(
                raw,
                looked_at(seen, looks, images, located),
                size=size_of(images),
                reading=reading,
                batch=len(images),
            )
            return answer(questions, outputs, capture, located.grids(capture.activations, images))
    reading, _ = resolve_reading(model, images[:1], reading)
    return explain_batch(model, images, questions, head=head, reading=reading)


def _by_head(head: PooledHead, question: Question) -> bool:
    """Whether a question about one pass is about the head's layer and its logits alone."""
    return set(question.layers) <= {head.layer} and not question.looks_at


def answer_by_head(
    head: PooledHead,
    questions: Sequence[Question],
    output: Tensor,
    logits: Tensor,
    images: Tensor,
    reading: Reading = AUTO,
) -> list[Answer | CamError]:
    """Answer a question for each image from the output of the head's layer and the logits that a
    forward pass without a graph left, (B, …) both."""
    with torch.inference_mode(False), torch.enable_grad():
        signals = head.signals(output, logits)
        outputs = outputs_of(signals.logits, size=size_of(images), reading=reading.of_logits)
        return answer(questions, outputs, signals, signals.grids)


class Signals(Protocol):
    """What a forward pass left at the layers, and what backward passes bring there."""

    @property
    def activations(self) -> dict[str, Tensor]:
        """Layer name → its output for the batch."""

    @property
    def outputs(self) -> dict[str, Tensor]:
        """The same with their graph, where there is one."""

    @property
    def reached(self) -> dict[str, Tensor]:
        """Layer name → the gradient of the last `backward` there, if it came so far."""

    def backward(self, score: Tensor, *, retain_graph: bool = False) -> None:
        """Differentiate a scalar back to the layers."""


def answer(
    questions: Sequence[Question],
    outputs: list[Output],
    signals: Signals,
    grids: dict[str, Grid],
) -> list[Answer | CamError]:
    """Answer a question for each image of a batch, or several, from what its forward pass left:
    see `explain_batch`."""
    found: list[Answer | CamError] = []
    for start in range(0, len(questions), max(len(outputs), 1)):
        some = questions[start : start + len(outputs)]
        more = start + len(some) < len(questions)
        found += _answer_one_each(some, outputs, signals, grids, retain_graph=more)
    return found


def _answer_one_each(
    questions: Sequence[Question],
    outputs: list[Output],
    signals: Signals,
    grids: dict[str, Grid],
    *,
    retain_graph: bool,
) -> list[Answer | CamError]:
    said = detached(outputs)
    asked = [question.resolve(each) for question, each in zip(questions, said, strict=True)]
    rounds = max(
        (len(targets) for targets in asked if not isinstance(targets, CamError)), default=0
    )
    maps: list[list[dict[str, Found | CamError]]] = [[] for _ in asked]
    for turn in range(rounds):
        chosen = {
            item: targets[turn]
            for item, targets in enumerate(asked)
            if not isinstance(targets, CamError) and turn < len(targets)
        }
        numbers = []
        for item, target in list(chosen.items()):
            if METHODS[questions[item].method].differentiates:
                try:
                    numbers.append(_score(questions[item], target, outputs[item]))
                except CamError as error:
                    asked[item] = error
                    del chosen[item]
        if numbers:
            keep = retain_graph or turn + 1 < rounds
            signals.backward(torch.stack(numbers).sum(), retain_graph=keep)
        # A map that knows no class is the same for every target.
        known = [
            item
            for item in chosen
            if maps[item] and not METHODS[questions[item].method].class_specific
        ]
        for item in known:
            maps[item].append(maps[item][0])
        new = [item for item in chosen if item not in known]
        for item, found in _maps(signals, grids, questions, new).items():
            if METHODS[questions[item].method].levels:
                found = _of_levels(found, signals)
            maps[item].append(found)
    return [
        compose(question, targets, each, found)
        for question, targets, each, found in zip(questions, asked, said, maps, strict=True)
    ]


def _score(question: Question, target: Target, output: Output) -> Tensor:
    """
    Raises:
        CamError: of this item alone.
    """
    score = score_of(question, target, output).float()
    if not score.requires_grad:
        layers = ", ".join(map(repr, question.layers))
        raise NoGradientPath(f"the target does not depend on layer {layers}")
    return score


def _maps(
    signals: Signals, grids: dict[str, Grid], questions: Sequence[Question], items: list[int]
) -> dict[int, dict[str, Found | CamError]]:
    """Item → layer → its map from the last backward pass: one call for each way of making maps,
    and layer."""
    groups: dict[tuple[str, bool, bool, str], list[int]] = defaultdict(list)
    for item in items:
        asked = questions[item]
        for layer in asked.layers:
            groups[asked.method, asked.signed, asked.smooth == "eigen", layer].append(item)
    activations, reached = signals.activations, signals.reached
    found: dict[int, dict[str, Found | CamError]] = {item: {} for item in items}
    for (name, signed, eigen, layer), members in groups.items():
        a = _of(members, grids[layer].apply(activations[layer]))
        g = a.new_zeros(()).expand(a.shape)
        some = [True] * len(members)
        finite = _finite(a)
        if METHODS[name].differentiates:
            if layer not in reached:
                for item in members:
                    found[item][layer] = NoGradientPath(
                        f"the target does not depend on layer {layer!r}"
                    )
                continue
            g = _of(members, grids[layer].apply(reached[layer]))
            finite &= _finite(g)
            if METHODS[name].levels:
                some = g.flatten(1).any(1).tolist()
        if not finite.all():
            a = torch.where(finite[:, None, None, None], a, 0)
            g = torch.where(finite[:, None, None, None], g, 0)
        try:
            maps = METHODS[name].apply(a, g, eigen=eigen)
        except CamError as error:
            for item in members:
                found[item][layer] = error
            continue
        maps = maps if signed else maps.relu()
        finite &= maps.isfinite().flatten(1).all(1)
        problem = NonFinite(f"the gradients or activations at layer {layer!r} are not finite")
        for item, values, good, any_there in zip(
            members, maps.cpu().numpy(), finite.tolist(), some, strict=True
        ):
            found[item][layer] = Found(values, reached=any_there) if good else problem
    return found


def _of_levels(found: dict[str, Found | CamError], signals: Signals) -> dict[str, Found | CamError]:
    """One map of all the levels that the score reaches, named after them."""
    failed: dict[str, Found | CamError] = {
        name: each
        for name, each in found.items()
        if isinstance(each, CamError) and not isinstance(each, NoGradientPath)
    }
    if failed:
        return failed
    reached = {
        name: each.map for name, each in found.items() if isinstance(each, Found) and each.reached
    }
    if not reached:
        names = ", ".join(map(repr, found))
        return {
            " + ".join(found): NoGradientPath(
                f"the box's score has no gradient at layer {names}: name the levels that the model "
                "makes its boxes from"
            )
        }
    last = ends(set(reached), ancestors({name: signals.outputs[name] for name in reached}))
    chosen = {name: each for name, each in reached.items() if name in last}
    return {" + ".join(chosen): Found(fused_levels(chosen))}


def _of(members: list[int], values: Tensor) -> Tensor:
    """Those rows; of all rows no copy."""
    return values if members == list(range(len(values))) else values[members]


def _finite(values: Tensor) -> Tensor:
    """Whether all numbers of each row are finite, (n,)."""
    # What is not finite leaves no sum finite; a sum of finite numbers may overflow.
    sums = values.sum(dim=(1, 2, 3)).isfinite()
    return sums if sums.all() else values.isfinite().flatten(1).all(1)
