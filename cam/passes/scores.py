"""The scores of a batch's targets: those of classes are gathered at once, others are computed one
after another."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cam.errors import CamError, NoGradientPath
from cam.explanation import Question
from cam.hooks.capture import no_path
from cam.methods import METHODS
from cam.outputs.output import scale_of
from cam.outputs.outputs import Outputs
from cam.outputs.reading import probabilities_of
from cam.passes.composition import score_of
from cam.targets import ClassTarget, Target


@dataclass(frozen=True, eq=False)
class Scores:
    """The scores of one target of each of some items, on the model's device."""

    items: list[int]
    values: Tensor
    """Scores, float32 (n,), with a graph."""
    probabilities: Tensor | None
    """Probabilities of the classes, float32 (n,); None if the outputs are values."""

    @property
    def tensors(self) -> list[Tensor]:
        """The scores and the probabilities, for their copy to the host."""
        return [self.values] if self.probabilities is None else [self.values, self.probabilities]

    def numbers(self, copied: Iterator[Tensor]) -> dict[int, tuple[float, float | None]]:
        """Return each item's score and probability: the next ones of the copied tensors."""
        scores = next(copied).tolist()
        likely = [None] * len(scores) if self.probabilities is None else next(copied).tolist()
        return dict(zip(self.items, zip(scores, likely, strict=True), strict=True))

    def scales(self, outputs: Outputs) -> Tensor:
        """Return for each score the factor of `cam.outputs.output.scale_of`, float32 (n,)."""
        (gradient,) = torch.autograd.grad(
            self.values.sum(), outputs.numbers, retain_graph=True, materialize_grads=True
        )
        greatest = gradient[self.items].abs().flatten(1).amax(1)
        usable = (greatest > 0) & greatest.isfinite()
        _, exponents = torch.frexp(torch.where(usable, greatest, 0.5))
        return torch.ldexp(torch.ones_like(greatest), (1 - exponents).clamp(max=126))


class Targets:
    """The targets of one question for each image of a batch.

    The scores of classes of a classifier, of outputs of a regression and of a segmenter's classes
    are made of the batch's tensors, without waiting for the device: see `at_once`. Boxes, masks,
    units, similarities, texts and methods with a score of their own are resolved and computed one
    after another, at `one_by_one`.

    Args:
        outputs: with a graph where there is one.
    """

    def __init__(self, questions: Sequence[Question], outputs: Outputs) -> None:
        self._questions, self._outputs = questions, outputs
        together = outputs.kind in ("classes", "segments", "value")
        self.resolved: dict[int, list[Target] | CamError] = {
            item: question.resolve(outputs.told[item])
            for item, question in enumerate(questions)
            if not together
            or METHODS[question.method].score is not None
            or not all(map(_is_of_whole_image, question.targets))
        }
        """The targets of the items whose scores are not gathered, or what is wrong with them."""

    @property
    def rounds(self) -> int:
        """The largest number of targets of an item."""
        every = (
            self.resolved.get(item, question.targets)
            for item, question in enumerate(self._questions)
        )
        return max((len(some) for some in every if not isinstance(some, CamError)), default=0)

    def at_once(self, turn: int) -> Scores | None:
        """Return the scores of the gathered items that have a target of that number."""
        items = self._gathered_at(turn)
        if not items:
            return None
        targets = [self._questions[item].targets[turn] for item in items]
        return _gathered(items, targets, self._outputs)

    def one_by_one(self, turn: int) -> dict[int, Target]:
        """Return the other items' targets of that number."""
        return {
            item: targets[turn]
            for item, targets in self.resolved.items()
            if not isinstance(targets, CamError) and turn < len(targets)
        }

    def items(self, turn: int) -> list[int]:
        """Return the items that have a target of that number."""
        return sorted([*self._gathered_at(turn), *self.one_by_one(turn)])

    def differentiable(
        self, turn: int, scores: Scores | None, *, half: bool, unrecorded: Collection[str]
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return the sum of the scores to differentiate for that target, and in half precision the
        factor by which each item's score was multiplied before, float32 (items,): see
        `cam.outputs.output.scale_of`. Without a score to differentiate the sum is None. An item
        whose score has no gradient gets an error in the place of its targets.

        Args:
            scores: those of the gathered items, see `at_once`.
            unrecorded: layers that have no gradient.
        """
        device = self._outputs.numbers.device
        factors = torch.ones(len(self._questions), device=device) if half else None
        values = []
        items = scores.items if scores else []
        places = [place for place, item in enumerate(items) if self._differentiates(item)]
        others = {
            item: target
            for item, target in self.one_by_one(turn).items()
            if self._differentiates(item)
        }
        if scores and places and not scores.values.requires_grad:
            for place in places:
                self.resolved[items[place]] = self._no_path(items[place], unrecorded)
        elif scores and places:
            own = scores.values
            if factors is not None:
                factors[items] = scores.scales(self._outputs)
                own = own * factors[items]
            values.append(own if len(places) == len(items) else own[places])
        for item, target in others.items():
            try:
                score = score_of(self._questions[item], target, self._outputs[item]).float()
                if not score.requires_grad:
                    raise self._no_path(item, unrecorded)
            except CamError as error:
                self.resolved[item] = error.with_traceback(None)
                continue
            if factors is not None:
                factors[item] = scale = scale_of(self._outputs[item], score)
                score = score * scale
            values.append(score[None])
        if not values:
            return None, None
        return (values[0] if len(values) == 1 else torch.cat(values)).sum(), factors

    def _gathered_at(self, turn: int) -> list[int]:
        return [
            item
            for item, question in enumerate(self._questions)
            if item not in self.resolved and turn < len(question.targets)
        ]

    def _differentiates(self, item: int) -> bool:
        return METHODS[self._questions[item].method].differentiates

    def _no_path(self, item: int, unrecorded: Collection[str]) -> NoGradientPath:
        return no_path(self._questions[item].layers, unrecorded)


def _is_of_whole_image(target: Target) -> bool:
    return isinstance(target, ClassTarget) and target.box is None and target.mask is None


def _gathered(items: list[int], targets: Sequence[Target], outputs: Outputs) -> Scores:
    """Return the scores of one class of each item. A class that the model has not is another one
    here; `ClassTarget.resolve` refuses it."""
    classes = [target for target in targets if isinstance(target, ClassTarget)]
    device = outputs.numbers.device
    rows = torch.tensor(items, device=device) if len(items) < len(outputs) else None
    logits = numbers = _of(rows, outputs.numbers)
    likely = None if outputs.probabilities is None else _of(rows, outputs.probabilities)
    predicted = _predicted(classes, outputs, rows)
    # The shape in which a number for each item stands beside its class's number or pixels.
    beside = [-1, *[1] * (logits.ndim - 2)]

    def chosen(indices: Sequence[int | None]) -> Tensor:
        """Return the indices, int (n, 1); the predicted class's where there is none."""
        last = logits.shape[1] - 1
        known = [-1 if index is None else min(max(index, 0), last) for index in indices]
        given = torch.tensor(known, device=device)
        if None in indices:
            given = torch.where(given < 0, predicted, given)
        return given[:, None]

    if likely is not None and any(target.of == "probability" for target in classes):
        differs = torch.tensor([target.of == "probability" for target in classes], device=device)
        shares = probabilities_of(logits, outputs.activation, axis=1)
        numbers = torch.where(differs.view(*beside, 1), shares, logits)
    index = chosen([target.index for target in classes])
    scores = _taken(numbers, index)
    if any(target.minus is not None for target in classes):
        has = torch.tensor([target.minus is not None for target in classes], device=device)
        other = _taken(numbers, chosen([target.minus for target in classes]))
        scores = scores - torch.where(has.view(beside), other, 0)
    probabilities = None if likely is None else _taken(likely, index)
    if logits.ndim > 2:
        mask = _of(rows, outputs.wins) == index[:, :, None]
        scores = torch.where(mask, scores, 0).flatten(1).sum(1)
        if probabilities is not None:
            pixels = mask.flatten(1).sum(1).clamp(min=1)
            probabilities = torch.where(mask, probabilities, 0).flatten(1).sum(1) / pixels
    if any(target.against for target in classes):
        signs = [-1.0 if target.against else 1.0 for target in classes]
        scores = scores * torch.tensor(signs, device=device)
    return Scores(items, scores, probabilities)


def _predicted(targets: Sequence[ClassTarget], outputs: Outputs, rows: Tensor | None) -> Tensor:
    """Return the class that stands for none in each target, int (n,): see `ClassTarget`."""
    if outputs.kind == "value":
        return torch.zeros(len(targets), dtype=torch.int64, device=outputs.numbers.device)
    wins = _of(rows, outputs.wins)
    if wins.ndim == 1:
        return wins
    flat = wins.flatten(1)
    counts = flat.new_zeros(len(flat), outputs.numbers.shape[1])
    counts.scatter_add_(1, flat, torch.ones_like(flat))
    backgrounds = [-1 if target.background is None else target.background for target in targets]
    if max(backgrounds) >= 0:
        given = torch.tensor(backgrounds, device=flat.device)[:, None]
        at = given.clamp(min=0)
        others = (given >= 0) & (counts.gather(1, at) < flat.shape[1])
        counts = counts.scatter(1, at, torch.where(others, 0, counts.gather(1, at)))
    return counts.argmax(1)


def _of(rows: Tensor | None, values: Tensor) -> Tensor:
    """Return some rows; None stands for all."""
    return values if rows is None else values[rows]


def _taken(values: Tensor, index: Tensor) -> Tensor:
    """Return one class of each row: of (n, C) numbers (n,), of (n, C, h, w) numbers (n, h, w)."""
    if values.ndim == 2:
        return values.gather(1, index)[:, 0]
    place = index[:, :, None, None].expand(-1, -1, *values.shape[2:])
    return values.gather(1, place)[:, 0]
