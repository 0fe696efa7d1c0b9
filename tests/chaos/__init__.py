"""Attacks on a running service, each with what it was allowed to do and what it did."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from tests.chaos import (
    access,
    answers,
    arrivals,
    asking,
    corrupt_jobs,
    forgery,
    idling,
    images,
    inferences,
    isolation,
    jobs,
    kills,
    leaks,
    matrix,
    overload,
    platforms,
    sockets,
    streams,
    weights,
)
from tests.chaos.finding import Finding

ATTACKS: dict[str, Callable[[float], Coroutine[Any, Any, list[Finding]]]] = {
    "images": images.mutated,
    "bombs": images.bombs,
    "platforms": platforms.strangers,
    "matrix": matrix.matrix,
    "answers": answers.answers,
    "idling": idling.idling,
    "streams": streams.streams,
    "inferences": inferences.inferences,
    "contract": access.contract,
    "asking": asking.asking,
    "dripping": sockets.dripping,
    "overload": overload.overload,
    "leaving": sockets.leaving,
    "neighbours": isolation.neighbours,
    "hanging": isolation.hanging,
    "concurrent": isolation.concurrent,
    "killed": kills.killed,
    "drained": kills.drained,
    "jobs-killed": jobs.killed,
    "jobs-arriving": arrivals.arriving,
    "jobs-preempted": jobs.preempted,
    "jobs-deadly": jobs.deadly,
    "jobs-corrupt": corrupt_jobs.corrupt,
    "leaks": leaks.leaks,
    "keyless": access.keyless,
    "invented": access.invented,
    "forged": forgery.forged,
    "pickles": weights.pickles,
}
