"""The audit of a vision–language model: which method explains the words of its answers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import combinations
from statistics import fmean
from typing import Any, Final

from rich.table import Table

from cam import ExplainedAnswer
from cam.agreement import spearman
from cam.answers.answer import AnswerWord
from cam.answers.methods import METHODS
from cam.evaluation.verdict import listed
from service.backend.timings import Timings
from service.core.errors import ConfigError, InvalidParameter, Problem
from service.features.answers.ask import ask
from service.features.answers.parameters import AnswerParameters
from service.features.audit.plan import LEAST_PHOTOS, Arm
from service.features.audit.recommendation import points_of, recommended, why_none
from service.features.audit.records import ArmRecord, PhotoRecord
from service.features.audit.run import chosen, write_summary
from service.features.audit.schemas import Audit, Finding, PhotoFailure
from service.features.audit.summary import summarised
from service.features.batch.inputs import open_inputs
from service.features.batch.progress import Tally, say, shown
from service.features.batch.run import INTERRUPTED, Run, cancel_at_sigterm
from service.features.report.clusters import spaced
from service.local.session import LocalSession, local_session
from service.models.info import ModelInfo
from service.pipeline.instances import Instance
from service.pipeline.parameters import AUDITED
from service.pipeline.validation import validated

USUAL: Final = tuple(name for name, method in METHODS.items() if method.audited)
"""Methods that are audited if none are named."""
WORDS: Final = 3
"""Largest number of words of an answer that are measured."""
METRICS: Final = {
    "insertion": "Area under the word's probability while the hottest pixels are put into the "
    "blurred photo, divided by its probability of the photo",
    "deletion": "Area under the word's probability while the hottest pixels are blurred, divided "
    "by its probability of the photo",
}


def audit_answers(run: Run, question: str, methods: Sequence[str], *, most: int) -> int:
    """Measure which method explains the words that a model answers to a question about photos, and
    write `audit.json` to the output folder.

    Of each photo's answer, up to `WORDS` words that the photo speaks for are measured: insertion
    and deletion of their maps, and how alike the maps of two words are. The methods are compared as
    in an audit of a classifier.

    Args:
        methods: names of methods; those of `USUAL` if there are none.
        most: largest number of photos; of more, evenly spaced ones are measured.

    Returns:
        The exit code: 0 on success, 1 if a photo could not be measured, 130 if a signal ended the
        run.

    Raises:
        ConfigError: if `most` is below `LEAST_PHOTOS`, or the results cannot be written.
        Problem: if the model answers no questions, or an argument is not allowed.
    """
    if most < LEAST_PHOTOS:
        raise ConfigError(f"--most is {most}; an audit needs {LEAST_PHOTOS} photos or more")
    if AUDITED in methods:
        raise InvalidParameter(f"method {AUDITED!r} is what an audit finds; name methods, or none")
    asked = [
        validated(AnswerParameters, {"question": question, "method": name})
        for name in dict.fromkeys(methods or USUAL)
    ]
    audit = run.finish(lambda: asyncio.run(_audit(run, asked, most)))
    if audit is None:
        return INTERRUPTED
    table = Table("method", "beats", "insertion ↑", "deletion ↓", "other word ↓", "passes")
    for arm in audit.arms:
        numbers = (
            arm.points,
            arm.scores["insertion"],
            arm.scores["deletion"],
            arm.other_class["photo"],
        )
        row = ("–" if each is None else f"{each.mean:.2f}" for each in numbers)
        table.add_row(arm.method, *row, str(arm.forwards))
    run.console.print(table)
    for finding in audit.findings:
        say(finding.sentence, run.console)
    if best := audit.recommendation:
        say(f"Recommended: {best.method}: {best.reason}.", run.console)
    else:
        say(f"No method can be recommended: {audit.why_none}.", run.console)
    return 1 if audit.failed else 0


async def _audit(run: Run, asked: list[AnswerParameters], most: int) -> Audit:
    cancel_at_sigterm()
    output, console = run.configuration.output, run.console
    records, failed = [], []
    with open_inputs(run.source, output) as inputs:
        names = chosen(inputs.ids, most)
        tally = Tally(len(names), 0)
        async with local_session(run.settings, run.model) as session:
            served = session.replicas.model
            if not served.answers:
                raise InvalidParameter(f"model {served.name!r} answers no questions")
            with shown(tally, console) as show:
                for number, name in enumerate(names):
                    try:
                        image = await asyncio.to_thread(inputs.read, name)
                        records.append(await _measured(session, number, name, image, asked))
                    except Problem as problem:
                        failed.append(PhotoFailure(item=name, reason=problem.detail))
                        tally.failed += 1
                    tally.done += 1
                    show()
            summary = _summary(served, records, failed, [one.method for one in asked])
    write_summary(summary, output)
    return summary


async def _measured(
    session: LocalSession, number: int, name: str, image: bytes, asked: list[AnswerParameters]
) -> PhotoRecord:
    """Return what was measured of each method on one photo.

    Raises:
        Problem: if the question cannot be answered, or the photo speaks for none of the words.
    """

    async def answered(parameters: AnswerParameters, **changes: Any) -> ExplainedAnswer:
        instance = Instance(number, name, image, "", parameters.model_copy(update=changes))
        return (await ask(session.pipeline, session.replicas, instance, Timings())).answer

    said = await answered(asked[0], method="logits")
    seen = {word.text.lower(): word for word in said.words if word.from_language is False}
    words = [word for word in seen.values() if any(map(str.isalnum, word.text))]
    if not words:
        raise InvalidParameter(f"no word of the answer {said.text[:200]!r} is said from the photo")
    words = spaced(words, WORDS)
    arms = {}
    for parameters in asked:
        found = []
        for word in words:
            changes = {"answer": said.text, "word": word.text, "evaluate": True, "evidence": False}
            found.append((await answered(parameters, **changes), word.text))
        arms[parameters.method] = _record(parameters.method, found)
    probability = fmean(word.probability for word in words)
    return PhotoRecord(
        index=number,
        item=name,
        target=0,
        label=said.text[:200],
        probability=probability,
        predicted=0,
        confidence=probability,
        arms=arms,
        measured=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _record(method: str, found: list[tuple[ExplainedAnswer, str]]) -> ArmRecord:
    """Return what was measured of a method on one photo, from the answers in which it explained one
    word each."""
    words: list[AnswerWord] = [word for one, text in found if (word := one.phrase(text))]
    maps = [word.map for word in words if word.map is not None and word.map.any()]
    scores = [one.scores for one, _ in found if one.scores is not None]
    pairs = [spearman(first, second) or 0.0 for first, second in combinations(maps, 2)]
    return ArmRecord(
        map=(maps[0] / maps[0].max()).tolist() if maps else None,
        scores={
            "insertion": fmean(score.insertion for score in scores),
            "deletion": fmean(score.deletion for score in scores),
        }
        if scores
        else {},
        other_class={"photo": fmean(pairs)} if pairs else {},
        forwards=METHODS[method].passes,
    )


def _summary(
    served: ModelInfo,
    records: list[PhotoRecord],
    failed: list[PhotoFailure],
    methods: Sequence[str],
) -> Audit:
    arms = [summarised(Arm.of(name), records, tuple(METRICS)) for name in methods]
    showing = [arm.method for arm in arms if arm.photos]
    # The formula of some methods knows no word, though their maps differ from place to place.
    able = [
        arm.method
        for arm in arms
        if arm.photos and not arm.class_blind and METHODS[arm.method].depends_on != "place"
    ]
    points, photos = points_of(records, able, tuple(METRICS))
    arms = [arm.model_copy(update={"points": points.get(arm.method)}) for arm in arms]
    reason = why_none(len(records), arms, showing, able, photos)
    compared = [arm for arm in arms if arm.points]
    findings = []
    if blind := [arm.method for arm in arms if arm.photos and arm.class_blind]:
        sentence = (
            f"{listed(blind)} hardly depend{'s' * (len(blind) == 1)} on the word: the maps of two "
            "words of one answer are nearly the same."
        )
        findings.append(Finding(kind="hardly depends on the class", sentence=sentence, arms=blind))
    return Audit(
        model=served.name,
        fingerprint=served.weights,
        made=max((record.measured or "" for record in records), default=""),
        photos=len(records),
        failed=failed,
        metrics=METRICS,
        better={"insertion": "higher", "deletion": "lower"},
        conventions={"words": f"up to {WORDS} words of an answer that the photo speaks for"},
        arms=arms,
        baselines={},
        chance={},
        findings=findings,
        recommendation=None
        if reason
        else recommended(compared, photos, by_grids=True, worse_placed={}),
        why_none=reason,
    )
