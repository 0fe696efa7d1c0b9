"""Jobs, as `service.features.adapters` adds them to the app."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import APIRouter

from service.features.jobs.executor import EXPLAIN, KindOfJob
from service.features.jobs.host import Jobs
from service.features.jobs.routes import make_jobs_router
from service.http.adapter import Adapter, Added, AppParts

MakeRoutes = Callable[[Jobs], APIRouter]


def jobs(*kinds: Callable[[], tuple[KindOfJob, MakeRoutes]]) -> Adapter:
    """Return what adds jobs of these kinds and of `explain` to the app. The components that process
    them are open while the app runs; the first process of a service processes their images.

    Args:
        kinds: each makes a kind for one app, and what returns routes of the kind alone.
    """

    def added(parts: AppParts) -> Added:
        made = [make() for make in kinds]
        own = [kind for kind, _ in made]
        host = Jobs(parts, own)
        return Added(
            [make_jobs_router(host), *(routes(host) for _, routes in made)],
            running=lambda guard: host,
            failure=lambda: host.failure,
            state={"jobs": host},
            max_streamed_bytes=host.settings.max_job_bytes,
            tags={kind.folder: kind.about for kind in (EXPLAIN, *own)},
        )

    return added
