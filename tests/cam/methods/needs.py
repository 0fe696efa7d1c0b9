"""Methods that not every network can be explained by."""

from __future__ import annotations

DETECTING = ("odam", "drise")
"""The methods that explain boxes of detectors alone."""
MATRICES = ("rollout", "chefer", "agcam", "legrad", "gradeclip")
"""The methods that read the matrices of attention."""
ATTENDING = (*MATRICES, "attnlrp")
"""The methods that need a transformer."""
