"""Callers without a key, callers who make up addresses, and everything the contract allows."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import string
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from service.limits.keys import new_key
from tests.chaos.finding import Finding
from tests.chaos.sockets import metric
from tests.chaos.stage import ROOT, Client, photo, staged

HEALTH = {"/healthz", "/readyz"}
ACCEPTED = ["2xx", "304", "400", "403", "404", "406", "409", "413", "415", "422", "429"]
REFUSED = ["400", "401", "403", "404", "405", "406", "409", "413", "415", "422", "429", "431"]


async def keyless(scale: float) -> list[Finding]:
    """Every route of the contract, and those beside it, without a key and with a wrong one."""
    document = json.loads((ROOT / "openapi" / "openapi.json").read_text())
    routes = [
        (method.upper(), path.replace("{model}", "calm"))
        for path, item in document["paths"].items()
        for method in item
    ]
    routes += [("GET", path) for path in ("/docs", "/openapi.json", "/nowhere", "/v1/models/no")]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "keys.toml")
        file.write_text(new_key("app", ["explain"], None)[1])
        with staged("calm", keys=str(file)) as stage:
            found: Counter[str] = Counter()
            for headers in ("", "Authorization: Bearer gradcam_wrong\r\n", "X-API-Key: wrong\r\n"):
                async with Client(stage.port, headers) as client:
                    for method, path in routes:
                        status = (await client.ask(method, path, photo(0))).status
                        right = status == (200 if path in (*HEALTH, "/") else 401)
                        found["right" if right else f"{method} {path}: {status}"] += 1
    wrong = ", ".join(each for each in found if each != "right")
    return [
        Finding(
            f"{len(routes)} routes without a key, and with two wrong ones",
            "401, except health and the page",
            f"{found['right']} of {found.total()} so{'; ' + wrong if wrong else ''}",
            not wrong,
        )
    ]


async def invented(scale: float) -> list[Finding]:
    """Addresses and names of models that nobody has thought of leave no trace in the metrics."""
    count = int(10_000 * scale)
    rng = random.Random(0)

    def word() -> str:
        return "".join(rng.choices(string.ascii_letters + string.digits + "%._-~", k=12))

    with staged("calm") as stage:
        async with Client(stage.port) as client:
            for path in ("/x", "/v1/models/x", "/v1/models/x/layers", "/v1/models/x:explain"):
                await client.ask("GET", path)
                await client.ask("POST", path)
            await _series(client)
            before = await _series(client)
            for turn in range(count):
                paths = (f"/{word()}", f"/v1/models/{word()}", f"/v1/models/{word()}:explain")
                await client.ask(("GET", "POST", "PUT")[turn % 3], paths[turn % 3])
            new = await _series(client) - before
    return [
        Finding(
            f"{count:,} random paths and names of models",
            "0 new series of metrics",
            f"{len(new)} new{': ' + ', '.join(sorted(new)[:3]) if new else ''}",
            not new,
        )
    ]


async def contract(scale: float) -> list[Finding]:
    """schemathesis, all its checks, on every route, with keys."""
    examples = max(int(200 * scale), 20)
    with tempfile.TemporaryDirectory() as folder:
        file, settings = Path(folder, "keys.toml"), Path(folder, "schemathesis.toml")
        key, entry = new_key("app", ["explain", "admin"], None)
        file.write_text(entry)
        settings.write_text(
            'hooks = "tests.serializers"\n'
            f"[checks]\npositive_data_acceptance.expected-statuses = {json.dumps(ACCEPTED)}\n"
            f"negative_data_rejection.expected-statuses = {json.dumps(REFUSED)}\n"
        )
        with staged("calm", keys=str(file)) as stage:
            command = [
                *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(settings), "run"),
                f"http://127.0.0.1:{stage.port}/openapi.json",
                *("--checks", "all", "--max-examples", str(examples), "--workers", "1"),
                # DELETE cancels a job; what is finished of it stays.
                *("--exclude-checks", "use_after_free"),
                *("--header", f"Authorization: Bearer {key}", "--seed", "1", "--no-color"),
            ]
            done = await asyncio.to_thread(
                subprocess.run,
                command,
                capture_output=True,
                text=True,
                cwd=folder,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
            async with Client(stage.port, f"X-API-Key: {key}\r\n") as client:
                failed = await metric(client, 'gradcam_requests_total{route="unmatched",status="5')
    last = [line for line in done.stdout.splitlines() if line.strip()][-40:]
    said = next((line.strip() for line in last if re.search(r"\d generated", line)), "")
    found = said if done.returncode == 0 else "\n".join(last)
    return [
        Finding(
            "schemathesis, all checks, all routes, with a key",
            "0 failures",
            f"{'0 failures' if done.returncode == 0 else 'failures'}; {found}",
            done.returncode == 0 and not failed,
        )
    ]


async def _series(client: Client) -> set[str]:
    text = (await client.ask("GET", "/metrics")).body.decode()
    return {line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")}
