"""The device on which the tests of this folder compute."""

from __future__ import annotations

import os

import pytest
import torch


@pytest.fixture(scope="session")
def device() -> torch.device:
    """The device that GRADCAM_TEST_DEVICE names; without it the accelerator, if there is one, else
    the CPU. So each test runs on every machine, and on a GPU as a GPU runs it."""
    if named := os.environ.get("GRADCAM_TEST_DEVICE"):
        return torch.device(named)
    found = torch.accelerator.current_accelerator(check_available=True)
    return found or torch.device("cpu")


@pytest.fixture(autouse=True)
def compares(request: pytest.FixtureRequest, device: torch.device) -> None:
    """Skip what takes long where it would compare the CPU with itself, unless that is asked for."""
    slow = request.node.get_closest_marker("slow")
    if slow and device.type == "cpu" and "GRADCAM_TEST_DEVICE" not in os.environ:
        pytest.skip("there is no accelerator")


@pytest.fixture(autouse=True)
def exact_products() -> None:
    """Keep TensorFloat-32 off, whose products have ten bits: maps are compared with the CPU's."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
