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

from service.app import create_app
from service.features.keys.keys import new_key
from service.features.studio.routes import PATHS
from service.http.access import flat
from service.settings import Settings
from tests.chaos.finding import Finding
from tests.chaos.sockets import metric
from tests.chaos.stage import ROOT, Client, staged

OPEN = {"/healthz", "/readyz", "/v2/health/live", "/v2/health/ready", *PATHS}
ASKED = ("GET", "POST", "PUT", "DELETE", "OPTIONS")
ACCEPTED = ["2xx", "304", "400", "403", "404", "406", "409", "413", "415", "422", "429"]
REFUSED = ["400", "401", "403", "404", "405", "406", "409", "413", "415", "422", "429", "431"]


async def keyless(scale: float) -> list[Finding]:
    """Every address and method, those that no route answers too, with every kind of credential.

    What must be refused is asked of a running service. Its routes are those of the table by which
    the guard decides, but what they must need is said here again.
    """
    made = {scope: new_key(scope, [scope], None) for scope in ("explain", "admin")}
    secrets = {scope: secret for scope, (secret, _) in made.items()}
    both, entry = new_key("both", ["explain", "admin"], None)
    credentials = {
        "": set[str](),
        "Authorization: Bearer gradcam_wrong\r\n": set[str](),
        "X-API-Key: wrong\r\n": set[str](),
        f"X-API-Key: {secrets['explain']}\r\n": {"read", "explain"},
        f"Authorization: Bearer {secrets['admin']}\r\n": {"read", "admin"},
        f"X-API-Key: {both}\r\n": {"read", "explain", "admin"},
    }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "keys.toml")
        file.write_text("\n".join([entry, *(entry for _, entry in made.values())]))
        app = create_app(
            Settings.read({"GRADCAM_PLATFORM": "sagemaker", "GRADCAM_STARTS_EMPTY": "1"}), []
        )
        answered = {
            (method, path)
            for route in flat(app.routes)
            for method in getattr(route, "methods", None) or {"GET"}
            for path in [re.sub(r"{\w+}", "x", getattr(route, "path_format", ""))]
        }
        paths = {path for _, path in answered} | {"/nowhere", "/v1/models/x/explain", "/studio/x"}
        pairs = [(method, path) for path in sorted(paths) for method in ASKED]
        with staged(
            "calm", platform="sagemaker", starts_empty="1", host="127.0.0.1", keys=str(file)
        ) as stage:
            found: Counter[str] = Counter()
            for headers, scopes in credentials.items():
                async with Client(stage.port, headers) as client:
                    for method, path in pairs:
                        there = (method, path) in answered
                        needed = _needed(method, path) if there else "read"
                        status = (await client.ask(method, path, b"x", "text/plain")).status
                        if needed == "open":
                            right = status == 200
                        elif not scopes:
                            right = status == 401
                        elif needed not in scopes:
                            right = status == 403
                        elif not there:
                            right = status in (307, 404, 405)
                        else:
                            right = status < 500 and status not in (401, 403, 405)
                        found["right" if right else f"{method} {path}: {status}"] += 1
    wrong = ", ".join(each for each in found if each != "right")
    return [
        Finding(
            f"{len(pairs)} addresses and methods × {len(credentials)} credentials",
            "401 without a key, except health and the page; 403 beyond a scope; else 404 and 405",
            f"{found['right']:,} of {found.total():,} so{'; ' + wrong if wrong else ''}",
            not wrong,
        )
    ]


def _needed(method: str, path: str) -> str:
    """Return the scope that an address must need, without a look at what its route declares."""
    if path in OPEN:
        return "open"
    if method == "GET" or path == "/v2/repository/index":
        return "read"
    changes = path in ("/models", "/v1/models") or path.startswith("/v2/repository/models/")
    return "admin" if changes or (method == "DELETE" and "jobs" not in path) else "explain"


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
    examples = max(int(200 * scale), 8)
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
