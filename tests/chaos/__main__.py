"""Every attack at its full size, into docs/reliability.md.

python -m tests.chaos [--scale 1] [--only NAME …] [--write]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import time
from dataclasses import asdict
from pathlib import Path

from tests.chaos import ATTACKS
from tests.chaos.finding import Finding

ROOT = Path(__file__).parent.parent.parent
DOCUMENT = ROOT / "docs" / "reliability.md"
RESULTS = ROOT / "bench" / "results" / "reliability.json"
MARK = "<!-- measured -->"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--only", nargs="*", choices=list(ATTACKS), default=list(ATTACKS))
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    findings: dict[str, list[Finding]] = {}
    for name in arguments.only:
        begun = time.monotonic()
        findings[name] = asyncio.run(ATTACKS[name](arguments.scale))
        for each in findings[name]:
            print(f"{'   ' if each.well else 'NOT'} {each.row()}", flush=True)
        print(f"    {name}: {time.monotonic() - begun:.0f} s", flush=True)
    if arguments.write:
        write(findings)
    raise SystemExit(not all(each.well for one in findings.values() for each in one))


def write(found: dict[str, list[Finding]]) -> None:
    """Into the results, beside those of earlier runs, and from there into the document."""
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    known |= {name: [asdict(each) for each in findings] for name, findings in found.items()}
    RESULTS.write_text(json.dumps(known, indent=1, ensure_ascii=False) + "\n")
    rows = [Finding(**each).row() for name in ATTACKS for each in known.get(name, [])]
    table = "\n".join(["| attack | allowed | found |", "|---|---|---|", *rows])
    where = f"{platform.machine()}, Python {platform.python_version()}"
    note = f"Measured with `make chaos` on {time.strftime('%Y-%m-%d')}, two cores of {where}."
    before, _, rest = DOCUMENT.read_text().partition(MARK)
    after = rest.partition(MARK)[2]
    DOCUMENT.write_text(f"{before}{MARK}\n{note}\n\n{table}\n{MARK}{after}")


if __name__ == "__main__":
    main()
