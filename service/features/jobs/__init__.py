"""Jobs and audits: requests with many images, which are stored, and processed when there is time.

The components that do it are open while the app runs: see `host`.
"""

from __future__ import annotations

from service.features.jobs.audit_routes import make_audits_router
from service.features.jobs.host import Jobs
from service.features.jobs.routes import make_jobs_router
from service.http.adapter import Added, Parts


def jobs_and_audits(parts: Parts) -> Added:
    """Add the routes of jobs and audits. The first process of a service processes them, too."""
    host = Jobs(
        manager=parts.manager,
        pipeline=parts.pipeline,
        fetcher=parts.fetcher,
        admission=parts.admission,
        body_budget=parts.body_budget,
        settings=parts.settings,
        metrics=parts.metrics,
        works=parts.is_first,
    )
    routers = [make_jobs_router(jobs=host, manager=parts.manager), make_audits_router(jobs=host)]
    return Added(
        routers,
        running=lambda guard: host,
        failure=lambda: host.failure,
        state={"jobs": host},
    )
