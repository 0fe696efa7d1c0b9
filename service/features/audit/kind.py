"""Audits as a kind of job: what is done with each photo."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from cachetools import LRUCache

from service.core.schemas import dump
from service.features.audit.grids import Neighbours
from service.features.audit.measurement import AuditMeasurement
from service.features.audit.plan import plan_of
from service.features.audit.routes import AUDIT, make_audits_router
from service.features.jobs.executor import ItemExecutor, KindOfJob
from service.features.jobs.records import Leased
from service.models.preprocessing import ModelInput

if TYPE_CHECKING:
    from service.features.jobs.adapter import MakeRoutes

KEPT: Final = 4
"""Largest number of audits whose photos are kept in memory."""
MEASURED_AT_ONCE: Final = 4
"""Largest number of photos of audits at once, of all models. Each takes thousands of passes, and a
photo that is not finished starts anew after a restart."""
SAME: Final = (
    "an audit compares the same methods at the same layers on all photos, so name them once, for "
    "the whole audit"
)


def audits() -> tuple[KindOfJob, MakeRoutes]:
    """Return the kind of one app, and what returns its routes."""
    neighbours: LRUCache[str, Neighbours] = LRUCache(KEPT)

    async def measure(executor: ItemExecutor, item: Leased) -> bytes:
        """Return the record of one photo."""
        replicas = executor.replicas(item)
        plan = plan_of(replicas.model, item.parameters, item.total)
        if item.job not in neighbours:
            seen_of = partial(_seen, executor, item)
            neighbours[item.job] = Neighbours(item.total, seen_of, plan.seed)
        measurement = AuditMeasurement(replicas, plan, neighbours[item.job])
        seen, warnings = await executor.seen(item)
        sent = item.parameters.target
        record = await measurement.measure(item.number, item.id, seen, sent, warnings)
        return await executor.pool.run(lambda: dump(record))

    kind = KindOfJob(
        name=AUDIT,
        folder="audits",
        about="Which method and layer to trust, measured on photos.",
        answer=measure,
        check=plan_of,
        shared={"method": SAME, "layer": SAME},
        at_once=MEASURED_AT_ONCE,
        instead=lambda job: (
            f"job {job} is an audit, which has no maps; /v1/audits/{job}/report shows it"
        ),
        forget=lambda job: neighbours.pop(job, None),
    )
    return kind, make_audits_router


async def _seen(executor: ItemExecutor, item: Leased, number: int) -> ModelInput:
    """Return what the model sees of another photo of an item's job."""
    seen, _ = await executor.seen(await executor.beside(item, number))
    return seen
