"""The answers about a batch: numbers and maps of the whole batch. An image's answer is made from
them when it is read."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import overload

from torch import Tensor

from cam.errors import CamError
from cam.explanation import ExplainedImage, Question
from cam.hooks.precision import full_precision
from cam.methods import METHODS
from cam.outputs.outputs import Outputs
from cam.outputs.transfer import Copy
from cam.passes.composition import ComputedMap, compose
from cam.passes.maps import MapRows, Maps, Signals, of_levels
from cam.passes.scores import Scores, Targets
from cam.targets import Target

Answered = ExplainedImage | CamError
OfLayers = Mapping[str, ComputedMap | CamError]


@dataclass(frozen=True, eq=False)
class Turn:
    """One target of each image: its score and its maps, on the model's device."""

    scores: Scores | None
    """The scores that were gathered."""
    maps: list[Maps]


@dataclass(frozen=True, eq=False)
class Round:
    """One question for each image, and what was computed for it on the model's device."""

    questions: Sequence[Question]
    targets: Targets
    turns: Sequence[Turn] = ()
    own: Collection[str] = ()
    """The layers that return the model's own output."""


@dataclass(frozen=True, eq=False)
class _Row:
    """A turn on the host."""

    numbers: Mapping[int, tuple[float, float | None]]
    maps: list[MapRows]
    joined: dict[int, OfLayers] = field(default_factory=dict)
    """Maps that are made of those of several layers."""

    def of(self, item: int) -> OfLayers:
        """Return an item's maps by layer."""
        return self.joined.get(item) or {
            maps.layer: maps[item] for maps in self.maps if item in maps.places
        }


@dataclass(frozen=True, eq=False)
class _Asked:
    """A round on the host."""

    questions: Sequence[Question]
    own: Collection[str]
    resolved: dict[int, list[Target] | CamError]
    turns: list[_Row]


class BatchAnswer(Sequence[Answered]):
    """The answers to one question or several for each of B images: first the first question's.

    Args:
        outputs: the model's output for the batch.
        rounds: one for each question.
    """

    def __init__(self, outputs: Outputs, rounds: Sequence[Round]) -> None:
        self._size, self._count = len(outputs), sum(len(of.questions) for of in rounds)
        self._made: dict[int, Answered] = {}
        facts = outputs.facts
        tensors = [*facts, *(each for of in rounds for turn in of.turns for each in _tensors(turn))]
        self._copy: Copy | None = Copy(tensors)
        self._computed: tuple[Outputs, Sequence[Round], int] | None = outputs, rounds, len(facts)

    @property
    def waits(self) -> bool:
        """Whether the device is yet to compute the answers: reading one, or `wait`, waits."""
        return self._copy is not None and self._copy.waits

    def wait(self) -> None:
        """Wait for the device, the only time that this happens. In any thread, but in one."""
        if self._copy is None or self._computed is None:
            return
        copied = iter(self._copy.wait())
        outputs, rounds, facts = self._computed
        told = [next(copied) for _ in range(facts)]
        self._outputs = outputs.tell(told) if facts else outputs.told
        # What is kept has no tensor of the graph.
        self._rounds = [
            _Asked(
                of.questions, of.own, of.targets.resolved, [_row(turn, copied) for turn in of.turns]
            )
            for of in rounds
        ]
        self._copy = self._computed = None

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, item: int) -> Answered: ...
    @overload
    def __getitem__(self, item: slice) -> list[Answered]: ...
    def __getitem__(self, item: int | slice) -> Answered | list[Answered]:
        if isinstance(item, slice):
            return [self[each] for each in range(*item.indices(len(self)))]
        number = range(len(self))[item]
        if number not in self._made:
            self._made[number] = self._composed(number)
        return self._made[number]

    def replace(self, number: int, answer: Answered) -> None:
        """Put another answer in the place of one."""
        self._made[number] = answer

    def join_levels(self, signals: Signals) -> None:
        """Make one map of those of several layers, where the method does: see `of_levels`."""
        self.wait()
        for asked in self._rounds:
            for item, question in enumerate(asked.questions):
                if METHODS[question.method].levels:
                    for row in asked.turns:
                        if found := row.of(item):
                            row.joined[item] = of_levels(question.method, found, signals)

    @property
    def unreached(self) -> list[int]:
        """Numbers of the answers with a map whose score has no gradient."""
        self.wait()
        found = {
            number * self._size + item
            for number, asked in enumerate(self._rounds)
            for row in asked.turns
            for maps in row.maps
            for item in maps.unreached
        }
        return sorted(found)

    def _composed(self, number: int) -> Answered:
        self.wait()
        turn, item = divmod(number, self._size)
        asked, output = self._rounds[turn], self._outputs[item]
        question, rows = asked.questions[item], asked.turns
        known = asked.resolved.get(item)
        targets = question.resolve(output) if known is None else known
        if isinstance(targets, CamError):
            return targets
        several = rows[: len(targets)]
        maps = [row.of(item) or rows[0].of(item) for row in several]
        if known is None:
            numbers = [row.numbers[item] for row in several]
            return compose(question, targets, output, maps, asked.own, numbers)
        with full_precision():  # the scores are computed now
            return compose(question, targets, output, maps, asked.own)


def _tensors(turn: Turn) -> list[Tensor]:
    numbers = [] if turn.scores is None else turn.scores.tensors
    return [*numbers, *(tensor for maps in turn.maps for tensor in maps.tensors)]


def _row(turn: Turn, copied: Iterator[Tensor]) -> _Row:
    """Return a turn with its tensors, the next of those that were copied to the host."""
    numbers = {} if turn.scores is None else turn.scores.numbers(copied)
    return _Row(numbers, [MapRows(each, copied) for each in turn.maps])
