"""Jobs, as they are added to the app."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fastapi import APIRouter

from service.features import additions
from service.features.jobs.settings import JobSettings
from service.http.adapter import Added, AppParts

if TYPE_CHECKING:
    from service.features.jobs.executor import KindOfJob
    from service.features.jobs.host import Jobs

    MakeRoutes = Callable[[Jobs], APIRouter]


def jobs(parts: AppParts) -> Added | None:
    """Return what adds jobs to the app: those of `explain`, and of the kinds of other features. The
    components that process them are open while the app runs; the first process of a service
    processes their images."""
    if not parts.settings_of(JobSettings).has_jobs():
        return None
    # These import SQLAlchemy, which an app without jobs does not need.
    from service.features.jobs.executor import EXPLAIN
    from service.features.jobs.host import Jobs
    from service.features.jobs.routes import make_jobs_router

    made: list[tuple[KindOfJob, MakeRoutes]] = [make() for make in additions("jobs")]
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
