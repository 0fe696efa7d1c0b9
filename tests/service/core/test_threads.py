"""Only torch starts threads while pictures are drawn."""

from __future__ import annotations

import os
import subprocess
import sys

import cv2
import numpy as np
import pytest
from starlette.testclient import TestClient
from threadpoolctl import threadpool_info

from service.app import create_app
from service.core.threads import WAITING, one_each, spin_briefly
from service.settings import Settings


def of_numpy() -> list[int]:
    assert np.ones((2, 2)) @ np.ones((2, 2)) is not None  # loaded by now
    found = [
        library["num_threads"]
        for library in threadpool_info()
        if library["user_api"] == "blas"
        # SciPy's own cannot be set if OpenCV was imported before it: OpenCV's has the same symbols.
        and not any(other in library["filepath"] for other in ("torch", "scipy.libs"))
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


def test_waiting_threads_spin_briefly_unless_the_environment_says_how_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in WAITING:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    spin_briefly()
    assert {name: os.environ[name] for name in WAITING} == WAITING
    for name in WAITING:
        monkeypatch.delenv(name)
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    spin_briefly()
    assert os.environ["OMP_WAIT_POLICY"] == "passive"
    assert "GOMP_SPINCOUNT" not in os.environ


def test_the_command_line_sets_it_before_torch_is_imported() -> None:
    code = "import sys, service.cli.main; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
