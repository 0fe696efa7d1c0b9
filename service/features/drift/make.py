"""A reference: what the maps of good photos are like."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
from rich.console import Console

from cam.counts import counted
from cam.drift.comparison import expected_worth, needed_photos
from cam.drift.map_statistics import MapStatistics, statistics_of
from cam.drift.origin import Origin
from cam.drift.reference import Reference, reference_of
from cam.drift.shift import LEAST
from cam.drift.window import NO_CLASS
from cam.errors import CamError
from service.backend.work import Explain
from service.core.allocator import keep_memory
from service.core.concurrency import explain_many
from service.core.errors import ConfigError, InvalidParameter, Problem
from service.core.files import written_whole
from service.core.settings import CoreSettings
from service.features.batch.inputs import Inputs, open_inputs
from service.features.batch.progress import Tally, say, shown
from service.features.batch.work import raise_last
from service.features.drift.of_entry import unwatchable, watchable
from service.local.output import writing
from service.local.session import LocalSession, local_session
from service.models.labels import Labels
from service.pipeline.images import decoders_heard
from service.pipeline.instances import Instance
from service.pipeline.parameters import Parameters
from service.pipeline.resolve import questions_of
from service.pipeline.validation import validated

Found = tuple[int | None, MapStatistics | None]
NAMED: Final = 20
"""Largest number of classes that a warning names."""


@dataclass(frozen=True, eq=False)
class _Made:
    """A reference, and how it was made."""

    reference: Reference
    labels: Labels
    failed: int
    """Number of photos that could not be explained."""
    repeated: int
    """Number of photos that were left out because they repeat."""


def make_reference(
    source: str,
    settings: CoreSettings,
    given: dict[str, Any],
    *,
    model: str | None,
    output: Path | None,
) -> int:
    """Explain the predicted class of each photo, and write the statistics of the maps as Parquet.

    Args:
        source: a folder, a pattern, a zip, a table or an image; see `open_inputs`.
        given: the parameters `method`, `layer` and `fit`.
        model: name of the model; None for the default.
        output: file to write; None for the standard output.

    Returns:
        The exit code: 0 on success, 1 if a photo could not be explained.

    Raises:
        ConfigError: if there are fewer photos than a comparison needs, or the file cannot be
            written.
        Problem: if the model cannot explain in this way.
    """
    keep_memory()
    console = Console(stderr=True)
    if output is None and sys.stdout.isatty():
        raise ConfigError("a reference is not text: write it to a file, with --output or >")
    parameters = validated(Parameters, given)
    with decoders_heard():
        made = asyncio.run(_found(source, settings, parameters, model, console))
    reference, failed = made.reference, made.failed
    with writing(output or "the standard output"):
        _write(reference, output)
    for sentence in _told(made):
        say(sentence, console)
    return 1 if failed else 0


def _told(made: _Made) -> Iterator[str]:
    """Tell what the reference has, and what in it is too little to be compared."""
    indices, counts = np.unique(made.reference.classes, return_counts=True)
    photos = len(made.reference.rows)
    again = f", {counted(made.repeated, 'repeated one')} left out" if made.repeated else ""
    classes = counted(len(indices), "class", "classes")
    yield f"{counted(photos, 'photo')} of {classes}, {made.failed} failed{again}"
    worth = round(expected_worth(counts))
    if worth < LEAST:
        yield (
            f"warning: all classes together can rarely be compared: the photos of {classes} count "
            f"as about {counted(worth, 'photo')}, and a comparison needs {LEAST}; collect "
            f"{counted(needed_photos(len(indices)), 'photo')} of these classes, or more if the new "
            "photos have other classes"
        )
    few = indices[counts < LEAST].tolist()
    names = [made.labels.name(index) or f"class {index}" for index in few if index != NO_CLASS]
    if names:
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        yield (
            f"warning: {counted(len(names), 'class', 'classes')} with fewer than {LEAST} photos "
            f"will be compared only together with all others: {', '.join(names[:NAMED])}{more}"
        )


def _write(reference: Reference, output: Path | None) -> None:
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        with written_whole(output) as temporary:
            reference.write(temporary)
        return
    with TemporaryDirectory() as folder:
        file = Path(folder) / "reference.parquet"
        reference.write(file)
        sys.stdout.buffer.write(file.read_bytes())
        sys.stdout.buffer.flush()


async def _found(
    source: str, settings: CoreSettings, parameters: Parameters, model: str | None, console: Console
) -> _Made:
    with open_inputs(source) as inputs:
        if (count := len(inputs.ids)) < LEAST:
            raise ConfigError(_useless(f"{source} has {count}"))
        async with local_session(settings, model, spread=True, images=count) as session:
            served = session.replicas.model
            (question, *others) = questions_of(served, parameters)
            if others:
                named = ", ".join(parameters.methods)
                raise InvalidParameter(f"a reference has the maps of one method, not of {named}")
            if reason := unwatchable(question.method, served.unsuited):
                raise InvalidParameter(
                    f"a reference cannot have maps of {question.method}: {reason}; it can have "
                    f"those of {', '.join(watchable(served.unsuited))}"
                )
            if len(question.layers) != 1:
                raise InvalidParameter(
                    f"a reference has maps at one layer, not at {len(question.layers)}: "
                    f"{', '.join(question.layers)}; name one of them"
                )
            maps: list[Found] = []
            tally = Tally(len(inputs.ids))
            with shown(tally, console) as show:
                async with explain_many(
                    inputs.ids,
                    lambda name: _map_of(session, inputs, parameters, name),
                    at_once=session.at_once,
                ) as results:
                    async for name, result in results:
                        raise_last(session, result)
                        tally.done += 1
                        if isinstance(result, Problem):
                            tally.failed += 1
                            say(f"{os.fspath(name)}: {result.detail}", console)
                        else:
                            maps.append(result)
                        show()
            fit = served.preprocessing.resolved(parameters.fit)
            origin = Origin(served.name, served.weights, question.method, question.layers[0], fit)
    try:
        made_of = reference_of(maps, origin)
    except CamError as error:
        raise ConfigError(str(error)) from None
    repeated = len(maps) - len(made_of.rows)
    if (count := len(made_of.rows)) < LEAST:
        failed = counted(tally.failed, "failed one")
        lost = f"{source} has {count}, without {repeated} repeated and {failed}"
        raise ConfigError(_useless(lost))
    return _Made(made_of, served.labels, tally.failed, repeated)


def _useless(reason: str) -> str:
    """Return why a reference of so few photos is not made."""
    return f"a reference of fewer than {LEAST} different photos can never be compared; {reason}"


async def _map_of(
    session: LocalSession, inputs: Inputs, parameters: Parameters, name: str
) -> Found:
    model = session.replicas.model
    image = await asyncio.to_thread(inputs.read, name)
    instance = Instance(0, name, image, "", parameters)
    seen, _ = await session.pipeline.input_of(session.replicas, instance, "background")
    (question,) = questions_of(model, parameters)
    outcome = await session.replicas.ask(Explain(seen, (question,), "background"))
    (explanation,) = outcome.value.explanations
    return explanation.target.index, statistics_of(
        explanation.map, explanation.probability, seen.pixels
    )
