"""The start page: what runs, how much waits, and where to look."""

from __future__ import annotations

from typing import Any

import orjson
from aiohttp import web

from bookstore_streams.engine.tables import PARKED_KEYS

from .answer import answer
from .cluster import LOCAL, ask_others, missed
from .health import partitions
from .rows import steps
from .worker import Worker

LINKS = {
    "parked keys": "/parking/",
    "tables": "/tables/",
    "live": "/health/live",
    "ready": "/health/ready",
}


async def start(worker: Worker, request: web.Request) -> web.Response:
    """`GET /`: this worker, and what is parked on all of them."""
    parked = await _parked(worker)
    if LOCAL in request.query:
        return answer(parked)
    members = worker.group.members()
    answers = {worker.group.own_url: parked, **await ask_others(worker, request, members)}
    covered = {url: frozenset(each.get("partitions", ())) for url, each in answers.items()}
    oldest_ms = min(
        (ms for each in answers.values() if (ms := each.get("oldest_ms")) is not None),
        default=None,
    )
    now_ms = worker.clock.now_ms()
    return answer(
        {
            "app": worker.app_id,
            "version": worker.version,
            "url": worker.group.own_url,
            "partitions": partitions(worker),
            "counters": dict(sorted(worker.engine.counters.items())),
            "parked": {
                "keys": sum(each.get("keys", 0) for each in answers.values()),
                "messages": sum(each.get("messages", 0) for each in answers.values()),
                "oldest_ms": oldest_ms,
                "oldest_age_ms": None if oldest_ms is None else max(0, now_ms - oldest_ms),
            },
            "workers": [
                {"url": url, "partitions": sorted(numbers)}
                for url, numbers in sorted(members.items())
            ],
            "incomplete": missed(members, covered, worker.group.partition_count),
            "links": LINKS,
        }
    )


async def _parked(worker: Worker) -> dict[str, Any]:
    """How much is parked on this worker, and since when."""
    keys = messages = 0
    oldest_ms: int | None = None
    covered = []
    for status in worker.engine.status():
        async for rows in steps(worker.engine, status.number, PARKED_KEYS):
            if not rows:
                covered.append(status.number)
                break
            for _, raw in rows:
                row = orjson.loads(raw)
                keys += 1
                messages += row["count"]
                if oldest_ms is None or row["oldest_ms"] < oldest_ms:
                    oldest_ms = row["oldest_ms"]
    return {"keys": keys, "messages": messages, "oldest_ms": oldest_ms, "partitions": covered}
