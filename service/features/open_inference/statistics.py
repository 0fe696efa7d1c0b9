"""The statistics of models, as Triton's extension `statistics` has them, from the metrics."""

from __future__ import annotations

from collections import Counter
from typing import Any

from anyio import to_thread

from service.backend.interface import Backend, unknown_model
from service.core.metrics import Metrics
from service.features.open_inference.inference import VERSION, require_version


class AnswerCounts:
    """Counts of answers for images and of passes since the service started.

    An image counts once for each group of methods that are answered together, see
    `Replicas.ask`, and not at all in a job or with a question. Passes are those of all work.

    The service counts neither times nor failures by model, but the extension requires their fields:
    these are 0.
    """

    def __init__(self, manager: Backend, metrics: Metrics) -> None:
        self._manager = manager
        self._metrics = metrics

    async def of(self, model: str = "", version: str = "") -> dict[str, Any]:
        """Return the statistics of a model, or of all models, as the extension's JSON has them.

        Raises:
            UnknownModel: if there is no such model, or no such version of it.
        """
        names = self._manager.names
        require_version(model, version)
        if model and model not in names:
            raise unknown_model(model, names)
        answers, passes = await to_thread.run_sync(self._counts, names)
        return {
            "model_stats": [
                _statistics(name, answers, passes[name]) for name in ([model] if model else names)
            ]
        }

    def _counts(self, names: list[str]) -> tuple[Counter[tuple[str, str]], Counter[str]]:
        """Return the number of answers by model and origin, and that of passes by model."""
        answers, passes = Counter[tuple[str, str]](), Counter[str]()
        for sample in self._metrics.samples(names):
            if sample.name == "gradcam_answers_total":
                answers[sample.labels["model"], sample.labels["how"]] += int(sample.value)
            elif sample.name == "gradcam_batch_size_count":
                passes[sample.labels["model"]] += int(sample.value)
        return answers, passes


def _statistics(name: str, answers: Counter[tuple[str, str]], passes: int) -> dict[str, Any]:
    made, remembered = answers[name, "made"], answers[name, "remembered"]
    counted = {"success": made + answers[name, "joined"] + remembered, "cache_hit": remembered}
    durations = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")
    return {
        "name": name,
        "version": VERSION,
        "last_inference": 0,
        "inference_count": made,
        "execution_count": passes,
        "inference_stats": {
            which: {"count": counted.get(which, 0), "ns": 0} for which in (*durations, "cache_hit")
        },
        "batch_stats": [],
    }
