"""Cascading randomisation: what is left of a map when the weights behind it are random.

    python -m bench.randomisation [--photos 4] [--write docs/methods.md] [METHOD …]

Adebayo et al., "Sanity Checks for Saliency Maps", NeurIPS 2018, by `cam.evaluation.randomisation`:
photos of which the embedded model is sure are explained for their class by the model with its own
weights, with random weights in the module that computes the logits, and with random weights
everywhere. For each method at its default layer: the mean rank correlation of the maps with those
of the model's own weights (the absolute value: 1 is the same map, 0 another one), and that of the
maps of two classes, the photo's and the one that is least likely. `--write` replaces the table in
a document, row by row.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from torch import Tensor, nn

from bench.grid_cells import Asked, asked_of
from bench.localisation import BUDGETS, LEFT_OUT
from cam import METHODS, ClassTarget, ExplainedImage, Question, explain_batch, spearman
from cam.errors import CamError
from cam.evaluation.randomisation import randomised_in_steps
from cam.passes.stepwise import explain_in_steps, finish
from service.models.catalog import EMBEDDED

BEGIN: Final = "<!-- randomisation -->\n"
END: Final = "<!-- end of randomisation -->"
STAGES: Final = 2
"""The logits, and everything."""
Row = tuple[str, str, float, float, float]
Map = NDArray[np.float32]


def answered(
    model: nn.Module, images: Tensor, questions: Sequence[Question]
) -> Sequence[ExplainedImage | CamError]:
    return explain_batch(model, images, questions)


def map_of(model: nn.Module, image: Tensor, question: Question) -> Map:
    """Return the map of one question about an image (C, H, W)."""
    if question.in_steps:
        answer = finish(explain_in_steps(model, image, question))
    else:
        (answer,) = explain_batch(model, image[None], [question])
    if isinstance(answer, CamError):
        raise answer
    found: Map = answer.explanations[0].map
    return found


def alike(first: Map, second: Map | None) -> float:
    """Return the absolute rank correlation of two maps; 0 if one has no ranks."""
    return abs((None if second is None else spearman(first, second)) or 0.0)


def measured(asked: Asked, method: str) -> Row:
    """Measure one method."""
    layers = asked.layers(method) or ()
    kept: list[tuple[float, ...]] = []
    for cell in asked.cells:
        batch = asked.batch(cell.pixels[None])
        least = int(asked.model(batch).argmin())
        budget = BUDGETS.get(method)
        own, other = (
            Question((ClassTarget(index),), method, tuple(layers), budget)
            for index in (cell.index, least)
        )
        steps = randomised_in_steps(
            asked.model,
            batch[0],
            [own],
            stages=STAGES,
            seed=0,
            answer=partial(answered, asked.model),
        )
        stages = finish(steps)
        if isinstance(stages, CamError):
            raise stages
        before = map_of(asked.model, batch[0], own)
        kept.append(
            (
                *(alike(before, stage[0]) for stage in stages),
                alike(before, map_of(asked.model, batch[0], other)),
            )
        )
    logits, everything, classes = np.mean(kept, axis=0).tolist()
    used = " + ".join(layers) if METHODS[method].at == "layer" else "input"
    return method, used, logits, everything, classes


def written(row: Row, former: str) -> str:
    """As a table in Markdown, with the rows of the former one that were not measured anew."""
    rows = {each.split("`")[1]: each for each in former.splitlines() if each.startswith("| `")}
    method, layer, *numbers = row
    told = " | ".join(f"{each:.2f}" for each in numbers)
    dependence = METHODS[method].class_dependence
    rows[method] = f"| `{method}` | `{layer}` | {told} | {dependence} |"
    most_first = sorted(rows.values(), key=lambda each: -float(each.split("|")[3]))
    head = [
        "| method | layer | random logits | all random | another class | dependence on the class |",
        "|---|---|---|---|---|---|",
    ]
    return "\n".join([*head, *most_first]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("methods", nargs="*", metavar="METHOD")
    parser.add_argument("--photos", type=int, default=4)
    parser.add_argument("--write", type=Path, metavar="DOCUMENT")
    given = parser.parse_args()
    asked = asked_of(EMBEDDED.name, given.photos)
    for method in given.methods or [name for name in METHODS if name not in LEFT_OUT]:
        try:
            row = measured(asked, method)
        except CamError as error:
            Console().print(f"{method}: {error}")
            continue
        Console().print(*row)
        if given.write:  # it takes a while, and may be stopped
            before, _, rest = given.write.read_text().partition(BEGIN)
            former, _, after = rest.partition(END)
            given.write.write_text(f"{before}{BEGIN}{written(row, former)}{END}{after}")


if __name__ == "__main__":
    main()
