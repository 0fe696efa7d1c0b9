"""What an attack did, beside what it was allowed to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

STUCK_SECONDS: Final = 10.0
"""No machine is so slow that one small answer takes this long: something stands still."""


@dataclass(frozen=True)
class Finding:
    """One row of docs/reliability.md."""

    attack: str
    allowed: str
    found: str
    kept: bool
    """Whether it did what it may, on a machine of any speed."""
    timely: bool = True
    """Whether it took no longer than it may on two quiet cores. A rehearsal does not judge it."""

    @property
    def well(self) -> bool:
        """Whether it did what it may, in time."""
        return self.kept and self.timely

    def row(self) -> str:
        mark = "" if self.well else " **not kept**"
        return f"| {self.attack} | {self.allowed} | {self.found}{mark} |"


def slack(scale: float) -> float:
    """By how much longer a rehearsal waits for something to end: its machine may be busy."""
    return 1 if scale >= 1 else 12


def share(values: list[float], part: float) -> float:
    """The value below which that part of them lies; 0 of none."""
    ordered = sorted(values)
    return ordered[min(int(part * len(ordered)), len(ordered) - 1)] if ordered else 0.0
