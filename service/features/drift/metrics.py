"""The metrics of the maps that a model serves, and of their drift."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from functools import partial

from prometheus_client import CollectorRegistry, Gauge, Histogram

from service.core.metrics import CLEARED

TENTHS = tuple(number / 10 for number in range(1, 11))


class DriftMetrics:
    """The histogram of the maps' statistics, and the gauges of their drift, of all models."""

    def __init__(self, registry: CollectorRegistry) -> None:
        gauge = partial(Gauge, registry=registry, multiprocess_mode="livemostrecent")
        self.statistics = Histogram(
            "gradcam_map",
            "Statistics of the served maps, each 0 to 1, for the classes that became frequent "
            "first; flat is 1 if the map is the same everywhere, else 0",
            ["model", "label", "statistic"],
            registry=registry,
            buckets=TENTHS,
        )
        self._psi = gauge(
            "gradcam_drift_psi",
            "Population stability index of the maps' statistics against the model's reference",
            ["model", "label", "statistic"],
        )
        self._moved = gauge(
            "gradcam_drift_moved",
            "Statistics of maps that have moved since the model's reference was made",
            ["model"],
        )
        self._unknown = gauge(
            "gradcam_drift_unknown_ratio",
            "Share of the latest maps whose classes the model's reference lacks",
            ["model"],
        )
        self.labels: defaultdict[str, set[str]] = defaultdict(set)
        """Model → labels of classes that its maps have been counted with. A series of a histogram
        stays, also when the model is unloaded and another one takes its name."""
        self._told: defaultdict[str, set[tuple[str, str]]] = defaultdict(set)
        """Model → labels and statistics of the index that have a value."""

    def tell(
        self,
        model: str,
        psi: Mapping[tuple[str, str], float],
        *,
        moved: int | None,
        unknown: float | None,
    ) -> None:
        """Show a comparison of a model's maps with its reference, in place of the former one.

        Args:
            psi: label and statistic → population stability index.
            moved: number of statistics that have moved; None if that is not known, so that no
                value is shown.
            unknown: share of the maps whose classes the reference lacks; None without maps.
        """
        for label, statistic in self._told[model] - psi.keys():
            self._psi.labels(model=model, label=label, statistic=statistic).set(CLEARED)
        for (label, statistic), value in psi.items():
            self._psi.labels(model=model, label=label, statistic=statistic).set(value)
        self._told[model] = set(psi)
        self._moved.labels(model=model).set(CLEARED if moved is None else moved)
        self._unknown.labels(model=model).set(CLEARED if unknown is None else unknown)

    def clear(self, model: str) -> None:
        """Show no comparison of a model's maps any more."""
        if model in self._told:
            self.tell(model, {}, moved=None, unknown=None)
            del self._told[model]
