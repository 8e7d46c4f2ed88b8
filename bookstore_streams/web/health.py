"""Health: whether the process answers, and whether it does its work."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from .answer import answer
from .worker import Worker


async def live(worker: Worker, request: web.Request) -> web.Response:
    """`GET /health/live`: 200 as long as the loop runs."""
    return answer({"status": "live"})


async def ready(worker: Worker, request: web.Request) -> web.Response:
    """`GET /health/ready`: 200 when every partition given to this worker is open, else 503."""
    reason = _reason_not_ready(worker)
    document: dict[str, Any] = {
        "status": "ready" if reason is None else "not ready",
        "reason": reason,
        "partitions": partitions(worker),
    }
    return answer(document, 200 if reason is None else 503)


def partitions(worker: Worker) -> list[dict[str, Any]]:
    """Every partition of this worker as health checks and the start page show it."""
    return [
        {
            "partition": status.number,
            "is_ready": status.is_ready,
            "restored": status.restored,
            "to_restore": status.to_restore,
            "cause": status.cause or None,
        }
        for status in worker.engine.status()
    ]


def _reason_not_ready(worker: Worker) -> str | None:
    group = worker.group
    own = group.members().get(group.own_url)
    if own is None:
        return "The group has not given out its partitions yet."
    if group.is_rebalancing():
        return "The group is giving out its partitions anew."
    if not group.has_lease():
        return "The group has not heard of this worker for a whole session timeout."
    is_open = {status.number: status.is_ready for status in worker.engine.status()}
    waiting = sorted(own.difference(number for number, is_ready in is_open.items() if is_ready))
    if waiting:
        return f"Partitions are not open yet: {', '.join(map(str, waiting))}."
    return None
