"""A process that receives requests and asks the engine's process for the answers."""

from __future__ import annotations

import socket
from pathlib import Path

from fastapi import FastAPI

from service.core.metrics import Metrics
from service.core.settings import CoreSettings
from service.features import adapters, operations
from service.http.app import make_app
from service.limits.counters import SharedCounts
from service.models.catalog import ModelEntry
from service.process.heartbeat import COUNTS, ENGINE, Heartbeat
from service.process.server import run as serve
from service.rpc.client import RemoteBackend

OPERATIONS, ADAPTERS = operations(), adapters()


def run(
    settings: CoreSettings,
    entries: tuple[ModelEntry, ...],
    listening: socket.socket,
    heartbeat: Heartbeat,
    folder: Path,
    number: int,
) -> int:
    """Serve until told to stop.

    Args:
        folder: the folder that the processes of the service share.
        number: number of this process, from 0. The first one processes jobs, too.

    Returns:
        The process's exit code, as `service.process.server.run` returns it.
    """

    def make() -> FastAPI:
        metrics = Metrics()
        return make_app(
            settings,
            entries,
            operations=OPERATIONS,
            adapters=ADAPTERS,
            manager=RemoteBackend(str(folder / ENGINE), metrics),
            metrics=metrics,
            counts=SharedCounts(folder / COUNTS, number),
            shared=folder,
            is_first=number == 0,
        )

    return serve(make, settings, listening, heartbeat, says_hello=number == 0)
