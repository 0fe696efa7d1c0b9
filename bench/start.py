"""From the start of `gradcam serve` to its first ready, beside importing torch and torchvision.

    python -m bench.start [--rounds 5]

The embedded model, mode exact. Both are new processes; they take turns, and the medians are
compared.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from time import perf_counter

from bench.service import SERVE, started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    imports, starts = [], []
    for turn in range(rounds + 1):  # the first fills the disk's cache
        imported, started = importing(), starting()
        if turn:
            imports.append(imported)
            starts.append(started)
    one, other = statistics.median(imports), statistics.median(starts)
    print(f"import {one:.2f} s, ready after {other:.2f} s: {other / one:.2f} times")


def importing() -> float:
    begun = perf_counter()
    subprocess.run([sys.executable, "-c", "import torch, torchvision"], check=True)
    return perf_counter() - begun


def starting() -> float:
    begun = perf_counter()
    with started([*SERVE, "--port"]):
        return perf_counter() - begun


if __name__ == "__main__":
    main()
