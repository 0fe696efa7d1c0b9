"""Rates of keys, in one process and in several."""

from __future__ import annotations

import multiprocessing
import tempfile
from pathlib import Path

import psutil
import pytest

from service.features.keys import rates as module
from service.features.keys.rates import Rate, Rates

pytestmark = pytest.mark.contract


class Clock:
    now = 1000.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "monotonic", lambda: clock.now)
    return clock


@pytest.mark.parametrize("shared", [False, True])
def test_at_most_so_many_in_any_period(clock: Clock, shared: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        one = Rates(Path(folder) if shared else None)
        other = Rates(Path(folder)) if shared else one
        rate = Rate.parsed("3/minute")
        for process, seconds in ((one, 0), (other, 10), (one, 30)):
            clock.now = 1000.0 + seconds
            assert process.hit(rate, "a") is None
        assert one.hit(rate, "b") is None, "each key has its own"
        clock.now = 1059.0
        assert one.hit(rate, "a") == pytest.approx(1)
        assert other.hit(rate, "a") == pytest.approx(1)
        clock.now = 1060.0
        assert other.hit(rate, "a") is None
        assert one.hit(rate, "a") == pytest.approx(10), "a refused request does not count"
        clock.now = 1090.0
        assert [one.hit(rate, "a") for _ in range(3)] == [None, None, pytest.approx(30)]


def test_a_machine_that_has_just_started_admits_the_first_request(clock: Clock) -> None:
    clock.now = 5.0
    rates = Rates()
    assert [rates.hit(Rate.parsed("2/minute"), "a") for _ in range(3)] == [None, None, 60.0]


def test_the_time_of_day_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = Rates()
    assert rates.hit(Rate.parsed("1/second"), "a") is None
    monkeypatch.setattr("time.time", lambda: 0.0)  # set back by decades
    wait = rates.hit(Rate.parsed("1/second"), "a")
    assert wait is None or wait <= 1


def test_a_rate_that_the_operator_changes_begins_anew(tmp_path: Path) -> None:
    for _ in range(600):
        assert Rates(tmp_path).hit(Rate.parsed("600/minute"), "a") is None
    lower = [Rates(tmp_path).hit(Rate.parsed("2/minute"), "a") for _ in range(3)]
    assert lower[:2] == [None, None]
    assert lower[2] is not None


def test_rings_of_many_keys_keep_no_file_open(tmp_path: Path) -> None:
    rates, before = Rates(tmp_path), psutil.Process().num_fds()
    for number in range(50):
        assert rates.hit(Rate.parsed("2/minute"), f"key {number}") is None
    assert psutil.Process().num_fds() == before


def _hits(folder: Path, times: int) -> None:
    rates, rate = Rates(folder), Rate.parsed("500/day")
    admitted = sum(rates.hit(rate, "a") is None for _ in range(times))
    (folder / f"admitted-{multiprocessing.current_process().pid}").write_text(str(admitted))


def test_two_processes_admit_no_more_than_one(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_hits, args=(tmp_path, 400)) for _ in range(2)]
    for each in processes:
        each.start()
    for each in processes:
        each.join()
        assert each.exitcode == 0
    assert sum(int(each.read_text()) for each in tmp_path.glob("admitted-*")) == 500


@pytest.mark.parametrize(
    ("text", "amount", "seconds"),
    [
        ("600/minute", 600, 60),
        (" 10 per 2 hours ", 10, 7200),
        ("3 / Day", 3, 86_400),
        ("1/30seconds", 1, 30),
        ("5 per year", 5, 360 * 86_400),
        ("1000 per 86400 seconds", 1000, 86_400),
        ("7 perhour", 7, 3600),
    ],
)
def test_rates_that_are_written(text: str, amount: int, seconds: int) -> None:
    rate = Rate.parsed(text)
    assert (rate.amount, rate.seconds) == (amount, seconds)
