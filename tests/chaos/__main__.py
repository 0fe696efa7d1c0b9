"""Every attack at its full size, into docs/reliability.md.

python -m tests.chaos [--scale 1] [--only NAME …] [--write]
"""

from __future__ import annotations

import argparse
import asyncio
import platform
import time
from pathlib import Path

from tests.chaos import ATTACKS
from tests.chaos.finding import Finding

DOCUMENT = Path(__file__).parent.parent.parent / "docs" / "reliability.md"
MARK = "<!-- measured -->"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--only", nargs="*", choices=list(ATTACKS), default=list(ATTACKS))
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    findings: list[Finding] = []
    for name in arguments.only:
        begun = time.monotonic()
        findings += (found := asyncio.run(ATTACKS[name](arguments.scale)))
        for each in found:
            print(f"{'   ' if each.kept else 'NOT'} {each.row()}", flush=True)
        print(f"    {name}: {time.monotonic() - begun:.0f} s", flush=True)
    if arguments.write:
        write(findings)
    raise SystemExit(not all(each.kept for each in findings))


def write(findings: list[Finding]) -> None:
    """Between the two marks of the document."""
    before, _, rest = DOCUMENT.read_text().partition(MARK)
    after = rest.partition(MARK)[2]
    table = "\n".join(
        ["| attack | allowed | found |", "|---|---|---|", *(each.row() for each in findings)]
    )
    where = f"{platform.machine()}, Python {platform.python_version()}"
    note = f"Measured with `make chaos` on {time.strftime('%Y-%m-%d')}, two cores of {where}."
    DOCUMENT.write_text(f"{before}{MARK}\n{note}\n\n{table}\n{MARK}{after}")


if __name__ == "__main__":
    main()
