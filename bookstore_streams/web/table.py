"""Tables: which there are, the rows of one, and one row."""

from __future__ import annotations

import struct
from typing import Any

from aiohttp import web

from .answer import answer, refusal
from .cluster import Found, Part, find_everywhere, list_everywhere
from .page import Page, Place, Wanted, merged
from .rows import STEP_BYTES, steps
from .worker import Table, Worker


async def tables(worker: Worker, request: web.Request) -> web.Response:
    """`GET /tables/`: names and meanings."""
    return answer(
        {
            "tables": [
                {"name": table.name, "help": table.help, "href": f"/tables/{table.name}/"}
                for table in worker.tables().values()
            ]
        }
    )


async def table_rows(worker: Worker, request: web.Request) -> web.Response:
    """`GET /tables/{table}/?prefix=`: rows of all workers, by the bytes of their keys."""
    table = _table(worker, request)
    prefix = request.query.get("prefix", "")
    return await list_everywhere(
        worker, request, (str, int), lambda asked: _first(worker, table, prefix, asked)
    )


async def table_row(worker: Worker, request: web.Request) -> web.Response:
    """`GET /tables/{table}/{key}/`: one row."""
    table, key = _table(worker, request), request.match_info["key"]
    what = f"Row {key!r} of table {table.name}"
    try:
        row_key = table.row_key(key)
    except (TypeError, ValueError, struct.error) as error:
        # A text that cannot be a key of this table, such as one without its consumer.
        raise refusal(web.HTTPNotFound, f"{what} was not found.") from error

    async def local() -> Found:
        looked = set()
        for status in worker.engine.status():
            partition = worker.engine.open_partition(status.number)
            if partition is None:
                continue
            looked.add(status.number)
            raw = partition.get(table.name, row_key)
            if raw is not None:
                return Found(_shown(table, row_key, raw), frozenset(looked))
        return Found(None, frozenset(looked))

    return await find_everywhere(worker, request, what, local)


def _table(worker: Worker, request: web.Request) -> Table:
    name = request.match_info["table"]
    table = worker.tables().get(name)
    if table is None:
        raise refusal(web.HTTPNotFound, f"There is no table {name!r}.")
    return table


async def _first(worker: Worker, table: Table, prefix: str, asked: Wanted) -> Part:
    """This worker's first rows in order of (key, partition)."""
    pages: list[Page[bytes]] = []
    covered = set()
    for status in worker.engine.status():
        page = await _first_of(worker, status.number, table, prefix, asked)
        if page is not None:
            pages.append(page)
            covered.add(status.number)
    page = merged(pages, asked.limit)
    shown: list[tuple[Place, dict[str, Any]]] = [
        (place, _shown(table, bytes.fromhex(place[0]), raw)) for place, raw in page.rows
    ]
    return Part(Page(shown, page.is_cut), frozenset(covered))


async def _first_of(
    worker: Worker, number: int, table: Table, prefix: str, asked: Wanted
) -> Page[bytes] | None:
    """The same of one partition; None when it was closed before the page was full."""
    try:
        shared = table.key_prefix(prefix)
    except UnicodeEncodeError:
        return Page([], False)  # no key has such characters
    taken: list[tuple[Place, bytes]] = []
    size = 0
    start = _start(asked.after, number)
    async for rows in steps(worker.engine, number, table.name, shared, start):
        if not rows:
            return Page(taken, False)
        for key, raw in rows:
            if prefix and not table.key_text(key).startswith(prefix):
                continue
            if len(taken) == asked.limit or size > STEP_BYTES:
                return Page(taken, True)
            taken.append(((key.hex(), number), raw))
            size += len(raw)
    return None


def _start(after: Place | None, number: int) -> bytes | None:
    if after is None:
        return None
    try:
        key = bytes.fromhex(after[0])
    except ValueError:
        raise refusal(web.HTTPBadRequest, "cursor is none that this view gave.") from None
    # The same key may stand in several partitions, in order of their numbers.
    return key + b"\0" if number <= after[1] else key


def _shown(table: Table, key: bytes, raw: bytes) -> dict[str, Any]:
    try:
        return {"key": table.key_text(key), "value": table.row_value(raw)}
    except (TypeError, ValueError, struct.error) as error:
        # Written by another version; the other rows can be shown all the same.
        return {"key": key.decode("utf-8", "backslashreplace"), "value": None, "error": str(error)}
