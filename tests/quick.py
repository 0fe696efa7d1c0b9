"""Parameters of a test of which some are enough for the quick tests."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def quick(values: Iterable[Any], some: Collection[Any]) -> list[Any]:
    """Return the values as a test's parameters; those that are not among some are slow."""
    values = list(values)
    assert all(each in values for each in some)
    return [
        value if value in some else pytest.param(value, marks=pytest.mark.slow) for value in values
    ]
