"""Jobs, as `service.features.adapters` adds them to the app."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import APIRouter

from service.features.jobs.executor import EXPLAIN, KindOfJob
from service.features.jobs.host import Jobs
from service.features.jobs.routes import make_jobs_router
from service.features.jobs.settings import JobSettings
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
        settings = parts.settings
        assert isinstance(settings, JobSettings)
        host = Jobs(
            manager=parts.manager,
            pipeline=parts.pipeline,
            reception=parts.reception,
            admission=parts.admission,
            body_budget=parts.body_budget,
            settings=settings,
            metrics=parts.metrics,
            kinds=[kind for kind, _ in made],
            works=parts.is_first,
        )
        routers = [make_jobs_router(jobs=host, manager=parts.manager)]
        return Added(
            [*routers, *(routes(host) for _, routes in made)],
            running=lambda guard: host,
            failure=lambda: host.failure,
            state={"jobs": host},
            max_streamed_bytes=settings.max_job_bytes,
            tags={kind.folder: kind.about for kind in (EXPLAIN, *(kind for kind, _ in made))},
        )

    return added
