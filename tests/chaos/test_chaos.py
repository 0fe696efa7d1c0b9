"""Every attack, rehearsed: at a small part of its size, and with patience for a busy machine."""

from __future__ import annotations

import asyncio

import pytest

from tests.chaos import ATTACKS

SCALE = 0.03


# Where the door and not the model is the bottleneck, the two seconds of GRADCAM_TARGET_SECONDS let
# in more photos than its event loop bears: probes of its port take seconds in a burst.
KNOWN = {
    "overload": pytest.mark.xfail(reason="a burst at the door delays its probes", strict=False)
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "attack", [pytest.param(name, marks=KNOWN.get(name, ())) for name in ATTACKS]
)
def test_attack(attack: str) -> None:
    for found in asyncio.run(ATTACKS[attack](SCALE)):
        assert found.kept, found
