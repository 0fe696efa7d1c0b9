"""The progress of a batch, shown in a terminal or written to a log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Final

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from service.features.batch.inputs import Inputs
from service.features.batch.parts import Parts

LOG_SECONDS: Final = 30.0
"""Seconds between two lines of progress if the output is not a terminal."""


@dataclass
class Tally:
    """Numbers of images in a batch."""

    total: int
    done: int = 0
    """Number of finished images, including those that failed."""
    failed: int = 0
    parts: float = 0.0
    """Sum of the shares, 0 … 1, of the images in work that are done."""
    warned: int = 0
    """Number of images in this run that were explained although the decoder warned about the
    file."""


def begun(inputs: Inputs, parts: Parts, *, retry_failed: bool) -> tuple[list[str], Tally]:
    """Return the ids of the images that are left to explain, and the progress of the batch. An
    image that was explained for another target than the table names now is explained again.

    Args:
        retry_failed: whether images that failed before are explained again, too.
    """
    names = {*inputs.ids}
    again = parts.asked_otherwise(inputs.targets) & names
    parts.forget(again | parts.failed() if retry_failed else again)
    finished = parts.finished()
    left = [name for name in inputs.ids if name not in finished]
    failed = len(parts.failed() & names)
    return left, Tally(len(inputs.ids), len(inputs.ids) - len(left), failed)


def say(sentence: str, console: Console) -> None:
    """Print a sentence on one line, without wrapping, highlighting or markup."""
    console.print(sentence, highlight=False, markup=False, soft_wrap=True)


@contextmanager
def shown(tally: Tally, console: Console) -> Iterator[Callable[[], None]]:
    """Provide a function that shows the tally: in a terminal as a bar with rate and remaining time,
    elsewhere as one line every `LOG_SECONDS`."""
    started, begun = monotonic(), tally.done

    def rate() -> float:
        return (tally.done + tally.parts - begun) / max(monotonic() - started, 1e-9)

    if console.is_terminal:
        bar = Progress(
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]:.1f} images/s"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("[red]{task.fields[failed]}"),
            console=console,
            speed_estimate_period=60,
        )
        with bar:
            task = bar.add_task(
                "", total=tally.total, completed=tally.done, rate=0.0, failed=_failures(tally)
            )
            yield lambda: bar.update(
                task, completed=tally.done + tally.parts, rate=rate(), failed=_failures(tally)
            )
        return

    told = monotonic()

    def tell() -> None:
        nonlocal told
        if monotonic() - told >= LOG_SECONDS:
            told = monotonic()
            left = (tally.total - tally.done - tally.parts) / max(rate(), 1e-9)
            said = f"{tally.done} of {tally.total}, {rate():.1f} images/s, {left:.0f} s left"
            console.print(f"{said}{_failures(tally)}", highlight=False)

    yield tell


def _failures(tally: Tally) -> str:
    return f", {tally.failed} failed" if tally.failed else ""
