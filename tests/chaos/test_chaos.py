"""Every attack, rehearsed: at a small part of its size, and with patience for a busy machine."""

from __future__ import annotations

import asyncio

import pytest

from tests.chaos import ATTACKS

pytestmark = pytest.mark.slow

SCALE = 0.03


@pytest.mark.parametrize("attack", ATTACKS)
def test_attack(attack: str) -> None:
    for found in asyncio.run(ATTACKS[attack](SCALE)):
        assert found.kept, found
