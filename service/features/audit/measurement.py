"""Measuring one photo of an audit: faithfulness, stability, sanity, localisation and cost."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from io import BytesIO
from typing import Any, Final

import numpy as np
from PIL import Image

from cam import METHODS, ClassTarget, Explanation, Question
from cam.agreement import spearman
from cam.drawing.heatmap import minmax
from cam.drawing.placement import Float, shrink
from cam.evaluation.candidate import Candidate, candidates_of
from cam.evaluation.metrics import METRICS, MetricOptions, Scores
from cam.evaluation.similarity import Similarity, similarity
from service import __version__
from service.backend.interface import ModelBackend
from service.backend.outcome import Prediction
from service.backend.work import Evaluate, Explain, Pixels
from service.core.errors import OutOfMemory, Unexplainable
from service.features.audit.grids import SURE, Neighbours, PhotoGrid, share_inside
from service.features.audit.plan import SIDES, STAGES, Plan, with_target
from service.features.audit.records import ArmRecord, Numbers, PhotoRecord
from service.features.audit.work import Randomise
from service.features.jobs.records import storable
from service.models.preprocessing import ModelInput
from service.pipeline.resolve import target_of
from service.pipeline.targets import TargetParameter

MAP_SIDE: Final = 14
"""Largest number of positions along a side of the maps that a record keeps."""
THUMBNAIL: Final = 96
"""Longer side of a thumbnail in pixels."""
SAME: Final = 1e-4
"""Largest difference of two maps, scaled to 0 … 1, that are scored once."""
LEAST_RISE: Final = 1.01
"""Least ratio of two probabilities that rounding does not explain."""
NOT_PREDICTED: Final = "the class that is explained is not the predicted one"
UNSURE: Final = f"the model is not sure of the class, whose probability is below {SURE:g}"
TOO_FEW: Final = "other classes have too few photos of which the model is sure"
NOT_FOUND: Final = "the model no longer finds the class in the grid, beside the other photos"

Explanations = dict[str, tuple[Explanation, ...]]
"""Method → its explanations, one for each of its layers."""


@dataclass
class Localised:
    """What the grids of one photo tell."""

    shares: dict[str, Numbers] = field(default_factory=dict)
    """Name of a method → side of a grid → share of the positive heat in the photo's own cell."""
    alike: dict[str, float | None] = field(default_factory=dict)
    """Name of a method → rank correlation of its maps of two classes."""
    problem: str | None = None
    """Why there is no grid, as a clause."""
    warnings: list[str] = field(default_factory=list)


@dataclass
class _Steps:
    """The progress of one photo: the passes of each part, some of which are made."""

    passes: Mapping[str, int]
    progress: Callable[[float], None]
    made: int = 0

    def within(self, part: str, share: float) -> None:
        """Tell that a share of a part's passes is made."""
        self.progress((self.made + share * self.passes[part]) / sum(self.passes.values()))

    def finish(self, part: str) -> None:
        self.within(part, 1)
        self.made += self.passes[part]


class AuditMeasurement:
    """Measures the photos of one audit.

    Args:
        replicas: the model.
        neighbours: the photos that can stand in grids.
    """

    def __init__(self, replicas: ModelBackend, plan: Plan, neighbours: Neighbours) -> None:
        self._replicas = replicas
        self._plan = plan
        self._neighbours = neighbours
        self._names = {
            question.method: [arm.name for arm in plan.arms if arm.method == question.method]
            for question in plan.questions
        }
        """Method → names of its arms, in the order of its explanations."""

    async def measure(
        self,
        number: int,
        item: str,
        seen: ModelInput,
        sent: TargetParameter | None = None,
        warnings: Sequence[str] = (),
        progress: Callable[[float], None] = lambda share: None,
    ) -> PhotoRecord:
        """Measure one photo. All passes are of background priority but for those that are timed.

        Args:
            number: number of the photo in the audit, from 0.
            item: name of the photo.
            seen: what the model sees of the photo.
            sent: the class of the photo, as a parameter; None for the predicted class.
            progress: called with the share of the photo's passes that are made, 0 … 1.

        Raises:
            Problem: if the photo cannot be measured at all. A method that has no map of it is only
                noted in the record.
        """
        plan, model = self._plan, self._replicas.model
        assert not isinstance(sent, list)  # `plan_of` accepts one class
        target = target_of(model, sent)
        assert isinstance(target, ClassTarget)
        steps = _Steps(plan.passes(sanity=plan.is_for_sanity(number)), progress)
        outcome = await self._replicas.ask(Explain(seen, priority="background"))
        likely = _probabilities(outcome.value.prediction)
        predicted = int(likely.argmax())
        wanted = predicted if target.index is None else target.index
        asked = [with_target(question, ClassTarget(wanted)) for question in plan.questions]
        explanations, problems = await self._explained(seen, asked)
        maps = self._by_arm(explanations)
        usable = {
            name: explanation for name, explanation in maps.items() if np.ptp(explanation.map) > 0
        }
        steps.finish("maps")
        scores, baselines = await self._scored(
            seen, asked, explanations, usable, partial(steps.within, "scores")
        )
        steps.finish("scores")
        able = [question for question in asked if question.method in explanations]
        stages, sanity_problem = await self._sanity(number, seen, able)
        steps.finish("sanity")
        localised = await self._localised(number, seen, able, likely, wanted)
        alike = {"grid": localised.alike}
        if plan.is_for_sanity(number) and len(likely) > 1:
            other = _another(wanted, len(likely), [plan.seed, number])
            own = {name: explanation.map for name, explanation in usable.items()}
            alike["photo"] = await self._as_another(seen, able, own, other)
        costs = await self._costs(seen, able) if plan.is_for_cost(number) else {}

        def record(name: str, method: str) -> ArmRecord:
            return ArmRecord(
                **_map_record(maps.get(name), problems.get(method)),
                scores=scores.get(name, {}),
                sanity=stages.get(name),
                grids=localised.shares.get(name, {}),
                other_class={
                    image: likeness[name] for image, likeness in alike.items() if name in likeness
                },
                **costs.get(name, {}),
            )

        return PhotoRecord(
            index=number,
            item=storable(item),
            target=wanted,
            label=model.labels.name(wanted),
            asked=sent is not None,
            probability=float(likely[wanted]),
            predicted=predicted,
            confidence=float(likely.max()),
            logit=self._logit(outcome.value.prediction, predicted),
            arms={arm.name: record(arm.name, arm.method) for arm in plan.arms},
            baselines=baselines,
            sanity_problem=sanity_problem,
            grid_problem=localised.problem,
            enlarged=self._neighbours.enlarged,
            thumbnail=_thumbnail(seen),
            warnings=[*warnings, *localised.warnings],
            measured=datetime.now(UTC).isoformat(timespec="seconds"),
            made_with=self._made_with(),
        )

    def _by_arm(self, by_method: Explanations) -> dict[str, Explanation]:
        """Return the explanations by the names of arms, from those by method."""
        return {
            name: explanation
            for method, explanations in by_method.items()
            for name, explanation in zip(self._names[method], explanations, strict=True)
        }

    def _made_with(self) -> dict[str, str]:
        """Return what the numbers depend on, beside the weights and the parameters that the plan
        was made of. Several photos may be measured by different versions."""
        devices = dict.fromkeys(self._replicas.devices.split(", "))
        return {
            "gradcam-service": __version__,
            "torch": version("torch"),
            "device": ", ".join(devices),
            "dtype": self._replicas.model.precision,
            "fit": self._plan.fit,
        }

    async def _explained(
        self, seen: ModelInput, questions: Sequence[Question]
    ) -> tuple[Explanations, dict[str, str]]:
        """Return the explanations of each method, and the reasons of those methods that have
        none."""
        with suppress(Unexplainable):  # one of them; which one is found out one by one
            outcome = await self._replicas.ask(Explain(seen, questions, "background"))
            explained = {
                question.method: tuple(
                    explanation
                    for explanation in outcome.value.explanations
                    if explanation.method == question.method
                )
                for question in questions
            }
            return explained, {}
        return await self._explained_singly(seen, questions)

    async def _explained_singly(
        self, seen: ModelInput, questions: Sequence[Question]
    ) -> tuple[Explanations, dict[str, str]]:
        """Return the same as `_explained`, by a question at a time."""
        explained: Explanations = {}
        problems = {}
        for question in questions:
            try:
                outcome = await self._replicas.ask(Explain(seen, (question,), "background"))
                explained[question.method] = outcome.value.explanations
            except Unexplainable as problem:
                problems[question.method] = problem.detail
        return explained, problems

    async def _scored(
        self,
        seen: ModelInput,
        questions: Sequence[Question],
        explanations: Explanations,
        usable: dict[str, Explanation],
        progress: Callable[[float], None],
    ) -> tuple[dict[str, Numbers], dict[str, Numbers]]:
        """Return the scores of each map, and those of the baselines; tell the share of the passes
        without maps that are made."""
        scores: dict[str, Numbers] = {name: {} for name in usable}
        baselines: dict[str, Numbers] = {}

        def note(arm: str, given: Scores) -> None:
            for metric, score in given.items():
                scores[arm][metric] = score.value
                for name, value in score.baselines.items():
                    baselines.setdefault(name, {}).setdefault(metric, value)

        # A recommendation is about the mean of many photos, for which one random map of each do.
        options = MetricOptions(random_maps=1)
        plain = [name for name in self._plan.metrics if not METRICS[name].maps(options)]
        again = [name for name in self._plan.metrics if METRICS[name].maps(options)]
        if plain and usable:
            groups = _alike(usable)
            candidates = [Candidate(usable[group[0]].map) for group in groups]
            outcome = await self._replicas.ask(
                Evaluate(seen.pixels, questions[0], candidates, plain, options),
                progress=lambda step: progress(step.done / step.total),
            )
            for group, given in zip(groups, outcome.value, strict=True):
                for name in group:
                    note(name, given)
        first = True
        for question in questions if again else ():
            mine = explanations.get(question.method, ())
            names = self._names[question.method]
            if not any(name in usable for name in names):
                continue
            options = MetricOptions(random_maps=1) if first else MetricOptions(baselines=())
            work = Evaluate(seen.pixels, question, candidates_of(mine), again, options)
            outcome = await self._replicas.ask(work)
            first = False
            for name, given in zip(names, outcome.value, strict=True):
                if name in usable:
                    note(name, given)
        return scores, baselines

    async def _sanity(
        self,
        number: int,
        seen: ModelInput,
        questions: Sequence[Question],
    ) -> tuple[dict[str, list[Similarity]], str | None]:
        """Return how alike each map is to the maps of the randomised models, a stage each, and the
        reason if the model's weights cannot be replaced; nothing, if the photo is not one of those
        that this is asked for."""
        if not questions or not self._plan.is_for_sanity(number):
            return {}, None
        signed = [_signed(question) for question in questions]
        arms = [name for question in questions for name in self._names[question.method]]
        seed = self._plan.seed * self._plan.total + number
        try:
            own = (await self._replicas.ask(Explain(seen, signed, "background"))).value
            outcome = await self._replicas.ask(Randomise(seen.pixels, signed, STAGES, seed))
        except Unexplainable as problem:
            return {}, problem.detail
        stages: dict[str, list[Similarity]] = {name: [] for name in arms}
        for maps in outcome.value:
            for name, mine, other in zip(arms, own.explanations, maps, strict=True):
                alike = Similarity() if other is None else similarity(mine.map, other)
                stages[name].append(alike)
        return stages, None

    async def _localised(
        self,
        number: int,
        seen: ModelInput,
        questions: Sequence[Question],
        likely: Float,
        wanted: int,
    ) -> Localised:
        """Return how much of each map's positive heat lies in the photo's cell of each grid, and
        how alike the maps of two classes of the smallest grid are. A photo stands in a grid only
        if the model is sure that it shows the wanted class."""
        if wanted != int(likely.argmax()):
            return Localised(problem=NOT_PREDICTED)
        if likely[wanted] < SURE:
            return Localised(problem=UNSURE)
        localised = Localised()
        if not questions:
            return localised
        for side in SIDES:
            try:
                grid = await self._neighbours.grid(
                    self._replicas, number, seen.pixels, wanted, side
                )
                if grid is None:
                    localised.problem = localised.problem or TOO_FEW
                    break
                if not await self._finds(grid, wanted):
                    localised.problem = NOT_FOUND
                    continue
                await self._in_grid(number, grid, questions, localised)
            except OutOfMemory as problem:  # for n² photos at once; the record has the rest
                localised.problem = f"no grid of {side} × {side}: {problem.detail}"
                localised.warnings.append(localised.problem)
                break
        if localised.shares:
            localised.problem = None
        return localised

    async def _finds(self, grid: PhotoGrid, target: int) -> bool:
        """Return whether the model finds the class in the grid: it is one of the n² most probable
        ones, or, of a model with no more classes, more probable than without the photo. Where it is
        not, a map of the class has no right place."""
        likely = await self._likely(grid.pixels)
        if len(likely) > grid.side**2:
            return int((likely > likely[target]).sum()) < grid.side**2
        without = await self._likely(grid.without)
        chance, before = float(likely[target]), float(without[target])
        # Relative, of what speaks for the class or against it: beside n² − 1 photos of another
        # class, both probabilities can be near 0.
        return chance > before * LEAST_RISE or 1 - before > (1 - chance) * LEAST_RISE

    def _logit(self, prediction: Prediction, index: int) -> float | None:
        """Return the logit of a class; None where the outputs are probabilities already."""
        if self._replicas.model.activation == "none" or prediction.logits is None:
            return None
        return float(prediction.logits[index])

    async def _likely(self, pixels: Pixels) -> Float:
        work = Explain(ModelInput.of(pixels), priority="background")
        outcome = await self._replicas.ask(work)
        return _probabilities(outcome.value.prediction)

    async def _in_grid(
        self,
        number: int,
        grid: PhotoGrid,
        questions: Sequence[Question],
        localised: Localised,
    ) -> None:
        """Add what the maps of one grid tell."""
        # All methods together would be one step of the engine, for which requests wait: a grid
        # takes up to nine times as long as a photo.
        seen = ModelInput.of(grid.pixels)
        explanations, _ = await self._explained_singly(seen, questions)
        maps = {name: explanation.map for name, explanation in self._by_arm(explanations).items()}
        for name, values in maps.items():
            localised.shares.setdefault(name, {})[str(grid.side)] = share_inside(values, grid)
        if grid.side == SIDES[0] and self._plan.is_for_sanity(number):
            able = [question for question in questions if question.method in explanations]
            own = {name: values for name, values in maps.items() if np.ptp(values) > 0}
            localised.alike |= await self._as_another(seen, able, own, grid.other)

    async def _as_another(
        self,
        seen: ModelInput,
        questions: Sequence[Question],
        own: dict[str, Float],
        other: int,
    ) -> dict[str, float | None]:
        """Return the rank correlation of each map with the map of another class of the image; 0 for
        a map of that class that is the same everywhere."""
        asked = [with_target(question, ClassTarget(other)) for question in questions]
        explanations, _ = await self._explained_singly(seen, asked)
        return {
            name: spearman(own[name], explanation.map) or 0.0
            for name, explanation in self._by_arm(explanations).items()
            if name in own
        }

    async def _costs(
        self, seen: ModelInput, questions: Sequence[Question]
    ) -> dict[str, dict[str, Any]]:
        """Return what one map of each arm costs alone."""
        costs = {}
        for question in questions:
            names = self._names[question.method]
            for name, layer in zip(names, question.layers or ("",), strict=False):
                alone = question if len(names) == 1 else replace(question, layers=(layer,))
                costs[name] = await self._spent(seen, alone)
        return costs

    async def _spent(self, seen: ModelInput, question: Question) -> dict[str, Any]:
        """Return what one map costs alone, at interactive priority, without other images."""
        outcome = await self._replicas.ask(Explain(seen, (question,)))
        method, (explanation, *_) = METHODS[question.method], outcome.value.explanations
        many = (method.budget or 1) if method.cost.startswith("N") else 1
        return {
            # An answer from the cache took no time.
            "milliseconds": 1000 * outcome.run_seconds if outcome.run_seconds else None,
            "forwards": explanation.passes.made if explanation.passes else many,
        }


def _map_record(explanation: Explanation | None, problem: str | None) -> dict[str, Any]:
    """Return the fields of an arm's record that state its map, or why it has none."""
    if explanation is None:
        return {"problem": problem}
    if np.ptp(explanation.map) == 0:
        return {"problem": "the map is the same everywhere"}
    return {"map": _coarse(explanation.map)}


def _another(wanted: int, count: int, seed: Sequence[int]) -> int:
    """Return one of the other classes at random. The second most probable class would not do,
    because the same pixels may be the evidence for it."""
    drawn = int(np.random.default_rng(seed).integers(count - 1))
    return drawn + (drawn >= wanted)


def _signed(question: Question) -> Question:
    return Question(
        question.targets,
        question.method,
        question.layers,
        question.budget,
        signed=METHODS[question.method].signed,
    )


def _alike(maps: dict[str, Explanation]) -> list[list[str]]:
    """Return the names of the maps, those of equal maps together: behind a pooled linear head,
    several methods make the same map, which is scored once."""
    groups: list[tuple[Float, list[str]]] = []
    for name, explanation in maps.items():
        scaled = minmax(explanation.map)
        for other, names in groups:
            if other.shape == scaled.shape and np.abs(other - scaled).max() <= SAME:
                names.append(name)
                break
        else:
            groups.append((scaled, [name]))
    return [names for _, names in groups]


def _coarse(values: Float) -> list[list[float]]:
    height, width = (min(side, MAP_SIDE) for side in values.shape)
    small = shrink(minmax(values.clip(min=0)), height, width)
    rows: list[list[float]] = np.round(small.astype(np.float64), 3).tolist()
    return rows


def _thumbnail(seen: ModelInput) -> str:
    picture = Image.fromarray(seen.pixels)
    picture.thumbnail((THUMBNAIL, THUMBNAIL))
    written = BytesIO()
    picture.save(written, "JPEG", quality=80)
    return base64.b64encode(written.getvalue()).decode()


def _probabilities(prediction: Prediction) -> Float:
    """Return the probabilities of the classes.

    Raises:
        Problem: if they are not finite.
    """
    assert prediction.probabilities is not None  # only classifiers are audited
    if not np.isfinite(prediction.probabilities).all():
        raise Unexplainable("the model's output for this photo is not finite")
    return prediction.probabilities
