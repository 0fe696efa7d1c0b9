"""`gradcam batch --ray`: the batch command on the machines of a Ray cluster.

    rows of (id, target) → Decoders, on CPUs → Explainers, on GPUs → parts in the output folder

All machines need access to the input and the output folder. Finished images are in the same parts
as without Ray, so each way continues where the other stopped. A part is named after its contents,
so images that are explained twice, because a worker died after it had written them, are stored
once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import replace
from types import FrameType
from typing import Any, Final

import pyarrow as pa
import ray
from ray.data import ActorPoolStrategy, DataContext, from_arrow

from service.core.allocator import keep_memory
from service.core.concurrency import explain_many
from service.core.errors import ConfigError, Problem, one_line
from service.core.settings import CoreSettings
from service.features.batch.configuration import RunConfiguration
from service.features.batch.decoder import Decoder
from service.features.batch.parts import Parts
from service.features.batch.progress import Tally, begun, say, shown
from service.features.batch.run import Run
from service.features.batch.work import UnreadImage, check, explain_item, made_with, raise_last
from service.features.tables.rows import Row, failed_row
from service.loading.devices import use_all
from service.local.session import LocalSession, local_session

BLOCK: Final = 64
"""Number of images of a part. The part in progress is lost when a worker dies."""
TOLD: Final = pa.schema([pa.field("images", pa.int64()), pa.field("failed", pa.int64())])


def explain_on_ray(run: Run, *, address: str) -> Tally:
    """Explain, on a Ray cluster, the images that are not done yet.

    Args:
        address: address of the cluster; "local" starts a cluster of this machine.

    Raises:
        ConfigError, Problem: if nothing can be explained at all, or no more results can be written.
    """
    models = run.settings.models
    settings = run.settings.model_copy(update={"models": models and models.resolve()})
    configuration = replace(run.configuration, output=run.configuration.output.resolve())
    source = run.source and os.path.abspath(run.source)  # noqa: PTH100 - a pattern is not a path
    parts = Parts(configuration.output)
    with (
        replace(run, source=source, configuration=configuration).inputs() as inputs,
        _connected(address),
        _terminated_as_interrupted(),
    ):
        gpus = int(ray.cluster_resources().get("GPU", 0))
        placed: dict[str, float] = {"num_gpus": 1} if gpus else {"num_cpus": 1}
        workers = gpus or len([node for node in ray.nodes() if node["Alive"]])
        begin = ray.remote(**placed)(_begin)
        with _as_here():
            ray.get(begin.remote(source, settings, configuration, run.model, inputs.wanted))
        if inputs.warning:
            say(inputs.warning, run.console)
        left, tally = begun(inputs, parts, retry_failed=run.retry_failed)
        if left:
            targets = [inputs.targets.get(name) for name in left]
            table = pa.table({"id": left, "target": pa.array(targets, pa.string())})
            blocks = [table.slice(start, BLOCK) for start in range(0, len(left), BLOCK)]
            told = (
                from_arrow(blocks)
                .map_batches(
                    Decoder,
                    fn_constructor_args=(source, configuration.output, settings.max_pixels),
                    batch_size=None,
                    batch_format="pyarrow",
                    compute=ActorPoolStrategy(min_size=1, max_size=max(workers, 1) * 4),
                    num_cpus=0.5,
                )
                .map_batches(
                    Explainers,
                    fn_constructor_args=(settings, configuration, run.model),
                    batch_size=None,
                    batch_format="pyarrow",
                    compute=ActorPoolStrategy(min_size=1, max_size=max(workers, 1)),
                    **placed,
                )
            )
            with shown(tally, run.console) as show, _as_here():
                for row in told.iter_rows():
                    tally.done += row["images"]
                    tally.failed += row["failed"]
                    show()
        parts.merge(configuration.record())
        return tally


class Explainers:
    """An actor that turns pixels into maps: one for each GPU or, without GPUs, for each machine."""

    def __init__(
        self, settings: CoreSettings, configuration: RunConfiguration, model: str | None
    ) -> None:
        keep_memory()
        use_all()  # Ray sets as many threads as the actor has CPUs: one
        self._configuration = configuration
        self._parts = Parts(configuration.output)
        self._loop = asyncio.Runner()  # the loop and the model live as long as the actor
        self._scope = AsyncExitStack()
        self._session = self._loop.run(self._opened(settings, model))

    def __call__(self, block: pa.Table) -> pa.Table:
        rows = self._loop.run(self._explained(block.to_pylist()))
        self._parts.add(rows)
        failed = sum(row.error is not None for row in rows)
        return pa.Table.from_pylist([{"images": block.num_rows, "failed": failed}], TOLD)

    async def _opened(self, settings: CoreSettings, model: str | None) -> LocalSession:
        opened = local_session(settings, model, spread=True)
        session = await self._scope.enter_async_context(opened)
        default = session.replicas.model.preprocessing.default_fit
        self._configuration = self._configuration.fitted(default)
        return session

    async def _explained(self, block: list[dict[str, Any]]) -> list[Row]:
        session, configuration = self._session, self._configuration
        images = {row["id"]: row["image"] for row in block}
        items = [
            UnreadImage(row["id"], images.__getitem__, row["target"])
            for row in block
            if row["error"] is None
        ]
        rows = [
            Row(**{name: row[name] for name in ("id", "error", "problem")}, asked=row["target"])
            for row in block
            if row["error"] is not None
        ]
        async with explain_many(
            items, lambda item: explain_item(session, configuration, item), at_once=session.at_once
        ) as results:
            async for item, result in results:
                raise_last(session, result)
                if isinstance(result, Problem):
                    result = [failed_row(item.id, result, item.target)]
                rows += result
        return rows


def _begin(
    source: str,
    settings: CoreSettings,
    configuration: RunConfiguration,
    model: str | None,
    targets: list[str | None],
) -> None:
    """Load the model on the cluster, and check that it can do what is asked and that the output
    folder belongs to this batch."""

    async def begin() -> None:
        async with local_session(settings, model) as session:
            check(session, configuration, targets)
            served = session.replicas.model
            fitted = configuration.fitted(served.preprocessing.default_fit)
            fitted.open(source, served.name, served.fingerprint, made_with(served))

    asyncio.run(begin())


@contextmanager
def _as_here() -> Iterator[None]:
    """Raise a worker's problem or configuration error itself, instead of Ray's error around it."""
    try:
        yield
    except ray.exceptions.RayError as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, ConfigError | Problem):
            cause = getattr(cause, "cause", None) or cause.__cause__
        raise cause or error from None


@contextmanager
def _connected(address: str) -> Iterator[None]:
    """Connect to Ray while the block is open, by default with token authentication and without
    usage statistics, and locally without the dashboard."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    local = {"include_dashboard": False} if address == "local" else {}
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING, **local)
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise ConfigError(
            f"there is no Ray cluster at {address} that lets this machine in: {one_line(error)}; "
            "where the cluster has a token, set RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH to it"
        ) from None
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.execution_options.verbose_progress = False
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """Make SIGTERM end the block as Control-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        with suppress(TypeError):
            signal.signal(signal.SIGTERM, before)
