"""How many connections one process may have, by the settings and by the files that it may open."""

from __future__ import annotations

import logging
from typing import Final

from service.core.settings import CoreSettings

RESERVED_FILES: Final = 128
"""Files that a process keeps for other things than connections: probes, the engine, jobs."""
LEAST: Final = 16
OTHER_SHARE: Final = 4
"""One connection in so many is at another port than HTTP's: one of gRPC carries many calls."""
log = logging.getLogger(__name__)


def raise_file_limit(settings: CoreSettings) -> None:
    """Let this process open as many files as the system allows it to, and log a warning if they are
    too few for the connections of the settings."""
    try:
        import resource  # not on Windows
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    most = most_connections(settings)
    if most < settings.max_connections:
        log.warning(
            "the process may open %d files, so it takes %d connections and not the %d of "
            "GRADCAM_MAX_CONNECTIONS; raise the limit of open files (ulimit -n)",
            hard,
            most,
            settings.max_connections,
        )


def most_connections(settings: CoreSettings) -> int:
    """Return the maximum number of connections of all ports together.

    It is that of the settings, or a smaller one if the process may open fewer files: a process
    without a free file could not answer a probe.
    """
    files = _most_files()
    if files is None:
        return settings.max_connections
    return min(settings.max_connections, max(files - RESERVED_FILES, LEAST))


def other_connections(settings: CoreSettings) -> int:
    """Return how many of the connections are at the ports that features open, which the processes
    share equally."""
    return most_connections(settings) // OTHER_SHARE if settings.other_ports() else 0


def _most_files() -> int | None:
    """Return how many files this process may open; None if that is not limited."""
    try:
        import resource
    except ImportError:
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft
