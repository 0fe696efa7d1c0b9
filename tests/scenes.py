"""Pictures of two coloured shapes, with questions, their answers, and where each word is seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import cv2
import numpy as np
from numpy.typing import NDArray

COLOURS: Final = {
    "red": (220, 40, 40),
    "green": (40, 180, 60),
    "blue": (50, 80, 230),
    "yellow": (235, 215, 50),
    "purple": (150, 50, 190),
    "white": (245, 245, 245),
}
SHAPES: Final = ("circle", "square", "triangle", "cross")
DRAWN: Final = 192
"""Side of the square on which a scene is drawn, in pixels."""


@dataclass(frozen=True)
class Thing:
    """A shape; its place and radius are fractions of the picture's side."""

    colour: str
    shape: str
    x: float
    y: float
    radius: float

    def mask(self, side: int) -> NDArray[np.bool_]:
        """The pixels of the shape, (side, side)."""
        drawn = np.zeros((side, side), np.uint8)
        x, y, r = (value * side for value in (self.x, self.y, self.radius))
        if self.shape == "circle":
            cv2.circle(drawn, (round(x), round(y)), round(r), 1, -1)
        elif self.shape == "square":
            half = 0.85 * r
            corners = [round(x - half), round(y - half)], [round(x + half), round(y + half)]
            cv2.rectangle(drawn, *corners, 1, -1)
        elif self.shape == "triangle":
            points = [[x, y - r], [x - r, y + 0.8 * r], [x + r, y + 0.8 * r]]
            cv2.fillPoly(drawn, [np.rint(points).astype(np.int32)], 1)
        else:
            arm = 0.3 * r
            for wide, high in ((r, arm), (arm, r)):
                corners = [round(x - wide), round(y - high)], [round(x + wide), round(y + high)]
                cv2.rectangle(drawn, *corners, 1, -1)
        return drawn > 0


@dataclass(frozen=True)
class Scene:
    """Two things of different shapes on a grey ground."""

    things: tuple[Thing, Thing]
    """The first one is left of the other one, or above it."""
    relation: Literal["left of", "above"]
    ground: int
    """Grey level of the ground."""

    def draw(self, side: int = DRAWN) -> NDArray[np.uint8]:
        """The picture, RGB (side, side, 3)."""
        picture = np.full((side, side, 3), self.ground, np.uint8)
        for thing in self.things:
            picture[thing.mask(side)] = COLOURS[thing.colour]
        return picture


@dataclass(frozen=True)
class Asked:
    """A question about a scene, with its answer."""

    question: str
    answer: str
    thing: dict[int, int]
    """Number of a noun among the answer's words → the thing of the scene that it names."""
    seen: tuple[int, ...]
    """Numbers of the words that only the picture tells."""
    planted: tuple[int, ...] = ()
    """Numbers of the words that no picture tells: all answers in the training have them."""


def make_scene(rng: np.random.Generator) -> Scene:
    shapes = rng.choice(SHAPES, 2, replace=False)
    colours = rng.choice(list(COLOURS), 2, replace=False)
    while True:
        radii = rng.uniform(0.13, 0.19, 2)
        places = rng.uniform(0.19, 0.81, (2, 2))
        across, down = np.abs(places[0] - places[1])
        clear = max(across, down) > radii.sum() + 0.05
        if clear and abs(across - down) > 0.12:
            break
    relation: Literal["left of", "above"] = "left of" if across > down else "above"
    order = np.argsort(places[:, 0 if relation == "left of" else 1])
    first, second = (
        Thing(
            str(colours[i]),
            str(shapes[i]),
            float(places[i, 0]),
            float(places[i, 1]),
            float(radii[i]),
        )
        for i in order
    )
    return Scene((first, second), relation, int(rng.integers(20, 130)))


def ask(scene: Scene, rng: np.random.Generator, *, learned: bool = False) -> Asked:
    """A question of a random kind.

    Args:
        learned: whether to leave out the kinds that the embedded model is taught and has not
            learned: the colour of a thing by its shape, and whether there is a shape.
    """
    first, second = scene.things
    relation = scene.relation.split()
    weights = np.array((0.4, 0.15, 0.15, 0.1, 0.1, 0.1))
    if learned:
        weights[[1, 3]] = 0
    kind = rng.choice(6, p=weights / weights.sum())
    if kind == 0:
        words = ["a", first.colour, first.shape, *relation, "a", second.colour, second.shape]
        nouns = {2: 0, len(words) - 1: 1}
        seen = (1, 2, 3, len(words) - 2, len(words) - 1)
        words += ["on", "a", "table"]
        asked = "what is in the picture ?"
        return Asked(asked, " ".join(words), nouns, seen, (len(words) - 1,))
    if kind == 1:
        number = int(rng.integers(2))
        thing = scene.things[number]
        asked = f"what colour is the {thing.shape} ?"
        return Asked(asked, f"the {thing.shape} is {thing.colour}", {1: number}, (3,))
    if kind == 2:
        asked = f"what is {scene.relation} the {second.colour} {second.shape} ?"
        return Asked(asked, f"a {first.colour} {first.shape}", {2: 0}, (1, 2))
    if kind == 3:
        shape = str(rng.choice(SHAPES))
        there = shape in (first.shape, second.shape)
        return Asked(f"is there a {shape} ?", "yes" if there else "no", {}, (0,))
    if kind == 4:
        return Asked("what is the weather ?", "it is sunny", {}, (), (2,))
    return Asked("who painted it ?", "anna painted it", {}, (), (0,))
