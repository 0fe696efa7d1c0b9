"""What the audit of a model found: the method to use, and how good maps of the model are."""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Mapping
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
    fit: str | None = None
    """How the audit's photos were fitted to the model's input; None if the file does not say."""

    def percentile(self, metric: str, value: float, convention: str, fit: str | None) -> int | None:
        """Return the share of the audit's maps that are worse by a metric, in percent; of equal
        ones half are counted. None if the audit did not measure it by the same convention, on
        photos that were fitted to the input in the same way."""
        known = self.quantiles.get(metric)
        alike = self.conventions.get(metric) == convention and fit is not None and self.fit == fit
        if not known or not alike:
            return None
        below, above = bisect_left(known, value), bisect_right(known, value)
        if METRICS[metric].better == "lower":
            below, above = len(known) - above, len(known) - below
        return round(100 * (below + above) / 2 / len(known))


def read_audited(file: Path, fingerprint: str, methods: Collection[str] = METHODS) -> Audited:
    """Read the results of an audit from its `audit.json`.

    Args:
        fingerprint: fingerprint of the model that is served.
        methods: names of the methods that the model may have.

    Raises:
        ValueError: if the file cannot be read, or is about another model; the message says why.
    """
    try:
        data = file.read_bytes()
        document = json.loads(data)
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror}") from None
    except ValueError:  # also of other bytes than text, and of numbers that are too long
        raise ValueError(f"{file} is not JSON") from None
    except RecursionError:
        raise ValueError(f"{file} is nested too deeply to be the audit.json of an audit") from None
    try:
        if document["version"] != VERSION:
            raise ValueError(f"{file} has version {document['version']!r:.20}, not {VERSION}")
        fingerprint_ = document["fingerprint"]
        quantiles = {
            metric: tuple(map(_number, values))
            for metric, values in document["quantiles"].items()
            if metric in METRICS
        }
        conventions = {
            str(name): str(convention) for name, convention in document["metrics"].items()
        }
        # Answers over HTTP once left out what is null.
        best, why_none = document.get("recommendation"), document.get("why_none")
        method = None if best is None else str(best["method"])
        layer = "" if best is None else str(best["layer"])
        fit = document.get("made_with", {}).get("fit")
    except (KeyError, TypeError, AttributeError):
        raise ValueError(f"{file} is not the audit.json of an audit") from None
    if fingerprint_ != fingerprint:
        raise ValueError(
            f"{file} is the audit of other weights or settings: its fingerprint is "
            f"{fingerprint_!r:.60}, and the model's is {fingerprint}; audit the model again"
        )
    if method is None:
        reason = f": {why_none!s:.200}" if why_none else ""
        raise ValueError(f"{file} recommends no method{reason}; leave the key out")
    if method not in methods:
        raise ValueError(f"{file} recommends {method!r:.60}; there is no such method")
    digest = hashlib.blake2b(data, digest_size=16).hexdigest()
    return Audited(method, layer, digest, conventions, quantiles, fit)


def _number(value: object) -> float:
    """Return a number of a file.

    Raises:
        TypeError: if it is not a number, or not finite.
    """
    if not isinstance(value, int | float) or not abs(value) < 1e300:
        raise TypeError(f"{value!r:.20} is not a number")
    return float(value)
