"""How far a batch is, for a person or for a log."""

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

from service.batch.inputs import Inputs
from service.batch.parts import Parts

LOG_SECONDS: Final = 30.0
"""Between two lines where no person looks at a terminal."""


@dataclass
class Tally:
    """In images."""

    total: int
    done: int = 0
    """Those that failed included."""
    failed: int = 0
    warned: int = 0
    """Explained in this run although the decoder found something wrong with the file."""


def begun(inputs: Inputs, parts: Parts, *, retry_failed: bool) -> tuple[list[str], Tally]:
    """The ids of the images that are left to do, and how far the batch is. What was done for
    another target than the table names now is done again.

    Args:
        retry_failed: those that failed before are left, too.
    """
    names = {*inputs.ids}
    again = parts.asked_otherwise(inputs.targets) & names
    parts.forget(again | parts.failed() if retry_failed else again)
    finished = parts.finished()
    left = [name for name in inputs.ids if name not in finished]
    failed = len(parts.failed() & names)
    return left, Tally(len(inputs.ids), len(inputs.ids) - len(left), failed)


def say(sentence: str, console: Console) -> None:
    """In one line, however long it is and whatever it quotes."""
    console.print(sentence, highlight=False, markup=False, soft_wrap=True)


@contextmanager
def shown(tally: Tally, console: Console) -> Iterator[Callable[[], None]]:
    """While it is open, calling what it gives shows the tally: as a bar with rate and time left in
    a terminal, as a line now and then elsewhere."""
    started, begun = monotonic(), tally.done

    def rate() -> float:
        return (tally.done - begun) / max(monotonic() - started, 1e-9)

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
                task, completed=tally.done, rate=rate(), failed=_failures(tally)
            )
        return

    told = monotonic()

    def tell() -> None:
        nonlocal told
        if monotonic() - told >= LOG_SECONDS:
            told = monotonic()
            left = (tally.total - tally.done) / max(rate(), 1e-9)
            said = f"{tally.done} of {tally.total}, {rate():.1f} images/s, {left:.0f} s left"
            console.print(f"{said}{_failures(tally)}", highlight=False)

    yield tell


def _failures(tally: Tally) -> str:
    return f", {tally.failed} failed" if tally.failed else ""
