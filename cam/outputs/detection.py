"""`read_detections` of `cam.detectors.reading`, by the name that errors tell and that users' code
imports."""

from __future__ import annotations

from cam.outputs.kind import kinds

read_detections = kinds()["detections"].declare
