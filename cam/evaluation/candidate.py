"""The maps that are scored, and where they come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cam.explanation import Explanation, Map
from cam.progress import Completeness


@dataclass(frozen=True, eq=False)
class Candidate:
    """A map that is to be scored."""

    map: Map
    """float32 (h, w)."""
    turn: int = 0
    """Index of its target among the question's targets."""
    layer: int | None = None
    """Index among the question's maps of one target; None if the question did not make the map."""
    completeness: Completeness | None = None


def candidates_of(explanations: Sequence[Explanation]) -> list[Candidate]:
    """Return the maps of a question's answer."""
    candidates: list[Candidate] = []
    for explanation in explanations:
        layer = sum(other.turn == explanation.turn for other in candidates)
        candidates.append(
            Candidate(explanation.map, explanation.turn, layer, explanation.completeness)
        )
    return candidates
