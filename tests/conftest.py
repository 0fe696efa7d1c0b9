"""What holds for every test: a small machine, and no folder but the test's own."""

import gc
import os
import re
import tempfile
from functools import partialmethod
from pathlib import Path

import cv2
import pytest
import torch
from starlette.testclient import TestClient

from tests.tree import types_of_all

# Two worker processes' worth of threads on a small machine only fight each other; with other counts
# sums are added in another order, and the tests must pass with any.
torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
cv2.setNumThreads(2)

# Jobs are kept in the user's folder unless a setting says otherwise; no test leaves any there.
_state = tempfile.TemporaryDirectory(prefix="gradcam-tests-", ignore_cleanup_errors=True)
os.environ["XDG_STATE_HOME"] = _state.name

# What is found out about the embedded model in one process of a run is there for the others.
if "TESTS_CACHE" not in os.environ:
    _cache = tempfile.TemporaryDirectory(prefix="gradcam-tests-", ignore_cleanup_errors=True)
    os.environ["TESTS_CACHE"] = _cache.name
os.environ["GRADCAM_CACHE"] = os.environ["TESTS_CACHE"]

# Models for tests sleep, hang or die while PyTorch runs them, which OpenVINO would leave out.
os.environ["GRADCAM_RUNTIME"] = "torch"

# A service without keys does not answer to "testserver", which is Starlette's name for it.
setattr(  # noqa: B010 - mypy allows no assignment
    TestClient, "__init__", partialmethod(TestClient.__init__, base_url="http://localhost")
)


@pytest.fixture(scope="session")
def known_types(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """mypy's cache of all packages."""
    return types_of_all(tmp_path_factory.mktemp("types") / "mypy")


WHOLLY_SLOW = re.compile(r"^pytestmark = .*\bpytest\.mark\.slow\b", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files of slow tests alone where those do not run: each worker would import them."""
    if config.option.markexpr != "not slow" or collection_path.suffix != ".py":
        return None
    return bool(WHOLLY_SLOW.search(collection_path.read_text())) or None


# What is imported stays: a collection that looks for garbage in it takes as long as a test.
gc.disable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # at the end extensions complain of what is left
