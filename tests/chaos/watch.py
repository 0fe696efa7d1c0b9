"""What a service does while something is done to it: memory, probes, and whether it lives."""

from __future__ import annotations

import asyncio
import re
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from tests.chaos.finding import STUCK_SECONDS, share
from tests.chaos.probing import Probes
from tests.chaos.stage import Stage, until_ready

MOST_PROBE_SECONDS: Final = 0.25
"""99th percentile of the probes at each port, on two quiet cores."""
PROBES: Final = f"probes p99 ≤ {MOST_PROBE_SECONDS * 1000:.0f} ms"
PEAK: Final = "5"
"""What `/proc/PID/clear_refs` takes for: the peak is what is resident now."""


@dataclass(frozen=True)
class Growth:
    """How much one process has grown."""

    process: str
    bytes: int

    def __str__(self) -> str:
        return f"{self.bytes / 1e6:+.0f} MB ({self.process})"


@dataclass(frozen=True)
class Seen:
    """What was seen during a watch."""

    peak: Growth
    late: tuple[float, ...]
    """99th percentile of the seconds of the probes at each port."""
    unwell: int
    """Number of probes that were not answered with 200."""
    killed: int
    seconds: float

    def __str__(self) -> str:
        late = " and ".join(f"{each * 1000:.0f}" for each in self.late)
        return (
            f"{self.peak}; probes {late} ms{f', {self.unwell} failed' if self.unwell else ''}"
            f"{f'; {self.killed} processes killed' if self.killed else ''}; {self.seconds:.1f} s"
        )

    def is_within(self, most: float) -> bool:
        """Whether no process has grown by more bytes, none was killed, and probes were answered."""
        stuck = self._latest > STUCK_SECONDS
        return self.peak.bytes <= most and not (stuck or self.unwell or self.killed)

    @property
    def timely(self) -> bool:
        """Whether the probes were answered as quickly as on two quiet cores."""
        return self._latest <= MOST_PROBE_SECONDS

    @property
    def _latest(self) -> float:
        return max(self.late, default=0)


class Watch:
    """Watches the processes of a service from now on."""

    def __init__(self, stage: Stage) -> None:
        self._stage, self._since = stage, time.monotonic()
        self._serving = stage.serving
        names = dict(zip((each.pid for each in self._serving), ("door", "engine"), strict=False))
        names[stage.process.pid] = "supervisor"
        self._begun: dict[psutil.Process, tuple[str, int]] = {}
        supervisor = psutil.Process(stage.process.pid)
        for each in (supervisor, *supervisor.children(recursive=True)):
            with suppress(OSError, psutil.Error):
                Path(f"/proc/{each.pid}/clear_refs").write_text(PEAK)
                self._begun[each] = names.get(each.pid, each.name()), each.memory_info().rss

    async def seen(self, probes: Probes, *ports: int) -> Seen:
        """What was seen until now; the service is ready again, if it had to be."""
        ended, peak, killed = time.monotonic(), self._largest("VmHWM"), self.killed
        if killed:
            await asyncio.to_thread(until_ready, self._stage)
        found = [await probes.between(self._since, ended, port) for port in ports]
        return Seen(
            peak,
            tuple(share([each.seconds for each in one], 0.99) for one in found),
            sum(each.status != 200 for one in found for each in one),
            killed,
            ended - self._since,
        )

    def left(self) -> Growth:
        """The largest growth that is there now."""
        return self._largest("VmRSS")

    @property
    def killed(self) -> int:
        """Number of serving processes that have ended."""
        return sum(not each.is_running() for each in self._serving)

    def _largest(self, figure: str) -> Growth:
        found = [Growth("none", 0)]
        for process, (name, before) in self._begun.items():
            with suppress(OSError):
                said = re.search(
                    rf"{figure}:\s+(\d+)", Path(f"/proc/{process.pid}/status").read_text()
                )
                if said:
                    found.append(Growth(name, int(said[1]) * 1024 - before))
        return max(found, key=lambda each: each.bytes)
