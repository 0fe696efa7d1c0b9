"""An audit of photos without a server, which goes on where it stopped."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Final

import numpy as np
from pydantic import ValidationError
from rich.console import Console

from cam import METHODS, ClassTarget
from cam.counts import counted
from cam.evaluation.candidate import Candidate
from cam.evaluation.metrics import MetricOptions
from service.backend.work import Evaluate
from service.core.concurrency import explain_many
from service.core.errors import ConfigError, InsufficientStorage, Problem, one_line
from service.core.files import written_whole
from service.features.audit.grids import Neighbours
from service.features.audit.measurement import AuditMeasurement
from service.features.audit.plan import LEAST_PHOTOS, Plan, plan_of, require_one_class, with_target
from service.features.audit.records import PhotoRecord
from service.features.audit.report import audit_page
from service.features.audit.schemas import Audit
from service.features.audit.summary import summarise
from service.features.batch.configuration import RunConfiguration
from service.features.batch.inputs import Inputs, open_inputs
from service.features.batch.progress import Tally, say, shown
from service.features.batch.run import INTERRUPTED, Run, cancel_at_sigterm
from service.features.batch.work import check, made_with, raise_last
from service.features.jobs.records import storable
from service.features.report.page import write_page
from service.local.output import writing
from service.local.session import LocalSession, local_session
from service.models.preprocessing import ModelInput
from service.pipeline.instances import Instance
from service.pipeline.parameters import Parameters

RECORDS: Final = "photos.ndjson"
SUMMARY: Final = "audit.json"
REPORT: Final = "report.html"
AT_ONCE: Final = 4
"""Photos in work for each copy of the model: passes of background priority are batches of four."""
MOST: Final = 200
"""Largest number of photos by default. More photos only narrow the intervals."""
LEAST_METHODS: Final = 3
"""Number of methods below which none is left out to save time."""
TRIED: Final = 15
"""Steps of the curve by which the time of a pass is measured."""


def audit(run: Run, *, most: int = MOST, within: float | None = None) -> int:
    """Measure which methods and layers explain a model, and write `audit.json`, `report.html` and
    the record of each photo to the output folder.

    Args:
        most: largest number of photos; of more, evenly spaced ones are measured.
        within: seconds that the audit may take; None for any. Fewer photos are measured then, and
            if that is not enough and no method is named, fewer methods.

    Returns:
        The exit code: 0 on success, 1 if a photo could not be measured, 130 if a signal ended the
        run.

    Raises:
        ConfigError: if the configuration is invalid, `most` is below `LEAST_PHOTOS`, `within` is
            too short, or results cannot be written.
        Problem: if the model cannot be audited.
    """
    if most < LEAST_PHOTOS:
        raise ConfigError(f"--most is {most}; an audit needs {LEAST_PHOTOS} photos or more")
    report = run.finish(lambda: asyncio.run(_audit(run, most, within)))
    if report is None:
        return INTERRUPTED
    console = run.console
    for finding in report.findings:
        say(finding.sentence, console)
    if best := report.recommendation:
        say(f"Recommended: {best.method} at {best.layer}: {best.reason}.", console)
    else:
        say(f"No method can be recommended: {report.why_none}.", console)
    say(f"Report: {run.configuration.output / REPORT}", console)
    return 1 if report.failed else 0


def write_summary(audit: Audit, output: Path) -> None:
    """Write `audit.json` to the output folder.

    Raises:
        ConfigError: if it cannot be written.
    """
    with writing(output), written_whole(output / SUMMARY) as temporary:
        temporary.write_text(audit.model_dump_json(indent=1) + "\n", encoding="utf-8")


async def _audit(run: Run, most: int, within: float | None) -> Audit:
    cancel_at_sigterm()
    configuration, console = run.configuration, run.console
    with open_inputs(run.source, configuration.output) as inputs:
        say(f"{counted(len(inputs.ids), 'photo')}; loading the model.", console)
        async with local_session(run.settings, run.model, spread=True) as session:
            served = session.replicas.model
            names = chosen(inputs.ids, most)
            configuration = configuration.fitted(served.preprocessing.default_fit)
            plan = plan_of(served, configuration.parameters(), len(names))
            _check_targets(configuration, inputs, names)
            say("The model is loaded; measuring how long a pass takes.", console)
            reader = _Reader(session, configuration, inputs)
            estimate = await _estimated(session, plan, names, reader)
            if within is not None:
                plan = _planned(configuration, plan, estimate, within)
                given = {**configuration.given, "method": plan.methods}
                configuration = replace(configuration, given=given)
                names = chosen(inputs.ids, plan.total)
            if estimate is not None:
                say(estimate.told(plan), console)
            check(session, configuration, [inputs.targets.get(name) for name in names])
            configuration.open(
                run.source, served.name, served.weights, made_with(served), photos=len(names)
            )
            if inputs.warning:
                say(inputs.warning, console)
            neighbours = Neighbours(
                len(names), lambda number: reader.read(names[number]), plan.seed
            )
            failed = await _measure(
                session, configuration, plan, names, reader, neighbours, console
            )
            records = read_records(configuration.output / RECORDS, names)
            summary = summarise(
                records,
                model=served.name,
                weights=served.weights,
                metrics=plan.metrics,
                failed=failed,
            )
    write_summary(summary, configuration.output)
    with writing(configuration.output):
        write_page(audit_page(summary, records), configuration.output / REPORT)
    return summary


def _check_targets(configuration: RunConfiguration, inputs: Inputs, names: list[str]) -> None:
    """Check that each photo's own target is one class.

    Raises:
        ConfigError: if one is not; the message names the photo.
    """
    for name in names:
        try:
            require_one_class(configuration.parameters(inputs.targets.get(name)))
        except Problem as problem:
            raise ConfigError(f"the row of {name[:200]!r}: {problem.detail}") from None


async def _measure(
    session: LocalSession,
    configuration: RunConfiguration,
    plan: Plan,
    names: list[str],
    reader: _Reader,
    neighbours: Neighbours,
    console: Console,
) -> dict[str, str]:
    """Measure the photos that have no record yet; return the photos that failed, with the
    reason."""
    finished = {record.index for record in read_records(configuration.output / RECORDS, names)}
    measurement = AuditMeasurement(session.replicas, plan, neighbours)

    in_work: dict[int, float] = {}
    """Number of a photo → share of its passes that are made."""

    async def work(number: int) -> PhotoRecord:
        def progress(share: float) -> None:
            in_work[number] = share
            tally.parts = sum(in_work.values())
            show()

        name = names[number]
        seen, warnings = await reader.opened(name)
        sent = reader.parameters(name).target
        return await measurement.measure(number, name, seen, sent, warnings, progress)

    tally = Tally(len(names), len(finished))
    left = [number for number in range(len(names)) if number not in finished]
    failed = {}
    with journal(configuration.output / RECORDS) as write, shown(tally, console) as show:
        async with explain_many(left, work, at_once=AT_ONCE * session.replicas.copies) as results:
            async for number, result in results:
                raise_last(session, result)
                if isinstance(result, Problem):
                    failed[names[number]] = result.detail
                    tally.failed += 1
                else:
                    write(result)
                tally.done += 1
                in_work.pop(number, None)
                tally.parts = sum(in_work.values())
                show()
    return failed


@dataclass(frozen=True)
class Estimate:
    """How long passes take."""

    seconds: float
    """Seconds of one forward pass of one photo."""

    def of(self, plan: Plan) -> float:
        """Return the seconds that an audit takes, all its photos in all its parts."""
        return self.seconds * _passes(plan)

    def told(self, plan: Plan) -> str:
        return (
            f"{counted(plan.total, 'photo')}, "
            f"{counted(len(plan.arms), 'method at a layer', 'methods at layers')}: at most about "
            f"{in_words(self.of(plan))} ({_passes(plan):,} passes of {1000 * self.seconds:.1f} ms)."
        )


def _passes(plan: Plan) -> int:
    sanity = sum(map(plan.is_for_sanity, range(plan.total)))
    checked, other = (sum(plan.passes(sanity=sanity).values()) for sanity in (True, False))
    return sanity * checked + (plan.total - sanity) * other


async def _estimated(
    session: LocalSession, plan: Plan, names: list[str], reader: _Reader
) -> Estimate | None:
    """Return how long passes take, by those of a deletion curve, on the first photo that can be
    read; None if none can."""
    options = MetricOptions(steps=TRIED, baselines=())
    for name in names:
        with suppress(Problem):
            seen = await reader.read(name)
            question = with_target(plan.questions[0], ClassTarget(None))
            heat = np.random.default_rng(0).random((7, 7), dtype=np.float32)
            work = Evaluate(seen.pixels, question, [Candidate(heat)], ["deletion"], options)
            for _ in range(2):  # the first ones are slower
                started = monotonic()
                await session.replicas.ask(work)
                spent = monotonic() - started
            # The whole photo, the steps between the ends, and the end without a pixel.
            return Estimate(spent / (TRIED + 1) / session.replicas.copies)
    return None


def _planned(
    configuration: RunConfiguration, plan: Plan, estimate: Estimate | None, within: float
) -> Plan:
    """Return the plan that fits into the time; of an audit that has begun, the plan that was made
    then, though passes may take another time now.

    Raises:
        ConfigError: if no plan fits, or the record of the audit cannot be read.
    """
    begun = configuration.begun()
    if begun is None:
        return fitting(plan, estimate, within, free="method" not in configuration.given)
    return replace(plan, total=begun["photos"], questions=plan.only(begun["methods"]))


def fitting(plan: Plan, estimate: Estimate | None, within: float, *, free: bool) -> Plan:
    """Return the plan with as many photos as fit into the time, and, if the least number does not,
    with fewer methods: first without those that ignore the class.

    Args:
        free: whether methods may be left out; at least `LEAST_METHODS` stay.

    Raises:
        ConfigError: if the least audit takes longer.
    """
    if estimate is None:
        return plan
    methods = plan.methods
    methods.sort(key=lambda name: not METHODS[name].class_specific)
    while True:
        fewer = replace(plan, questions=plan.only(methods))
        least = replace(fewer, total=LEAST_PHOTOS)
        if estimate.of(least) <= within or not free or len(methods) <= LEAST_METHODS:
            break
        methods.pop()
    if estimate.of(least) > within:
        raise ConfigError(
            f"{LEAST_PHOTOS} photos and {counted(len(methods), 'method')} take about "
            f"{in_words(estimate.of(least))}, which is more than {in_words(within)}; allow that "
            "time, or name fewer methods, layers or metrics"
        )
    totals = range(LEAST_PHOTOS, plan.total + 1)
    fits = [total for total in totals if estimate.of(replace(fewer, total=total)) <= within]
    return replace(fewer, total=fits[-1])


def seconds_of(duration: str) -> float:
    """Return the seconds of a duration such as `90s`, `10m` or `1h`.

    Raises:
        ConfigError: if it is not a duration.
    """
    match = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?)([smh])", duration.strip())
    if match is None or not float(match[1]):
        raise ConfigError(
            f"{duration[:40]!r} is not a duration; it is a number and s, m or h, such as 90s or 10m"
        )
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]]


def in_words(seconds: float) -> str:
    """Return a time in seconds, minutes or hours."""
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{max(seconds, 1):.0f} s"


class _Reader:
    """Reads the photos of an audit as the model sees them."""

    def __init__(
        self, session: LocalSession, configuration: RunConfiguration, inputs: Inputs
    ) -> None:
        self._session = session
        self._configuration = configuration
        self._inputs = inputs

    async def opened(self, name: str) -> tuple[ModelInput, list[str]]:
        """Return what the model sees of a photo, and the decoder's warnings.

        Raises:
            Problem: if the photo cannot be read.
        """
        image = await asyncio.to_thread(self._inputs.read, name)
        instance = Instance(0, name, image, "", self.parameters(name))
        session = self._session
        return await session.pipeline.input_of(session.replicas, instance, "background")

    async def read(self, name: str) -> ModelInput:
        seen, _ = await self.opened(name)
        return seen

    def parameters(self, name: str) -> Parameters:
        """Return the parameters of a photo, with its own target if it has one."""
        return self._configuration.parameters(self._inputs.targets.get(name))


def chosen(names: list[str], most: int) -> list[str]:
    """Return at most `most` of the names: one of each of `most` equal parts, drawn with a fixed
    seed. Photos at equal distances would be of one class in a folder that alternates."""
    if len(names) <= most:
        return names
    ends = np.arange(most + 1) * len(names) // most
    drawn = np.random.default_rng(0).integers(ends[:-1], ends[1:])
    return [names[number] for number in drawn]


@contextmanager
def journal(file: Path) -> Iterator[Callable[[PhotoRecord], None]]:
    """Provide a function that appends a record to a file. The record is on the disk when the
    function returns. The end of a line that a killed process left incomplete is removed first.

    Raises:
        InsufficientStorage: if the file cannot be written.
    """
    try:
        with file.open("ab+") as opened:
            opened.seek(0)
            whole = opened.read().rfind(b"\n") + 1
            opened.truncate(whole)

            def write(record: PhotoRecord) -> None:
                opened.write(record.model_dump_json().encode() + b"\n")
                opened.flush()
                os.fsync(opened.fileno())

            yield write
    except OSError as error:
        raise InsufficientStorage(f"{file} cannot be written: {error.strerror}") from None


def read_records(file: Path, names: list[str]) -> list[PhotoRecord]:
    """Return the records of the photos that are part of the audit still.

    Args:
        names: the audit's photos, in the order of their numbers.

    Raises:
        ConfigError: if the file cannot be read.
    """
    if not file.exists():
        return []
    records: dict[int, PhotoRecord] = {}
    try:
        for line in file.read_bytes().split(b"\n")[:-1]:
            record = PhotoRecord.model_validate_json(line)
            if record.index < len(names) and record.item == storable(names[record.index]):
                records[record.index] = record
    except (OSError, ValidationError) as error:
        raise ConfigError(f"{file} cannot be read: {one_line(error)}") from None
    return list(records.values())
