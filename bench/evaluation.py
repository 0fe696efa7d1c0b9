"""Scores of maps beside other tools': are they the same, and how long do they take?

    python -m bench.evaluation parity [--write docs/evaluation-parity.md] [--models resnet50 …]
                                      [--photos 2] [--rows deletion …]
    python -m bench.evaluation speed [--write bench/results/evaluation-speed.json]
                                     [--models resnet50 …] [--photos 4] [--rounds 5] [--threads 2]

`parity` compares what `cam.evaluate` says of a map with what captum, pytorch-grad-cam, Quantus,
torchcam, and the code of the authors of RISE and of ADCC say of it: see
`bench/evaluation_parity.py`. `speed` measures the images a second of insertion and deletion, and of
ROAD, by turns in one process: see `bench/evaluation_speed.py`.
"""

from __future__ import annotations

from service.core.threads import spin_briefly

spin_briefly()  # as `gradcam serve` does, before torch is imported

import argparse
import warnings
from pathlib import Path

from bench import evaluation_parity, evaluation_speed
from bench.evaluation_scenes import MODELS, PHOTOS

RESULT = Path("bench/results/evaluation-speed.json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    parity = commands.add_parser("parity", help="the greatest differences from other tools")
    parity.add_argument("--models", nargs="*", choices=MODELS, default=list(MODELS))
    parity.add_argument("--photos", type=int, choices=range(1, len(PHOTOS) + 1), default=2)
    parity.add_argument("--rows", nargs="*", default=["*"], help="patterns of metrics")
    parity.add_argument("--write", type=Path, metavar="FILE", help="a document")
    speed = commands.add_parser("speed", help="images a second, beside other tools")
    names = evaluation_speed.MODELS
    speed.add_argument("--models", nargs="*", choices=MODELS, default=list(names))
    speed.add_argument("--photos", type=int, choices=range(1, len(PHOTOS) + 1), default=4)
    speed.add_argument("--rounds", type=int, default=5)
    speed.add_argument("--threads", type=int, help="of every contender; by default torch's number")
    speed.add_argument("--write", type=Path, metavar="FILE", help=f"such as {RESULT}")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    if arguments.command == "parity":
        evaluation_parity.run(
            arguments.models, arguments.photos, arguments.rows, write=arguments.write
        )
    else:
        evaluation_speed.run(
            arguments.models,
            arguments.photos,
            arguments.rounds,
            threads=arguments.threads,
            write=arguments.write,
        )


if __name__ == "__main__":
    main()
