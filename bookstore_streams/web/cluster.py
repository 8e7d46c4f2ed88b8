"""Views over all workers: each is asked for its part, and who did not answer is named.

A worker asks the others for the same path with `local=1`; such a request is answered from
the worker's own partitions alone, in a form that only workers read, together with the
partitions that it covers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson
from aiohttp import web
from yarl import URL

from .answer import answer, refusal
from .page import Page, Place, Wanted, cursor_after, merged, wanted
from .worker import Worker

# Longest wait for another worker. A paused one accepts the connection and says nothing.
WORKER_S_MAX = 4.0

LOCAL = "local"


@dataclass(frozen=True, slots=True)
class Part:
    """What one worker has of a list, and the partitions in which it looked to the end."""

    page: Page[dict[str, Any]]
    partitions: frozenset[int]


@dataclass(frozen=True, slots=True)
class Found:
    """What one worker has of a single row (None: nothing), and where it looked."""

    document: dict[str, Any] | None
    partitions: frozenset[int]


async def list_everywhere(
    worker: Worker,
    request: web.Request,
    shape: tuple[type, ...],
    local: Callable[[Wanted], Awaitable[Part]],
) -> web.Response:
    """Answer a request for a list: `{"rows", "cursor", "incomplete"}`.

    Args:
        worker: that was asked.
        request: with `limit` and `cursor`.
        shape: types of the parts of a row's place.
        local: reads this worker's part.

    Raises:
        HTTPBadRequest: limit or cursor is wrong.
        HTTPServiceUnavailable: this worker does not know the others yet.
    """
    asked = wanted(request.query, shape)
    if LOCAL in request.query:
        own = _trusted(worker, await local(asked))
        return answer(
            {
                "rows": own.page.rows,
                "is_cut": own.page.is_cut,
                "partitions": sorted(own.partitions),
            }
        )
    members = _members(worker)
    own, answers = await asyncio.gather(local(asked), ask_others(worker, request, members))
    parts = {worker.group.own_url: _trusted(worker, own)}
    parts |= {url: part for url, raw in answers.items() if (part := _part(raw)) is not None}
    page = merged((part.page for part in parts.values()), asked.limit)
    covered = {url: part.partitions for url, part in parts.items()}
    return answer(
        {
            "rows": [row for _, row in page.rows],
            "cursor": cursor_after(page),
            "incomplete": missed(members, covered, worker.group.partition_count),
        }
    )


async def find_everywhere(
    worker: Worker,
    request: web.Request,
    what: str,
    local: Callable[[], Awaitable[Found]],
) -> web.Response:
    """Answer a request for one row, which may be on any worker.

    Args:
        worker: that was asked.
        request: to pass on.
        what: is looked for, to begin a sentence with.
        local: looks here.

    Raises:
        HTTPNotFound: nobody has it.
        HTTPServiceUnavailable: nobody who answered has it, but not everybody did.
    """
    own = await local()
    if not worker.group.has_lease():
        own = Found(None, frozenset())
    if LOCAL in request.query:
        return answer({"document": own.document, "partitions": sorted(own.partitions)})
    if own.document is not None:
        return answer(own.document)
    members = _members(worker)
    covered = {worker.group.own_url: own.partitions}
    asking = [_ask(worker, url, request) for url in members if url != worker.group.own_url]
    tasks = [asyncio.create_task(one) for one in asking]
    try:
        for answered in asyncio.as_completed(tasks):
            url, raw = await answered
            found = None if raw is None else _found(raw)
            if found is None:
                continue
            if found.document is not None:
                return answer(found.document)
            covered[url] = found.partitions
    finally:
        for task in tasks:
            task.cancel()  # nobody waits for a slow worker once the row is found
        await asyncio.gather(*tasks, return_exceptions=True)
    incomplete = missed(members, covered, worker.group.partition_count)
    if incomplete:
        raise refusal(
            web.HTTPServiceUnavailable,
            f"{what} was not found, but not every worker could look.",
            incomplete=incomplete,
        )
    raise refusal(web.HTTPNotFound, f"{what} was not found.")


async def ask_others(
    worker: Worker, request: web.Request, members: Iterable[str]
) -> dict[str, dict[str, Any]]:
    """URL -> what that worker answered to the same request; without those that did not."""
    others = [url for url in members if url != worker.group.own_url]
    answers = await asyncio.gather(*(_ask(worker, url, request) for url in others))
    return {url: raw for url, raw in answers if raw is not None}


def missed(
    members: Mapping[str, frozenset[int]],
    covered: Mapping[str, frozenset[int]],
    partition_count: int,
) -> list[str]:
    """Who is missing from an answer: workers by URL, then partitions that nobody has.

    Args:
        members: URL -> partitions given to that worker.
        covered: URL -> partitions that its answer covers.
        partition_count: how many there are.
    """
    nobody: frozenset[int] = frozenset()
    names = [url for url, numbers in members.items() if not numbers <= covered.get(url, nobody)]
    # A worker without partitions has nothing to miss; one that has them meanwhile covers them.
    free = set(range(partition_count)).difference(*members.values(), *covered.values())
    names += [f"partition {number}: no worker" for number in sorted(free)]
    return names


def _trusted(worker: Worker, part: Part) -> Part:
    """The part, or nothing once this worker may have lost its partitions: its rows may be old."""
    return part if worker.group.has_lease() else Part(Page([], False), frozenset())


def _members(worker: Worker) -> Mapping[str, frozenset[int]]:
    members = worker.group.members()
    if not members:
        raise refusal(
            web.HTTPServiceUnavailable, "This worker has not joined the other workers yet."
        )
    return members


async def _ask(worker: Worker, url: str, request: web.Request) -> tuple[str, dict[str, Any] | None]:
    # As it came, escape for escape: %2F and %2E%2E must reach the other side as they are.
    path, query = request.rel_url.raw_path, request.rel_url.raw_query_string
    target = URL(f"{url.rstrip('/')}{path}?{query}&{LOCAL}=1", encoded=True)
    try:
        async with worker.session().get(
            target,
            timeout=aiohttp.ClientTimeout(total=WORKER_S_MAX),
            allow_redirects=False,
        ) as response:
            raw = orjson.loads(await response.read()) if response.status == 200 else None
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return url, None
    return url, raw if isinstance(raw, dict) else None


def _part(raw: Mapping[str, Any]) -> Part | None:
    """A worker's answer to `list_everywhere`; None when it is something else."""
    try:
        rows: list[tuple[Place, dict[str, Any]]] = [
            (tuple(place), row) for place, row in raw["rows"]
        ]
        return Part(Page(rows, bool(raw["is_cut"])), frozenset(raw["partitions"]))
    except (KeyError, TypeError, ValueError):
        return None


def _found(raw: Mapping[str, Any]) -> Found | None:
    try:
        return Found(raw["document"], frozenset(raw["partitions"]))
    except (KeyError, TypeError):
        return None
