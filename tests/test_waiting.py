"""What the other tests wait with says what they waited for."""

from __future__ import annotations

from itertools import count

import pytest

from tests.waiting import at_rest, stays, stays_async, until, until_async

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_what_does_not_come_about_is_told_in_the_words_of_the_test() -> None:
    found: list[int] = []
    with pytest.raises(AssertionError, match=r"within 0.05 s: .*lambda: len\(found\) == 3.* False"):
        until(lambda: len(found) == 3, 0.05)
    with pytest.raises(AssertionError, match=r"within 0.05 s: .*lambda: len\(found\) == 3.* False"):
        await until_async(lambda: len(found) == 3, 0.05)
    with pytest.raises(AssertionError, match=r"list.__len__; it is 0"):
        until(found.__len__, 0.05)


async def test_what_ends_too_early_is_told_as_well() -> None:
    asked = count()
    stays(lambda: next(asked) >= 0, 0.05)
    assert next(asked) > 1, "it is asked more than once"
    with pytest.raises(AssertionError, match=r"for 5 s: .*lambda: next\(asked\) < 9"):
        stays(lambda: next(asked) < 9, 5)
    asked = count()
    await stays_async(lambda: next(asked) >= 0, 0.05)
    assert next(asked) > 1
    with pytest.raises(AssertionError, match=r"for 5 s: .*lambda: next\(asked\) < 99"):
        await stays_async(lambda: next(asked) < 99, 5)


def test_a_value_is_told_when_it_has_come_to_rest() -> None:
    values = iter([1, 2, 2, 3])
    last = 3
    assert at_rest(lambda: next(values, last), 0.1) == 3
    asked = count()
    with pytest.raises(AssertionError, match=r"within 0.1 s: .*rests; it is False"):
        at_rest(lambda: next(asked), 0.05, 0.1)
