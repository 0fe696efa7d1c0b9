"""What the audit of a model found: the method to use, and how good maps of the model are."""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cam import METHODS
from cam.evaluation.metrics import METRICS

VERSION = 1


@dataclass(frozen=True)
class Audited:
    """The results of an audit that requests use."""

    method: str
    """The recommended method."""
    layer: str
    """The recommended layer; `cam.methods.INPUT` for a method that makes its map at the input."""
    digest: str
    """Digest of the file, in hexadecimal."""
    conventions: Mapping[str, str] = field(default_factory=dict)
    """Metric → the convention by which the audit computed it."""
    quantiles: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Metric → its 101 percentiles over the audit's photos and methods, ascending."""

    def percentile(self, metric: str, value: float, convention: str) -> int | None:
        """Return the share of the audit's maps that are worse by a metric, in percent; of equal
        ones half are counted. None if the audit did not measure it by the same convention."""
        known = self.quantiles.get(metric)
        if not known or self.conventions.get(metric) != convention:
            return None
        below, above = bisect_left(known, value), bisect_right(known, value)
        if METRICS[metric].better == "lower":
            below, above = len(known) - above, len(known) - below
        return round(100 * (below + above) / 2 / len(known))


def read_audited(file: Path, fingerprint: str) -> Audited:
    """Read the results of an audit from its `audit.json`.

    Args:
        fingerprint: fingerprint of the model that is served.

    Raises:
        ValueError: if the file cannot be read, or is about another model; the message says why.
    """
    try:
        data = file.read_bytes()
        document = json.loads(data)
        if document["version"] != VERSION:
            raise ValueError(f"{file} has version {document['version']!r:.20}, not {VERSION}")
        found, best = document["fingerprint"], document["recommendation"]
        quantiles = {
            metric: tuple(float(each) for each in values)
            for metric, values in document["quantiles"].items()
            if metric in METRICS
        }
        conventions = {str(name): str(each) for name, each in document["metrics"].items()}
        method = None if best is None else str(best["method"])
        layer = "" if best is None else str(best["layer"])
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror}") from None
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise ValueError(f"{file} is not JSON") from None
    except (KeyError, TypeError, AttributeError):
        raise ValueError(f"{file} is not the audit.json of an audit") from None
    if found != fingerprint:
        raise ValueError(
            f"{file} is the audit of other weights or settings: its fingerprint is {found!r:.60}, "
            f"and the model's is {fingerprint}; audit the model again"
        )
    if method is None:
        raise ValueError(f"{file} recommends no method; leave the key out")
    if method not in METHODS:
        raise ValueError(f"{file} recommends {method!r:.60}; there is no such method")
    digest = hashlib.blake2b(data, digest_size=16).hexdigest()
    return Audited(method, layer, digest, conventions, quantiles)
