"""Whatever can be said in JSON, as parameters and instances."""

from __future__ import annotations

import asyncio
import base64
from collections import Counter
from typing import Any

import httpx2
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as some

from cam import METHODS
from service.pipeline.parameters import Parameters
from tests.chaos.finding import Finding
from tests.chaos.stage import photo, plain, staged

GOOD = [base64.b64encode(each).decode() for each in (photo(0), photo(1, 8, 40), plain(0))]
ANYTHING = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats() | some.text(max_size=20),
    lambda inner: (
        some.lists(inner, max_size=4) | some.dictionaries(some.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=8,
)
IMAGES = some.fixed_dictionaries({"b64": some.sampled_from(GOOD)})
TARGETS = some.one_of(
    some.integers(-2, 5),
    some.sampled_from(["0", "1", "cat", "", "{}"]),
    some.fixed_dictionaries(
        {},
        optional={
            "class": some.integers(-1, 4),
            "minus": some.integers(-1, 4),
            "against": some.booleans(),
            "of": some.sampled_from(["logit", "probability", "loss"]),
            "box": some.lists(some.floats(-5, 50), min_size=3, max_size=5),
            "layer": some.sampled_from(["conv1", "conv2", "head", "nowhere"]),
            "channel": some.integers(-1, 6),
            "like": IMAGES,
            "mask": IMAGES,
        },
    ),
)
LAYERS = some.sampled_from(["auto", "conv1", "relu2", "conv2", "head", "dropout", "nowhere", ""])
SCHEMA = Parameters.model_json_schema()


def plausible(schema: dict[str, Any]) -> some.SearchStrategy[Any]:
    """Values that a schema allows, and some just beside them."""
    if "$ref" in schema:
        return plausible(SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]])
    if "anyOf" in schema:
        kinds = (each for each in schema["anyOf"] if each.get("type") != "null")
        return some.one_of(*map(plausible, kinds))
    if values := schema.get("enum", [schema["const"]] if "const" in schema else []):
        return some.sampled_from([*values, "x"])
    least, most = schema.get("minimum", 0), schema.get("maximum", 1000)
    return {
        "boolean": some.booleans(),
        "integer": some.integers(least - 2, most + 1),
        "number": some.floats(least - 0.1, most + 0.1),
    }[schema["type"]]


OWN: dict[str, some.SearchStrategy[Any]] = {
    "method": some.sampled_from([*METHODS, "sorcery", ""]),
    "layer": LAYERS | some.lists(LAYERS, max_size=4),
    "target": TARGETS | some.lists(TARGETS, max_size=4),
    "prompts": some.lists(some.sampled_from(["a cat", "a dog", ""]), max_size=3),
    "budget": some.integers(0, 40),
    "evaluate": some.lists(
        some.sampled_from(["deletion", "stability", "adcc", "energy", "beauty", ""]), max_size=2
    ),
}
PLAUSIBLE = {
    name: OWN[name] if name in OWN else plausible(schema)
    for name, schema in SCHEMA["properties"].items()
}
SAID = some.fixed_dictionaries({}, optional=PLAUSIBLE)
ODD = some.dictionaries(some.sampled_from([*PLAUSIBLE, "colour"]), ANYTHING, max_size=3)
INSTANCES = some.fixed_dictionaries(
    {"image": IMAGES | ANYTHING},
    optional={"id": some.text(max_size=10), "target": TARGETS, "method": PLAUSIBLE["method"]},
)
BODIES = some.one_of(
    some.fixed_dictionaries(
        {"instances": some.lists(INSTANCES, min_size=1, max_size=3)}, optional={"parameters": SAID}
    ),
    some.fixed_dictionaries(
        {"instances": some.just([{"image": {"b64": GOOD[0]}}])}, optional={"parameters": SAID}
    ),
    some.fixed_dictionaries({"instances": ANYTHING, "parameters": ODD}),
    ANYTHING,
)
ACCEPTED = ["application/json", "application/x-ndjson", "image/png", "application/x-npy", "x/y"]


async def asking(scale: float) -> list[Finding]:
    """Half of it plausible, half of it not."""
    count = max(int(4000 * scale), 100)
    return await asyncio.to_thread(_ask, count)


def _ask(count: int) -> list[Finding]:
    statuses: Counter[int] = Counter()
    worst: list[str] = []
    with (
        staged("calm") as stage,
        httpx2.Client(base_url=f"http://127.0.0.1:{stage.port}", timeout=60) as http,
    ):

        @settings(
            max_examples=count,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(body=BODIES, accept=some.sampled_from(ACCEPTED))
        def run(body: Any, accept: str) -> None:
            try:
                reply = http.post("/v1/models/calm:explain", json=body, headers={"Accept": accept})
            except ValueError:  # what JSON has no words for, like infinity
                return
            statuses[reply.status_code] += 1
            if reply.status_code >= 500 or '"status":500' in reply.text:
                worst.append(reply.text[:300])

        run()
    shown = ", ".join(f"{status}: {n:,}" for status, n in sorted(statuses.items()))
    return [
        Finding(
            f"{statuses.total():,} generated requests, parameters and instances of every kind",
            "0 5xx",
            f"{len(worst)} 5xx; {shown}{'; ' + worst[0] if worst else ''}",
            not worst,
        )
    ]
