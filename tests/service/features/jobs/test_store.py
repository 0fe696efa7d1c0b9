"""What the tables promise, in SQLite and PostgreSQL: an item is one runner's, and settled once."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from service.core.errors import Blamed, InsufficientStorage, MalformedRequest, Unavailable
from service.features.jobs.errors import IdempotencyConflict, TooManyJobs, UnknownJob
from service.features.jobs.leases import HANGS, HOPELESS, SUSPICIOUS
from service.features.jobs.records import Leased, NewItem
from tests.service.features.jobs.desk import MODEL, Desk, desk_at
from tests.service.features.jobs.postgres import Postgres, postgres

THREADS = 8


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with postgres() as running:
        yield running


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str | None:
    """Of the database; None: SQLite in the folder."""
    if request.param == "sqlite":
        return None
    running: Postgres = request.getfixturevalue("server")
    return running.fresh()


@pytest.fixture
def desk(tmp_path: Path, url: str | None) -> Iterator[Desk]:
    with desk_at(tmp_path, url) as desk:
        yield desk


def at_once(work: Callable[[int], None], count: int = THREADS) -> None:
    """In so many threads that begin together; what one raises is raised."""
    gate = threading.Barrier(count)

    def run(number: int) -> None:
        gate.wait()
        work(number)

    with ThreadPoolExecutor(count) as pool:
        list(pool.map(run, range(count)))


def test_threads_never_lease_the_same_item(desk: Desk, tmp_path: Path, url: str | None) -> None:
    """Half of them through another service's connections."""
    job = desk.job(300)
    leased: list[Leased] = []
    with desk_at(tmp_path, url) as other:

        def work(number: int) -> None:
            mine = (desk, other)[number % 2]
            idle = 0
            while idle < 3:  # rows that another has in hand are passed over
                found = mine.lease(f"runner {number}", 1 + number)
                leased.extend(found)
                idle = 0 if found else idle + 1

        at_once(work)
    assert Counter(each.number for each in leased) == Counter(range(300))
    assert {each.job for each in leased} == {job.id}


@pytest.mark.slow
def test_cursors_count_what_threads_settle(desk: Desk) -> None:
    """Every seventh fails; none is told twice, and readers meanwhile never see a gap."""
    job, count = desk.job(120), 120
    gaps: list[list[int]] = []
    ended = threading.Event()

    def look() -> None:
        while not ended.is_set():
            cursors = [each.cursor for each in desk.finished(job)]
            if cursors != list(range(1, len(cursors) + 1)):
                gaps.append(cursors)

    looking = threading.Thread(target=look)
    looking.start()

    def work(number: int) -> None:
        name = f"runner {number}"
        while leased := desk.lease(name, 3):
            for each in leased:
                problem = MalformedRequest("seventh") if each.number % 7 == 0 else None
                assert desk.store.settle(name, each, problem, 10)
                assert not desk.store.settle(name, each, None, 10)

    at_once(work)
    ended.set()
    looking.join()
    now = desk.now(job)
    assert (now.state, now.total, now.done, now.failed) == ("done", 120, 102, 18)  # ⌈120 / 7⌉ = 18
    finished = desk.finished(job)
    assert [each.cursor for each in finished] == list(range(1, count + 1))
    assert sorted(each.number for each in finished) == list(range(count))
    assert {each.number for each in finished if each.problem} == set(range(0, count, 7))
    assert desk.submissions.bytes() == 1200
    assert not gaps


def test_what_is_not_mine_is_not_settled(desk: Desk) -> None:
    job = desk.job(3)
    first, second, third = desk.lease("a")
    assert not desk.store.settle("b", first, None, 0)
    desk.store.bury("a")
    assert not desk.store.settle("a", second, None, 0)  # it is anybody's now
    (again, *_) = desk.lease("b", 1)
    assert again.number == 0
    assert desk.store.settle("b", again, None, 0)
    assert desk.now(job).settled == 1
    desk.listing.cancel(job.id)
    desk.store.settle("b", third, None, 0)
    assert desk.now(job).settled == 1
    assert [each.number for each in desk.finished(job)] == [0]
    assert desk.now(job).state == "cancelled"


def test_jobs_that_have_ended_are_told_apart(desk: Desk) -> None:
    going, cancelled = desk.job(1), desk.job(1)
    desk.listing.cancel(cancelled.id)
    ids = [going.id, cancelled.id, "unknown"]
    assert desk.store.closed(ids) == {cancelled.id, "unknown"}


def test_nothing_is_settled_after_cancel(desk: Desk) -> None:
    job = desk.job(2)
    leased = desk.lease("a")
    desk.listing.cancel(job.id)
    assert [desk.store.settle("a", each, None, 5) for each in leased] == [False, False]
    assert desk.lease("a") == []
    now = desk.now(job)
    assert (now.state, now.settled) == ("cancelled", 0)
    assert desk.finished(job) == []
    assert desk.submissions.bytes() == 0


def test_release_is_no_attempt_and_death_is_one(desk: Desk) -> None:
    job = desk.job(4)
    first, second, *_ = desk.lease("a")
    desk.store.release("a", first)
    assert [each.number for each in desk.lease("b")] == [0]
    desk.store.release("a", first)  # it is b's by now
    desk.store.keep_only("a", [(job.id, second.number)])
    assert [each.number for each in desk.lease("b")] == [2, 3]
    assert desk.attempts(job) == [0, 0, 0, 0]
    desk.store.enlist("b")
    desk.store.dismiss("b")
    assert desk.store.runners() == set()
    assert [each.number for each in desk.lease("c")] == [0, 2, 3]
    desk.store.bury("c")
    assert desk.attempts(job) == [1, 0, 1, 1]
    assert desk.store.settle("a", second, None, 0)  # through all of it


@pytest.mark.parametrize(("blamed", "deaths"), [("batch", HANGS), ("process", 1)])
def test_only_what_hung_alone_is_the_cause_for_certain(
    desk: Desk, blamed: Blamed, deaths: int
) -> None:
    """The end of a process may be due to a request beside the item."""
    job = desk.job(1)
    desk.set_attempts(job, 0, SUSPICIOUS - 1)
    (leased,) = desk.lease("a")
    desk.store.release("a", leased, blamed=blamed)
    assert desk.attempts(job) == [SUSPICIOUS]
    (leased,) = desk.lease("a")
    assert leased.alone
    desk.store.release("a", leased, blamed=blamed)
    assert desk.attempts(job) == [SUSPICIOUS + deaths]


def test_who_is_silent_loses_its_items_and_who_is_heard_does_not(desk: Desk) -> None:
    job = desk.job(2)
    for name in ("a", "b"):
        desk.store.enlist(name)
        assert len(desk.lease(name, 1)) == 1
    assert desk.store.silent() == []
    desk.hush("a")
    assert desk.store.silent() == ["a"]
    desk.store.enlist("a")  # it was only slow
    assert desk.store.silent() == []
    desk.hush("a")
    for each in desk.store.silent():
        desk.store.bury(each)
    assert desk.attempts(job) == [1, 0]
    assert [each.number for each in desk.lease("c")] == [0]
    assert desk.store.runners() == {"b"}


def test_several_find_the_same_one_dead(desk: Desk) -> None:
    """It is one death, and what comes to its end with it ends once."""
    job = desk.job(20)
    for number in (3, 4):
        desk.set_attempts(job, number, SUSPICIOUS - 1)
    desk.store.enlist("a")
    assert len(desk.lease("a", 20)) == 20
    for number in (5, 6):
        desk.set_attempts(job, number, HOPELESS - 1)
    at_once(lambda number: desk.store.bury("a"))
    assert desk.attempts(job) == [1] * 3 + [SUSPICIOUS] * 2 + [HOPELESS] * 2 + [1] * 13
    assert sorted(each.number for each in desk.finished(job)) == [5, 6]
    assert (desk.now(job).done, desk.now(job).failed) == (0, 2)


def test_a_suspect_is_worked_on_alone_and_last(desk: Desk) -> None:
    job = desk.job(6)
    for number in (0, 2):
        desk.set_attempts(job, number, SUSPICIOUS)
    desk.set_attempts(job, 1, SUSPICIOUS - 1)
    turns = [[(each.number, each.alone) for each in desk.lease("a")] for _ in range(4)]
    company = [(number, False) for number in (1, 3, 4, 5)]
    assert turns == [company, [(0, True)], [(2, True)], []]


def test_who_kills_too_often_is_given_up(desk: Desk) -> None:
    """Its company is not: from the third time on it has none."""
    job = desk.job(3)
    lives = 0
    while desk.now(job).state != "done":
        lives += 1
        desk.store.enlist(f"life {lives}")
        while leased := desk.lease(f"life {lives}"):
            if any(each.number == 1 for each in leased):
                desk.store.bury(f"life {lives}")
                break
            for each in leased:
                assert desk.store.settle(f"life {lives}", each, None, 1)
    assert desk.attempts(job) == [SUSPICIOUS, HOPELESS, SUSPICIOUS]
    assert (desk.now(job).done, desk.now(job).failed) == (2, 1)
    (failed,) = [each for each in desk.finished(job) if each.problem]
    assert failed.number == 1
    assert failed.problem is not None
    assert "ended or hung repeatedly" in failed.problem["detail"]
    assert lives == HOPELESS + 1  # the last one finds it given up, and does the third


def test_a_small_job_does_not_wait_for_a_large_one(desk: Desk) -> None:
    large = desk.job(1000)
    for _ in range(5):
        desk.lease("a")
    small = desk.job(40)
    turns = [desk.lease("a")[0].job for _ in range(6)]
    assert turns.count(small.id) == 3  # 40 items, 16 at a time
    assert turns.count(large.id) == 3


def test_a_large_job_does_not_wait_for_all_the_small_ones(desk: Desk) -> None:
    """A new one comes each time there is a turn, more than can be done: it gets some all the same.

    By hand, the turn of each job as it comes and as it is served: large 1; A 1, large 1 → 2; B 2,
    A → 3; C 3, large 2 → 4; D 4, B → 5; E 5, C → 6; F 6, large 4 → 7; G 7, D; H 8, E; I 9, F;
    J 10, large 7.
    """
    large = desk.job(200)
    desk.lease("a")
    turns = []
    for _ in range(10):
        desk.job(4)
        turns.append(desk.lease("a")[0].job)
    assert [turn + 1 for turn, job in enumerate(turns) if job == large.id] == [1, 3, 6, 10]


def test_a_kind_of_jobs_has_items_as_many_as_there_is_room_for(desk: Desk) -> None:
    audit = desk.job(5, kind="audit")
    job = desk.job(5)

    def lease(**kinds: int) -> list[tuple[str, int]]:
        leased = desk.store.lease("a", [MODEL], 16, kinds)
        return [(item.job, item.number) for item in leased]

    assert lease(explain=16, audit=2) == [(audit.id, 0), (audit.id, 1)]
    assert lease(explain=3, audit=0) == [(job.id, 0), (job.id, 1), (job.id, 2)]
    assert lease(explain=16) == [(job.id, 3), (job.id, 4)]
    assert lease(explain=16) == []  # the audit's kind is not known
    assert lease(explain=16, audit=2) == [(audit.id, 2), (audit.id, 3)]


def test_only_a_ready_model_with_the_same_weights_gets_items(desk: Desk) -> None:
    desk.job(2)
    assert desk.store.lease("a", [("m", "other")], 5) == []
    assert desk.store.lease("a", [("other", "w")], 5) == []
    assert len(desk.store.lease("a", [("other", "x"), MODEL], 5)) == 2


def test_a_job_that_nobody_receives_any_more_goes(desk: Desk) -> None:
    desk.store.enlist("a")
    name = desk.begun(3, runner="a")
    assert desk.listing.leaving(0) == []
    with pytest.raises(UnknownJob):
        desk.listing.get(name, None)  # nobody has been told of it
    assert desk.lease("b") == []
    desk.store.bury("a")
    assert desk.listing.leaving(0) == [name]
    desk.listing.leave(name)
    with pytest.raises(Unavailable, match="send it again"):
        desk.accepted(name, 3)  # by the one that was not dead after all
    desk.listing.remove(name)
    assert desk.rows(name) == {"jobs": 0, "items": 0, "results": 0}
    with pytest.raises(Unavailable, match="send it again"):
        desk.submissions.add(name, 3, [NewItem("late", {"path": "x"})])
    with pytest.raises(Unavailable, match="send it again"):
        desk.accepted(name, 3)


def test_a_job_whose_time_is_over_goes_when_nobody_works_on_it(desk: Desk) -> None:
    job = desk.job(2)
    assert desk.listing.leaving(time.time() + 1) == []
    (first, _) = desk.lease("a")
    assert desk.store.settle("a", first, None, 1)
    desk.listing.cancel(job.id)
    assert desk.listing.leaving(time.time() - 60) == []
    assert desk.listing.leaving(time.time() + 1) == []  # a has an item in hand
    desk.store.dismiss("a")
    assert desk.listing.leaving(time.time() + 1) == [job.id]
    desk.listing.remove(job.id)
    assert desk.rows(job.id) == {"jobs": 0, "items": 0, "results": 0}


def test_an_idempotency_key_is_one_job_whoever_comes_at_once(desk: Desk) -> None:
    found = []

    def work(number: int) -> None:
        found.append(desk.accepted(desk.begun(2), 2, "key").id)

    at_once(work)
    assert len(set(found)) == 1
    name = found[0]
    with pytest.raises(IdempotencyConflict, match=name):
        desk.submissions.accept(
            desk.begun(2), desk.draft("key"), total=2, size=0, digest="other", warnings=()
        )
    desk.listing.leave(name)  # who purged it may bring it again
    assert desk.job(2, "key").id != name


def test_jobs_that_come_at_once_share_the_disk_and_the_places(desk: Desk) -> None:
    accepted, refused = [], []

    def bring(number: int) -> None:
        name = desk.begun(1)
        try:
            job = desk.submissions.accept(
                name,
                desk.draft(),
                total=1,
                size=400,
                digest="same",
                warnings=(),
                most_bytes=1000,
            )
            accepted.append(job.id)
        except InsufficientStorage as problem:
            refused.append(problem.detail)

    at_once(bring)
    assert len(accepted) == 2
    assert len(refused) == THREADS - 2
    assert "at most 1000 are allowed" in refused[0]
    assert desk.submissions.bytes() == 800

    begun: list[str] = []
    there = THREADS  # those that were refused are still on their way in

    def begin(number: int) -> None:
        with suppress(TooManyJobs):
            begun.append(desk.submissions.begin("receiver", desk.draft(), there + 3))

    at_once(begin)
    assert len(begun) == 3


def test_two_make_the_tables_at_once(tmp_path: Path, url: str | None) -> None:
    def work(number: int) -> None:
        with desk_at(tmp_path, url) as desk:
            desk.store.enlist(f"runner {number}")

    at_once(work)
    with desk_at(tmp_path, url) as desk:
        assert len(desk.store.runners()) == THREADS
