"""Content negotiation: the choice of the media type that `Accept` prefers (RFC 9110, 12.5.1)."""

from __future__ import annotations

from collections.abc import Sequence

from service.core.errors import NotAcceptable


def choose(accept: str | None, offers: Sequence[str]) -> str:
    """Return the offer of highest quality; among equals, the first. A missing or empty `Accept`
    allows any offer.

    Raises:
        NotAcceptable: if `Accept` allows no offer; it names the offers.
    """
    ranges = dict(_parse(part) for part in (accept or "").split(",") if part.strip())
    ranges = ranges or {"*/*": 1.0}

    def quality(offer: str) -> float:
        family = offer.partition("/")[0]
        for name in (offer, f"{family}/*", "*/*"):  # the most specific range decides
            if name in ranges:
                return ranges[name]
        return 0.0

    best = max(offers, key=quality)
    if quality(best) == 0:
        raise NotAcceptable(f"Accept is {(accept or '')[:120]!r}; this answers {', '.join(offers)}")
    return best


def _parse(part: str) -> tuple[str, float]:
    """Return the name and the quality of a media range: "image/*;q=0.5" → ("image/*", 0.5)."""
    name, *parameters = (piece.strip().lower() for piece in part.split(";"))
    quality = 1.0
    for parameter in parameters:
        key, _, value = parameter.partition("=")
        if key.strip() == "q":
            try:
                quality = float(value)
            except ValueError:
                quality = 0.0
    return name, quality if 0 <= quality <= 1 else 0.0
