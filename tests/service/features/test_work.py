"""Each kind of work, and what it returns, goes to the process of the models and back."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from cam import AnswerOptions, ClassTarget, ExplainedAnswer, Observation
from cam.answers.answer import AnswerToken, words_of
from cam.drift.origin import Origin
from cam.drift.shift import Comparison, Shift, TooFew
from cam.evaluation.candidate import Candidate
from cam.evaluation.metrics import MetricOptions, Score
from cam.progress import Completeness
from service.backend.interface import OBSERVED_AT_ONCE
from service.backend.watch import WatchWork
from service.backend.work import Embed, Evaluate, Explain, ReadText, StepWork, Work
from service.features.activations.work import Factorise, Observe
from service.features.answers.work import AnswerQuestion
from service.features.audit.work import Randomise
from service.features.drift.work import CompareDrift, Drift
from service.rpc.client import RemoteBackend
from service.rpc.messages import Returned
from tests.service.rpc import test_frames, test_remote
from tests.service.rpc.fake import FakeBackend
from tests.service.rpc.test_remote import QUESTION, SEEN
from tests.waiting import stays_async, until_async

pytestmark = pytest.mark.anyio
pair = test_remote.pair
DRIFT = Drift(
    Origin("m", "w", "gradcam", "layer", "crop"),
    recorded=7,
    size=500,
    made="2026-01-02T03:04:05+00:00",
    photos=90,
    comparison=Comparison(
        (Shift(None, "border", 1.5, 0.5, 1e-9, (0, 0.1, 0.2), (0.3, 0.4, 0.5), 90, 80, True),),
        (TooFew(3, None, 4, 5),),
        0.25,
    ),
)


async def test_other_work_goes_there_with_all_that_it_has(
    pair: tuple[FakeBackend, RemoteBackend],
) -> None:
    fake, remote = pair
    candidate = Candidate(np.eye(2, dtype=np.float32), 1, 0, Completeness(1.5, 2.0))
    options = MetricOptions(steps="fine", region=np.eye(8, dtype=bool), baselines=("edges",))
    told = AnswerOptions(
        "a cat", 3, "gradcam", False, word="cat", evaluate=True, region=np.eye(8, dtype=bool)
    )
    asked: list[Work[Any]] = [
        Evaluate(SEEN.pixels, QUESTION, [candidate], ["deletion"], options),
        Randomise(SEEN.pixels, (QUESTION,), stages=3, seed=7),
        Observe(SEEN.pixels, ("a", "b"), ClassTarget(1)),
        Factorise(SEEN.pixels, "a", 2),
        Embed(SEEN.pixels, "a"),
        ReadText("a cat", "a dog", True),
        AnswerQuestion(SEEN.pixels, "what?", told, 7.5),
        CompareDrift(),
    ]
    bases = (Work, StepWork, WatchWork)
    kinds = {kind for base in bases for kind in base.__subclasses__()} - {*bases}
    own = {each for each in kinds if each.__module__.startswith("service.")}
    assert {Explain, *map(type, asked)} == own
    for work in asked:
        await remote.replicas("m").ask(work)
    assert repr(fake.models["m"].asked) == repr(asked)


@pytest.mark.parametrize(
    "value",
    [
        DRIFT,
        Observation,
        [{"deletion": Score(0.5, {"edges": None}, {"curve": (1.0, 0.5)}, "a warning")}],
        [[np.eye(2, dtype=np.float32), None]],
    ],
)
async def test_other_values_come_back(
    pair: tuple[FakeBackend, RemoteBackend], value: object
) -> None:
    fake, remote = pair
    fake.models["m"].value = value
    assert repr((await remote.replicas("m").ask(CompareDrift())).value) == repr(value)


async def test_few_images_are_observed_at_a_time(
    pair: tuple[FakeBackend, RemoteBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake, remote = pair
    asked = 0
    may_end = asyncio.Event()

    async def observe(work: Work[Any], *, progress: object) -> Any:
        nonlocal asked
        asked += 1
        await may_end.wait()

    monkeypatch.setattr(fake.models["m"], "ask", observe)
    work = Observe(SEEN.pixels, ("layer",), ClassTarget(1))
    asking = [asyncio.create_task(remote.replicas("m").ask(work)) for _ in range(9)]
    await until_async(lambda: asked == OBSERVED_AT_ONCE)
    await stays_async(lambda: asked == OBSERVED_AT_ONCE, 0.1)
    may_end.set()
    await asyncio.gather(*asking)
    assert asked == len(asking)


def test_an_explained_answer_comes_as_it_went() -> None:
    token = AnswerToken(7, " cat", 0.5, (), np.ones((2, 2), np.float32), 1.5)
    (word,) = words_of([token])
    answer = ExplainedAnswer("what?", "cat", "tam", (token,), (word,), True, False, 5, 4, 100)
    found = test_frames.again(Returned(1, answer)).value
    assert (found.text, found.words[0].evidence) == ("cat", 1.5)
    np.testing.assert_array_equal(found.words[0].map, token.map)
