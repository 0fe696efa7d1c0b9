"""A caller who leaves is noticed, and what was done for nobody ends."""

from __future__ import annotations

import socket

import httpx2
import pytest

from tests.service.conftest import encoded, noise
from tests.service.live import serving
from tests.waiting import until

LEAVERS = 7
ADMITTED = {"GRADCAM_TARGET_SECONDS": "10"}
"""With two seconds, the service would admit four."""


def left(http: httpx2.Client) -> float:
    """How many callers the metrics say have left."""
    return told(http, "gradcam_requests_total", 'status="499"')


def passes(http: httpx2.Client) -> float:
    """Forward passes, each for one image."""
    return told(http, "gradcam_batch_size_count", 'model="slow"')


def told(http: httpx2.Client, name: str, label: str) -> float:
    """What the metrics say, of all that have a label."""
    return sum(
        float(line.rpartition(" ")[2])
        for line in http.get("/metrics").text.splitlines()
        if line.startswith(name) and label in line
    )


@pytest.mark.slow
def test_callers_who_leave_are_dropped_from_the_queue(slow_catalog: str) -> None:
    """A forward pass takes half a second: eight of them, one after the other, would take four
    seconds."""
    with serving("--models", slow_catalog, **ADMITTED) as (_, http):
        address = (http.base_url.host, http.base_url.port)
        callers = []
        for seed in range(LEAVERS):
            photo = encoded(noise(8, 8, seed))
            caller = socket.create_connection(address)
            caller.sendall(
                b"POST /v1/models/slow:explain HTTP/1.1\r\nHost: localhost\r\n"
                b"Content-Type: image/png\r\nContent-Length: %d\r\n\r\n%b" % (len(photo), photo)
            )
            callers.append(caller)
        until(lambda: 'gradcam_queue_depth{model="slow"} 6.0' in http.get("/metrics").text)
        for caller in callers:
            caller.close()
        before = passes(http)
        response = http.post(
            "/v1/models/slow:explain",
            content=encoded(noise(8, 8, 99)),
            headers={"Content-Type": "image/png"},
        )
        assert response.status_code == 200
        assert passes(http) - before <= 3  # the one under way, its own, and one that was too late
        until(lambda: left(http) == LEAVERS, 5)
        assert http.get("/readyz").status_code == 200
