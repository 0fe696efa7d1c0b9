"""A rolling update behind nginx, with the configuration that is documented."""

from __future__ import annotations

import asyncio

import pytest

from bench.rolling import NGINX, roll


@pytest.mark.slow
@pytest.mark.skipif(NGINX is None, reason="needs nginx")
def test_no_request_fails_while_both_processes_are_replaced_twice() -> None:
    answers = asyncio.run(roll(2))
    assert answers.total() > 50
    assert set(answers) == {"200"}
