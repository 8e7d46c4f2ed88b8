"""The parking lot: all parked keys, and one of them with its messages and attempts."""

from __future__ import annotations

from typing import Any

import orjson
from aiohttp import web

from bookstore_streams.core.parking import (
    ParkedKey,
    message_key,
    message_prefix,
    parked_key,
    split_message_key,
    split_parked_key,
)
from bookstore_streams.core.parking_view import key_detail, key_row, message_row
from bookstore_streams.engine.tables import PARKED_KEYS, PARKED_MESSAGES

from .answer import refusal
from .cluster import Found, Part, find_everywhere, list_everywhere
from .page import Page, Place, Wanted, cursor_after, wanted
from .rows import STEP_BYTES, STEP_ROWS, steps
from .worker import Worker


async def parked_keys(worker: Worker, request: web.Request) -> web.Response:
    """`GET /parking/`: the parked keys of all workers, the earliest due first."""
    return await list_everywhere(
        worker, request, (int, str, str), lambda asked: _earliest(worker, asked)
    )


async def parked_one(worker: Worker, request: web.Request) -> web.Response:
    """`GET /parking/{consumer}/{key}/`: one key, its failed attempts, its messages in order."""
    consumer, key = request.match_info["consumer"], request.match_info["key"]
    if consumer not in worker.engine.consumers:
        raise refusal(web.HTTPNotFound, f"There is no consumer {consumer!r}.")
    asked = wanted(request.query, (int,))

    async def local() -> Found:
        looked = set()
        for status in worker.engine.status():
            if worker.engine.open_partition(status.number) is not None:
                looked.add(status.number)
                document = _detail(worker, status.number, consumer, key, asked)
                if document is not None:
                    return Found(document, frozenset(looked))
        return Found(None, frozenset(looked))

    return await find_everywhere(worker, request, f"Parked key {key!r} of {consumer}", local)


async def _earliest(worker: Worker, asked: Wanted) -> Part:
    """This worker's first parked keys in order of due time."""
    room = asked.limit + 1  # one more tells whether more follow
    best: list[_Candidate] = []
    last: Place | None = None  # nothing behind this place can be among the first any more
    covered = set()
    for status in worker.engine.status():
        async for rows in steps(worker.engine, status.number, PARKED_KEYS):
            if not rows:
                covered.add(status.number)
                break
            for row_key, raw in rows:
                row = orjson.loads(raw)
                place = (row["due_ms"], *split_parked_key(row_key))
                if (asked.after is None or place > asked.after) and (last is None or place < last):
                    best.append((place, row, status.number))
            # Sorted seldom: a hundred thousand keys cost one pass, and not a sort each.
            if len(best) > 2 * room + STEP_ROWS:
                best = sorted(best, key=_place_of)[:room]
                last = best[-1][0]
    best.sort(key=_place_of)
    shown = [_row(worker, candidate) for candidate in best[: asked.limit]]
    return Part(Page(shown, len(best) > asked.limit), frozenset(covered))


#: Place, row as it is stored, and partition.
_Candidate = tuple[Place, dict[str, Any], int]


def _place_of(candidate: _Candidate) -> Place:
    return candidate[0]


def _row(worker: Worker, candidate: _Candidate) -> tuple[Place, dict[str, Any]]:
    place, row, number = candidate
    _, consumer, key = place
    partition = worker.engine.open_partition(number)
    is_running = partition is not None and partition.is_running(consumer, key)
    return place, key_row(consumer, key, ParkedKey.from_row(row), is_running=is_running)


def _detail(
    worker: Worker, number: int, consumer: str, key: str, asked: Wanted
) -> dict[str, Any] | None:
    """One look at one partition, without a pause: key and messages are of the same commit."""
    partition = worker.engine.open_partition(number)
    try:
        row_key = parked_key(consumer, key)
    except UnicodeEncodeError:
        return None
    raw = None if partition is None else partition.get(PARKED_KEYS, row_key)
    if partition is None or raw is None:
        return None
    parked = ParkedKey.from_row(orjson.loads(raw))
    start = None if asked.after is None else message_key(consumer, key, asked.after[0] + 1)
    messages: list[tuple[Place, dict[str, Any]]] = []
    size, is_cut = 0, False
    for message, content in partition.scan(PARKED_MESSAGES, message_prefix(consumer, key), start):
        if len(messages) == asked.limit or size > STEP_BYTES:
            is_cut = True
            break
        _, _, sequence = split_message_key(message)
        messages.append(((sequence,), message_row(sequence, content)))
        size += len(content)
    return {
        **key_detail(consumer, key, parked, is_running=partition.is_running(consumer, key)),
        "messages": [row for _, row in messages],
        "cursor": cursor_after(Page(messages, is_cut)),
    }
