"""Only torch starts threads while pictures are drawn."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from starlette.testclient import TestClient
from threadpoolctl import threadpool_info

from service.core.settings import Settings
from service.core.threads import one_each
from service.http.app import create_app


def of_numpy() -> list[int]:
    assert np.ones((2, 2)) @ np.ones((2, 2)) is not None  # loaded by now
    found = [
        library["num_threads"]
        for library in threadpool_info()
        if library["user_api"] == "blas" and "torch" not in library["filepath"]
    ]
    assert found
    return found


def test_one_each_and_back_again() -> None:
    before = of_numpy(), cv2.getNumThreads()
    with one_each():
        assert set(of_numpy()) == {1}
        assert cv2.getNumThreads() == 1
    assert (of_numpy(), cv2.getNumThreads()) == before
    with pytest.raises(ValueError, match="no"), one_each():
        raise ValueError("no")
    assert (of_numpy(), cv2.getNumThreads()) == before


def test_a_running_app_does_so() -> None:
    before = of_numpy(), cv2.getNumThreads()
    with TestClient(create_app(Settings(), [])):
        assert set(of_numpy()) == {1}
        assert cv2.getNumThreads() == 1
    assert (of_numpy(), cv2.getNumThreads()) == before
