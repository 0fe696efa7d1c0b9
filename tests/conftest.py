"""What holds for every test: a small machine, and no folder but the test's own."""

import os
import tempfile

import cv2
import torch

# Two worker processes' worth of threads on a small machine only fight each other; with other counts
# sums are added in another order, and the tests must pass with any.
torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
cv2.setNumThreads(2)

# Jobs are kept in the user's folder unless a setting says otherwise; no test leaves any there.
_state = tempfile.TemporaryDirectory(prefix="gradcam-tests-", ignore_cleanup_errors=True)
os.environ["XDG_STATE_HOME"] = _state.name

# What one test finds out about a model must not be there for the next one.
os.environ["GRADCAM_CACHE"] = "off"

# Models for tests sleep, hang or die while PyTorch runs them, which OpenVINO would leave out.
os.environ["GRADCAM_RUNTIME"] = "torch"
