"""A caller who brings a job and stays with it, whatever happens to the service."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from tests.chaos.stage import Client, NoReply, Reply

LOOK_SECONDS = 0.2
DAZED_SECONDS = 0.1
PAGE = 500


async def bring(client: Client, body: bytes, key: str, query: str = "") -> tuple[str, int]:
    """The job's address, and how often it was sent: it is sent again, under the same key, until it
    is accepted."""
    client.headers = f"Idempotency-Key: {key}\r\n"
    tries = 0
    try:
        while True:
            tries += 1
            try:
                reply = await client.ask("POST", f"/v1/jobs{query}", body, kind="application/zip")
            except (NoReply, ConnectionRefusedError):
                await asyncio.sleep(DAZED_SECONDS)
                continue
            if reply.status == 202:
                return reply.headers["location"], tries
            assert reply.status == 503, (reply.status, reply.body[:500])
            await asyncio.sleep(DAZED_SECONDS)
    finally:
        client.headers = ""


async def ask(client: Client, path: str) -> Reply:
    """Again and again, until somebody is there."""
    while True:
        try:
            reply = await client.ask("GET", path)
        except (NoReply, ConnectionRefusedError):
            pass
        else:
            if reply.status != 503:
                assert reply.status == 200, (path, reply.status, reply.body[:500])
                return reply
        await asyncio.sleep(DAZED_SECONDS)


async def until_done(client: Client, job: str) -> dict[str, Any]:
    """The job's last document."""
    while True:
        document: dict[str, Any] = (await ask(client, job)).json()
        if document["state"] == "done":
            return document
        assert document["state"] in ("waiting", "running"), document
        await asyncio.sleep(LOOK_SECONDS)


async def lines_of(client: Client, job: str) -> list[dict[str, Any]]:
    """All results, as they were finished."""
    found: list[dict[str, Any]] = []
    while True:
        reply = await ask(client, f"{job}/results?after={len(found)}&limit={PAGE}")
        page = [json.loads(line) for line in reply.body.splitlines()]
        if not page:
            return found
        found += page


def told(lines: list[dict[str, Any]]) -> dict[str, str]:
    """Item → all that is said of it but when it was finished."""
    return {
        line["item"]: json.dumps({key: line[key] for key in line if key != "cursor"})
        for line in lines
    }
