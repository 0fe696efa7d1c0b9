"""The Grafana dashboard shows what the service counts, all of it, and nothing that is not there."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.core.metrics import SECONDS, Metrics
from service.features.drift.metrics import DriftMetrics
from service.features.jobs.metrics import JobMetrics
from service.features.open_inference import adapter as open_inference
from service.http.about import PROBES

ROOT = Path(__file__).parent.parent
DASHBOARD = ROOT / "deploy" / "grafana.json"
SELECTOR = re.compile(r"([A-Za-z_:][A-Za-z0-9_:]*)\{([^}]*)\}")
PARTS = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("",), "gauge": ("",)}
OF_ALL_TARGETS = {"job", "instance"}
"""Labels that Prometheus adds."""


@pytest.fixture(scope="module")
def board() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return document


def exposed() -> dict[str, set[str]]:
    """Metric → its series' names, as /metrics has them; when each was made is not told apart."""
    metrics = Metrics()
    metrics.own(DriftMetrics)
    metrics.own(JobMetrics)
    text = metrics.render([]).decode()
    families = re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE)
    return {
        name: {name + part for part in PARTS[kind]}
        for name, kind in families
        if not name.endswith("_created")
    }


def labels() -> dict[str, set[str]]:
    """Metric → the labels that the service gives it."""
    own = {name: set[str]() for name in exposed()}
    metrics = Metrics()
    of_features = [metrics.own(DriftMetrics), metrics.own(JobMetrics)]
    for metric in [each for one in (metrics, *of_features) for each in vars(one).values()]:
        for family in metric.describe() if hasattr(metric, "_labelnames") else ():
            for name in own.keys() & {family.name, f"{family.name}_total"}:
                own[name] = set(metric._labelnames)
    return own


def panels(board: dict[str, Any]) -> list[dict[str, Any]]:
    """Those that show something."""
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def expressions(node: Any) -> Iterator[str]:
    """All that is asked of Prometheus, in panels and variables."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key in ("expr", "definition", "query") and isinstance(value, str):
                yield value
            else:
                yield from expressions(value)
    elif isinstance(node, list):
        for each in node:
            yield from expressions(each)


def test_every_metric_that_is_shown_is_there(board: dict[str, Any]) -> None:
    known = set().union(*exposed().values())
    asked = {name for text in expressions(board) for name, _ in SELECTOR.findall(text)}
    assert len(asked) > 10
    assert asked <= known
    mentioned = {
        name
        for text in expressions(board)
        for name in re.findall(r"\b(?:gradcam|process)_\w+", text)
    }
    assert mentioned <= known


@pytest.mark.parametrize(
    "file",
    [*sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("deploy/*.*"))],
    ids=lambda p: p.name,
)
def test_every_metric_that_is_named_is_there(file: Path) -> None:
    known = set().union(*exposed().values(), exposed())
    named = set(re.findall(r"\bgradcam_[a-z_]+\b(?!\.)", file.read_text(encoding="utf-8")))
    assert named <= known


def test_every_metric_of_the_service_is_shown(board: dict[str, Any]) -> None:
    shown = {
        name
        for panel in panels(board)
        for text in expressions(panel)
        for name, _ in SELECTOR.findall(text)
    }
    assert [name for name, series in exposed().items() if not series & shown] == []


def test_every_label_that_is_asked_for_is_there(board: dict[str, Any]) -> None:
    families = {one: name for name, series in exposed().items() for one in series}
    own = labels()
    assert own["gradcam_requests_total"] == {"route", "method", "status"}
    for panel in panels(board):
        for text in expressions(panel):
            there = set(OF_ALL_TARGETS)
            for name, selector in SELECTOR.findall(text):
                matched = set(re.findall(r"(\w+)\s*[=!]~?", selector))
                assert matched <= own[families[name]] | OF_ALL_TARGETS, text
                there |= own[families[name]] | ({"le"} if name.endswith("_bucket") else set())
            for grouped in re.findall(r"\bby \(([^)]*)\)", text):
                assert {each.strip() for each in grouped.split(",")} <= there, text
            for legend in [
                each["legendFormat"] for each in panel["targets"] if each["expr"] == text
            ]:
                assert set(re.findall(r"\{\{(\w+)\}\}", legend)) <= there, text


def test_every_question_is_about_the_service_and_the_models_chosen(board: dict[str, Any]) -> None:
    """The process_ metrics are those of everything that Prometheus watches."""
    families = {one: name for name, series in exposed().items() for one in series}
    own = labels()
    for panel in panels(board):
        for text in expressions(panel):
            for name, selector in SELECTOR.findall(text):
                assert 'job=~"$job"' in selector, text
                assert 'instance=~"$instance"' in selector, text
                if "model" in own[families[name]]:
                    assert 'model=~"$model"' in selector, text


def test_counters_are_shown_as_rates(board: dict[str, Any]) -> None:
    for panel in panels(board):
        for text in expressions(panel):
            for found in SELECTOR.finditer(text):
                if re.search(r"_(total|bucket|sum|count)$", found[1]):
                    assert re.search(r"\b(rate|increase)\($", text[: found.start()]), text
                    assert text[found.end() :].startswith("[$__rate_interval])"), text


def test_a_panel_says_what_it_shows_and_in_what_unit(board: dict[str, Any]) -> None:
    for panel in panels(board):
        assert panel["title"]
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["targets"], panel["title"]
        names = [target["refId"] for target in panel["targets"]]
        assert len(set(names)) == len(names)
        for source in (panel, *panel["targets"]):
            assert source["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def test_no_panel_lies_on_another(board: dict[str, Any]) -> None:
    places = [panel["gridPos"] for panel in board["panels"]]
    assert len({panel["id"] for panel in board["panels"]}) == len(places)
    for place in places:
        assert place["w"] > 0
        assert place["h"] > 0
        assert place["y"] >= 0
        assert 0 <= place["x"] <= place["x"] + place["w"] <= 24
    for one, two in itertools.combinations(places, 2):
        beside = one["x"] + one["w"] <= two["x"] or two["x"] + two["w"] <= one["x"]
        above = one["y"] + one["h"] <= two["y"] or two["y"] + two["h"] <= one["y"]
        assert beside or above, (one, two)


def test_it_can_be_imported_as_it_is(board: dict[str, Any]) -> None:
    assert board["schemaVersion"] >= 39
    assert board["id"] is None
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,40}", board["uid"])
    assert "__inputs" not in board
    variables = {each["name"]: each for each in board["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert variables["datasource"]["query"] == "prometheus"
    assert "gradcam_model_ready" in variables["model"]["definition"]
    used = set(re.findall(r"\$\{?(\w+)\}?", DASHBOARD.read_text(encoding="utf-8")))
    assert used - {"__rate_interval", "__all"} == set(variables)


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load((DASHBOARD.parent / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def test_probes_and_scrapes_are_no_requests(board: dict[str, Any]) -> None:
    """Neither of the dashboard nor of an alert; what callers ask for is counted."""
    of_v2 = ("/v2/models/{model}/ready", "/v2/models/{model}/versions/{version}/ready")
    probes = {*PROBES, *open_inference.PROBES, *of_v2}
    asked = [*expressions(panels(board)), *(rule["expr"] for rule in alerts())]
    found = [
        (name, selector)
        for text in asked
        for name, selector in re.findall(r"\b(gradcam_request(?:s|_seconds)_\w+)(\{[^}]*\})?", text)
    ]
    assert len(found) > 10
    for name, selector in found:
        (sign, routes) = re.findall(r'route(=~|!~)"([^"]*)"', selector)[0]
        selected = {
            route
            for route in (*probes, "/v1/models/{model}:explain", "/v2/models/{model}/infer")
            if bool(re.fullmatch(routes, route)) == (sign == "=~")
        }
        assert "/v1/models/{model}:explain" in selected, name
        assert selected.isdisjoint(probes), name


def test_alerts_ask_for_what_is_there() -> None:
    """Each rule has an expression of known metrics and labels, and says what has happened."""
    rules = alerts()
    assert len({rule["alert"] for rule in rules}) == len(rules) > 3
    families = {one: name for name, series in exposed().items() for one in series}
    own = labels()
    asked = set()
    code = "".join(file.read_text(encoding="utf-8") for file in ROOT.glob("service/**/*.py"))
    reasons = set(re.findall(r'(?:reason=|Limited: )"([^"]+)"', code))
    for rule in rules:
        names = set(re.findall(r"\bgradcam_\w+", rule["expr"]))
        assert names <= families.keys(), rule["alert"]
        asked |= names
        there = set().union(*(own[families[name]] for name in names)) | OF_ALL_TARGETS
        for name, selector in SELECTOR.findall(rule["expr"]):
            known = own[families[name]] | ({"le"} if name.endswith("_bucket") else set())
            assert set(re.findall(r"(\w+)[=!]~?", selector)) <= known, rule["alert"]
        bounds = {float(each) for each in re.findall(r'le="([^"]*)"', rule["expr"])}
        assert bounds <= set(SECONDS), rule["alert"]
        for reason in re.findall(r'reason=~"([^"]*)"', rule["expr"]):
            assert set(reason.split("|")) <= reasons, rule["alert"]
        # What labels the result has is said by what it is grouped by, if it is grouped.
        kept = [
            {each.strip() for each in found.split(",")}
            for found in re.findall(r"\bby \(([^)]*)\)", rule["expr"])
        ]
        assert all(each <= there for each in kept), rule["alert"]
        matched = re.findall(r"\bon \(([^)]*)\)", rule["expr"])
        for each in matched:
            assert {name.strip() for name in each.split(",")} <= set.intersection(*kept)
        told = " ".join(rule["annotations"].values())
        shown = kept[0] if kept else there
        assert set(re.findall(r"\$labels\.(\w+)", told)) <= shown, rule["alert"]
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"].endswith(".")
    assert {
        "gradcam_drift_moved",
        "gradcam_drift_psi",
        "gradcam_drift_unknown_ratio",
        "gradcam_build_info",
        "gradcam_request_seconds_bucket",
        "gradcam_rejected_total",
        "gradcam_jobs",
    } <= asked
