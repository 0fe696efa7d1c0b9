"""A batch of images that are explained without a server, which goes on where it stopped."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Final, TypeVar

from rich.console import Console

from cam.counts import counted
from service.core.allocator import keep_memory
from service.core.concurrency import explain_many
from service.core.errors import ConfigError, InsufficientStorage, Problem, Unavailable
from service.core.settings import CoreSettings
from service.features.batch.configuration import LOCK, RECORD, RunConfiguration, source_of
from service.features.batch.inputs import Inputs, open_inputs
from service.features.batch.parts import MANIFEST, PARTS, Parts
from service.features.batch.progress import Tally, begun, say, shown
from service.features.batch.work import UnreadImage, check, explain_item, made_with, raise_last
from service.features.tables.rows import DECODER, PICTURES, Row, failed_row
from service.local.output import writing
from service.local.session import local_session
from service.pipeline.images import decoders_heard

PART_ROWS: Final = 500
PART_SECONDS: Final = 10.0
Result = TypeVar("Result")
GO_ON: Final = "the same command goes on from here"
INTERRUPTED: Final = 130
"""Exit code of a run that a signal ended."""


@dataclass(frozen=True)
class Run:
    """One run of a batch or an audit.

    Args:
        source: a folder, a pattern, a zip, a table or an image; see `open_inputs`.
        model: name of the model; None for the default.
        retry_failed: whether images that failed before are explained again.
        true_classes: whether the folder of each image is its class, which is explained.
    """

    source: str
    settings: CoreSettings
    configuration: RunConfiguration
    model: str | None = None
    retry_failed: bool = False
    true_classes: bool = False
    console: Console = field(default_factory=lambda: Console(stderr=True))

    @contextmanager
    def inputs(self) -> Iterator[Inputs]:
        """Open the images; see `open_inputs`.

        Raises:
            ConfigError: if there are none, or if one has no class.
        """
        with open_inputs(self.source, self.configuration.output) as inputs:
            yield inputs.of_classes() if self.true_classes else inputs

    def finish(self, work: Callable[[], Result]) -> Result | None:
        """Do the work while the output folder is locked. Return its result, or None if a signal
        ended it.

        Raises:
            ConfigError: if another run uses the folder, or results cannot be computed or written.
        """
        keep_memory()
        try:
            with self.configuration.locked(), decoders_heard():
                return work()
        except (InsufficientStorage, Unavailable) as problem:
            raise ConfigError(f"{problem.detail}; {GO_ON}") from None
        except (KeyboardInterrupt, asyncio.CancelledError):
            self.console.print(f"Stopped; {GO_ON}.")
            return None


Explainer = Callable[[Run], Tally]
"""A function that explains the images that are left of a batch and returns the tally."""


def batch(run: Run, *, report: Path | None = None, explain: Explainer | None = None) -> int:
    """Explain the images that are not done yet, and write the results to the output folder.

    Args:
        report: file for an HTML report; None writes none.
        explain: replaces the explanation in this process; `service.features.batch.on_ray` has an
            implementation.

    Returns:
        The exit code: 0 on success, 1 if an image failed, 130 if a signal ended the run.

    Raises:
        ConfigError: if the configuration is invalid, or results cannot be written.
        Problem: if the model does not support the configuration.
    """
    configuration, console = run.configuration, run.console
    if report:
        _check_place(report, configuration.output)
    tally = run.finish(lambda: explain(run) if explain else asyncio.run(_explain(run)))
    if tally is None:
        return INTERRUPTED
    manifest = Parts(configuration.output).manifest
    explained = f"{tally.done - tally.failed} of {counted(tally.total, 'image')} explained"
    say(f"{explained}, {tally.failed} failed: {manifest}", console)
    if tally.warned:
        files = counted(tally.warned, "file")
        say(f"The decoder warned of {files}; the column 'warning' says of what.", console)
    if report:
        from service.features.report.write import write_report

        served = configuration.model()
        with writing(report):
            write_report(
                manifest,
                configuration.output,
                report,
                title=run.source,
                model=served,
                source=partial(source_of, configuration.output),
            )
        say(f"Report: {report}", console)
    return 1 if tally.failed else 0


def _check_place(report: Path, output: Path) -> None:
    """Check the path of the report.

    Raises:
        ConfigError: if the path is a folder, or belongs to the batch's own files.
    """
    place, folder = (Path(os.path.realpath(path)) for path in (report, output))
    own = [folder / name for name in (MANIFEST, RECORD, LOCK, PARTS, PICTURES)]
    if os.path.isdir(place):  # noqa: PTH112 - Path.is_dir raises if a name is too long
        raise ConfigError(f"--report={report} is a folder; it should be a file")
    if any(place.is_relative_to(folder_) for folder_ in own):
        raise ConfigError(f"--report={report} is a file of the batch itself; name another file")


def cancel_at_sigterm() -> None:
    """Let SIGTERM cancel the current task."""
    task = asyncio.current_task()
    assert task is not None
    with suppress(NotImplementedError):  # event loops on Windows have no signal handlers
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)


async def _explain(run: Run) -> Tally:
    cancel_at_sigterm()
    configuration, console = run.configuration, run.console
    parts = Parts(configuration.output)
    with run.inputs() as inputs:
        count = len(inputs.ids)
        async with local_session(run.settings, run.model, spread=True, images=count) as session:
            served = session.replicas.model
            check(session, configuration, inputs.wanted)
            configuration = configuration.fitted(served.preprocessing.default_fit)
            configuration.open(run.source, served.name, served.fingerprint, made_with(served))
            if inputs.warning:
                say(inputs.warning, console)
            left, tally = begun(inputs, parts, retry_failed=run.retry_failed)
            items = (UnreadImage(name, inputs.read, inputs.targets.get(name)) for name in left)
            with shelf(parts) as put, shown(tally, console) as show:
                async with explain_many(
                    items,
                    lambda item: explain_item(session, configuration, item),
                    at_once=session.at_once,
                ) as results:
                    async for item, result in results:
                        raise_last(session, result)
                        if isinstance(result, Problem):
                            tally.failed += 1
                            result = [failed_row(item.id, result, item.target)]
                        tally.warned += any(DECODER in (row.warning or "") for row in result)
                        put(result)
                        tally.done += 1
                        show()
            parts.merge(configuration.record())
    return tally


@contextmanager
def shelf(parts: Parts) -> Iterator[Callable[[list[Row]], None]]:
    """Provide a function that collects rows and writes them as parts. The remaining rows are
    written even if the block raises."""
    rows: list[Row] = []
    since = monotonic()

    def put(more: list[Row]) -> None:
        nonlocal since
        rows.extend(more)
        if len(rows) >= PART_ROWS or monotonic() - since > PART_SECONDS:
            parts.add(rows)
            rows.clear()
            since = monotonic()

    try:
        yield put
    except BaseException:
        # If the disk is full, the rows may be lost; their images are explained again later.
        with suppress(InsufficientStorage):
            parts.add(rows)
        raise
    parts.add(rows)
