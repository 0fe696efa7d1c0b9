"""Texts and examples of openapi/openapi.json for the service as a whole and for its requests."""

from __future__ import annotations

from typing import Final

DESCRIPTION: Final = """\
Explains what vision models look at: class activation maps of PyTorch models over HTTP.

The native API is KServe V1, so the service is a drop-in KServe explainer. Every error is an
RFC 9457 problem whose `detail` names the bad value and what is allowed.
"""
TAGS: Final = [
    {"name": "explain", "description": "Predictions and explanations."},
    {"name": "models", "description": "What is served."},
    {"name": "operations", "description": "Health and metrics."},
]
