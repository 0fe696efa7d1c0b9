"""Every way in × every attack: what it costs the service in memory, probes and answers.

An attack is a function of a way in. A row says what the service answered, how much its processes
grew, and how long the probes at both ports took.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final

from tests.chaos.bodies import DEEP, MANY, NUMBER, SMALLEST
from tests.chaos.finding import Finding, slack
from tests.chaos.holding import calls_held, connections_held
from tests.chaos.scene import NO_ANSWER, Scene, staged_scene
from tests.chaos.watch import PROBES, Watch
from tests.chaos.ways import Way, ways

BODY_BYTES: Final = 9_900_000
"""Size of the bodies of the smallest elements: nearly the largest that a service takes."""
REHEARSED_BYTES: Final = 1_000_000
MOST_WITHOUT_A_KEY: Final = 64_000_000
"""Bytes by which requests without a key may raise a process, which is also noise for others."""
MOST_FOR_A_BYTE: Final = 25
"""Bytes that a byte of a body with a key may take."""
CUT_SECONDS: Final = 2.0
"""How much later than its time a request that does not come may be cut off."""
AT_ONCE: Final = 8
UNSUITABLE: Final = {"UNKNOWN", "INTERNAL", "CANCELLED", "UNIMPLEMENTED"}
"""Codes of gRPC that no request should get."""


@dataclass(frozen=True)
class Outcome:
    """What became of the requests of an attack."""

    answers: Counter[str]
    kept: bool
    largest: int = 0
    """Bytes of the largest body that a caller with a key has sent."""
    note: str = ""


Attack = Callable[[Scene, Way], Awaitable[Outcome]]


async def matrix(scale: float) -> list[Finding]:
    """The matrix. A rehearsal takes every other pair."""
    findings = []
    for place in ("service", "vertex", "several models"):
        try:
            async with staged_scene(place, scale) as scene:
                findings += await _matrix(scene)
        except AssertionError as error:  # it was not ready, or does not answer an honest caller
            findings.append(Finding(f"{place}: every way in", "answers", f"{error}", False))
    return findings


async def _matrix(scene: Scene) -> list[Finding]:
    here = [(turn, way) for turn, way in enumerate(ways()) if way.place == scene.place]
    for _, way in here:
        await scene.send(way, way.form.right, way.scope)
    await scene.honest(here[0][1])
    findings = []
    for row, (name, attack) in enumerate(ATTACKS.items()):
        watch = Watch(scene.stage)
        for turn, way in here:
            if name == WRONG_SCOPE and way.scope in ("open", "read"):
                continue
            if scene.scale >= 1 or (turn + row) % 2 == 0:
                findings.append(await _row(scene, way, name, attack))
        if name == NO_KEY:
            left = watch.left()
            findings.append(
                Finding(
                    f"{scene.place}: all requests without a key, afterwards",
                    f"no process holds more than {MOST_WITHOUT_A_KEY / 1e6:.0f} MB of them",
                    str(left),
                    left.bytes <= MOST_WITHOUT_A_KEY,
                )
            )
    return findings


async def _row(scene: Scene, way: Way, name: str, attack: Attack) -> Finding:
    watch = Watch(scene.stage)
    try:
        outcome = await attack(scene, way)
        honest = await scene.honest(way)
    except (AssertionError, OSError) as error:
        outcome, honest = Outcome(Counter(), False, note=repr(error)), ""
    seen = await watch.seen(scene.probes, *scene.ports)
    refused = name in (NO_KEY, WRONG_SCOPE)
    most = max(MOST_WITHOUT_A_KEY, 0 if refused else MOST_FOR_A_BYTE * outcome.largest)
    said = ", ".join(f"{answer}: {count}" for answer, count in sorted(outcome.answers.items()))
    return Finding(
        f"{way.name}: {name}",
        f"{ALLOWED[name]}; ≤ {most / 1e6:.0f} MB; {PROBES}",
        f"{said}{outcome.note and '; ' + outcome.note}{honest}; {seen}",
        outcome.kept and not honest and seen.is_within(most),
        seen.timely,
    )


def _size(scene: Scene) -> int:
    return BODY_BYTES if scene.scale >= 1 else REHEARSED_BYTES


async def _refused(scene: Scene, way: Way, *, scope: str, expected: set[str]) -> Outcome:
    """Large bodies at once, from callers who may not send them."""
    sent = islice(way.form.hostile[SMALLEST](_size(scene)), AT_ONCE)
    answers = Counter(await asyncio.gather(*(scene.send(way, one, scope) for one in sent)))
    if way.scope == "open":
        expected = {"OK", "INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"}
    return Outcome(answers, answers.keys() <= expected)


async def _keyless(scene: Scene, way: Way) -> Outcome:
    return await _refused(scene, way, scope="", expected={"401", "UNAUTHENTICATED"})


async def _wrong_scope(scene: Scene, way: Way) -> Outcome:
    scope = "explain" if way.scope == "admin" else "admin"
    return await _refused(scene, way, scope=scope, expected={"403", "PERMISSION_DENIED"})


async def _hostile(scene: Scene, way: Way, *, attack: str) -> Outcome:
    """One body after the other, from a caller who may send them."""
    answers: Counter[str] = Counter()
    largest = 0
    slowest, longest = 0.0, 0
    for number, message in enumerate(way.form.hostile[attack](_size(scene))):
        largest = max(largest, len(message.body))
        begun = time.monotonic()
        answers[await scene.send(way, message, way.scope)] += 1
        if (took := time.monotonic() - begun) > slowest:
            slowest, longest = took, number
    note = f"slowest {slowest:.1f} s (body {longest})"
    return Outcome(answers, all(map(_is_suitable, answers)), largest, note)


def _is_suitable(answer: str) -> bool:
    if answer.isdecimal():
        return answer[0] in "24" or answer in ("503", "504")
    return answer not in (*UNSUITABLE, NO_ANSWER)


async def _slow(scene: Scene, way: Way) -> Outcome:
    """A byte now and then of a body that would take hours."""
    return await _held(scene, way, drip=b"x")


async def _never_ending(scene: Scene, way: Way) -> Outcome:
    """Requests that never end: the head of some, and the body of others."""
    return await _held(scene, way, drip=b"")


async def _held(scene: Scene, way: Way, *, drip: bytes) -> Outcome:
    """Requests that do not come, half of them without a key, and an honest one beside them."""
    scopes = (way.scope, "")
    limit = scene.receive_seconds + CUT_SECONDS * slack(scene.scale)
    holding = calls_held if way.is_grpc else connections_held
    held = asyncio.create_task(holding(scene, way, drip, scopes, limit))
    await asyncio.sleep(scene.receive_seconds / 2)
    beside = await scene.honest(way)
    answers, lives = await held
    late = sum(life > limit for life in lives)
    note = f"the last ended after {max(lives):.1f} s{beside}"
    if late:
        note = f"{late} of {len(lives)} did not end in {limit:.0f} s{beside}"
    return Outcome(answers, not late and not beside and all(map(_may_end, answers)), note=note)


def _may_end(answer: str) -> bool:
    return answer in ("ended", "401", "408") or (answer.isdecimal() and answer[0] == "4")


NO_KEY, WRONG_SCOPE, SLOWLY, NEVER = "no key", "wrong scope", "slow", "never ending"
ATTACKS: Mapping[str, Attack] = {
    NO_KEY: _keyless,
    WRONG_SCOPE: _wrong_scope,
    SLOWLY: _slow,
    NEVER: _never_ending,
    **{name: partial(_hostile, attack=name) for name in (SMALLEST, DEEP, NUMBER, MANY)},
}
ALLOWED: Mapping[str, str] = {
    NO_KEY: "401, UNAUTHENTICATED",
    WRONG_SCOPE: "403, PERMISSION_DENIED",
    **dict.fromkeys((SLOWLY, NEVER), "all are ended in time, an honest caller is answered"),
    **dict.fromkeys((SMALLEST, DEEP, NUMBER, MANY), "2xx, 4xx, 503, 504"),
}
