"""What judges hosts and pages, as it is added to the app."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

from service.features.origins.judgement import Origins
from service.features.origins.settings import OriginSettings
from service.http.adapter import Added, AppParts
from service.http.middleware import SECURITY

OWN_HEADERS = ("X-API-Key", "X-Request-ID", "X-Request-Timeout", "Idempotency-Key")
SHOWN_HEADERS = ("Server-Timing", "X-Request-ID", "X-Next-Cursor")


def origins(parts: AppParts) -> Added:
    """Refuse requests through foreign names and from foreign pages, and tell browsers which pages
    may read the answers."""
    settings = parts.settings_of(OriginSettings)
    pages = settings.cors_origins
    # A service with keys may be reached by any name: a browser does not know its keys.
    hosts = settings.hosts or (("*",) if settings.identifies_callers() else ())
    judged = (Origins, {"hosts": hosts, "pages": pages, "metrics": parts.metrics})
    shared = {
        "allow_origins": pages,
        "allow_methods": ["GET", "HEAD", "POST", "DELETE"],
        "allow_headers": ["Authorization", "Content-Type", "If-None-Match", *OWN_HEADERS],
        "expose_headers": ["ETag", "Location", "Retry-After", *SHOWN_HEADERS],
    }
    return Added(inner=[judged], middleware=[(Cors, shared)] if pages else [])


class Cors(CORSMiddleware):
    """Starlette's middleware, with the security headers added to answers to preflights."""

    def preflight_response(self, request_headers: Headers) -> Response:
        response = super().preflight_response(request_headers)
        response.headers.update(SECURITY)
        return response
