"""Workers for tests of the views: real routes over HTTP, rows from memory, and no Kafka."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast
from urllib.parse import quote

import aiohttp
import orjson
from aiohttp import web
from aiohttp.test_utils import TestServer
from yarl import URL

from bookstore_streams.core.parking import Attempted, ParkedKey, message_key, parked_key
from bookstore_streams.core.record import pack, shown, unpack
from bookstore_streams.engine.engine import Engine, SeatStatus
from bookstore_streams.engine.tables import PARKED_KEYS, PARKED_MESSAGES
from bookstore_streams.web.answer import errors_as_json
from bookstore_streams.web.server import ROUTES
from bookstore_streams.web.worker import Worker

NOW_MS = 1_800_000_000_000


class MemoryPartition:
    """An open partition: tables of sorted rows."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[bytes, bytes]] = {}
        self.running: set[tuple[str, str]] = set()

    def put(self, table: str, key: bytes, row: bytes) -> None:
        rows = self.tables.setdefault(table, {})
        rows[key] = row
        self.tables[table] = dict(sorted(rows.items()))

    def park(self, key: str, due_ms: int, messages: int = 1, consumer: str = "billing") -> None:
        cause = "TransientError: 503"
        failed = Attempted(NOW_MS, 1, f"{key}-0", cause)
        parked = ParkedKey(0, messages, 1, 1, due_ms, cause, NOW_MS - 5_000, history=(failed,))
        self.put(PARKED_KEYS, parked_key(consumer, key), orjson.dumps(parked.to_row()))
        for n in range(messages):
            headers = [("message-id", f"{key}-{n}".encode())]
            record = pack("bookstore.orders", 0, n, NOW_MS, key.encode(), b"{}", headers)
            self.put(PARKED_MESSAGES, message_key(consumer, key, n), record)

    def get(self, table: str, key: bytes) -> bytes | None:
        return self.tables.get(table, {}).get(key)

    def scan(
        self, table: str, prefix: bytes = b"", start: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        for key, row in self.tables.get(table, {}).items():
            if key.startswith(prefix) and (start is None or key >= start):
                yield key, row

    def is_running(self, consumer: str, key: str) -> bool:
        return (consumer, key) in self.running


class MemoryEngine:
    """Partitions by number; None is one that is not open."""

    def __init__(self, partitions: Mapping[int, MemoryPartition | None]) -> None:
        self.partitions = dict(partitions)
        self.consumers = {"billing": object()}
        self.counters: Counter[str] = Counter()

    def status(self) -> list[SeatStatus]:
        return [
            SeatStatus(number, partition is not None, 0, 0, "")
            for number, partition in sorted(self.partitions.items())
        ]

    def open_partition(self, number: int) -> MemoryPartition | None:
        return self.partitions.get(number)


@dataclass
class MemoryTable:
    """A table with plain text keys and JSON rows, unless told otherwise."""

    name: str
    help: str = ""
    row_key: Callable[[str], bytes] = str.encode
    key_prefix: Callable[[str], bytes] = str.encode
    key_text: Callable[[bytes], str] = bytes.decode
    row_value: Callable[[bytes], Any] = orjson.loads


@dataclass
class MemoryGroup:
    """What a worker was told at the last assignment."""

    own_url: str = ""
    partition_count: int = 0
    given: dict[str, frozenset[int]] = field(default_factory=dict)
    rebalancing: bool = False
    lease: bool = True

    def members(self) -> Mapping[str, frozenset[int]]:
        return self.given

    def is_rebalancing(self) -> bool:
        return self.rebalancing

    def has_lease(self) -> bool:
        return self.lease


class FrozenClock:
    """It is always the same time."""

    def now_ms(self) -> int:
        return NOW_MS


def _parked_message_key(text: str) -> bytes:
    consumer, _, rest = text.partition("/")
    key, _, sequence = rest.rpartition("/")
    return message_key(consumer, key, int(sequence))


TABLES: dict[str, MemoryTable] = {
    "payments": MemoryTable("payments", "The payment of each order."),
    PARKED_MESSAGES: MemoryTable(
        PARKED_MESSAGES,
        row_key=_parked_message_key,
        key_prefix=lambda text: b"",
        row_value=lambda raw: shown(unpack(raw)),
    ),
}


class Stand:
    """Some workers that know of each other; ask any of them.

    Attributes:
        engines: one for each worker.
        groups: likewise.
        urls: likewise; filled in once they listen.
    """

    def __init__(self, *engines: MemoryEngine) -> None:
        self.engines = engines
        self.groups = [MemoryGroup() for _ in engines]
        self.urls: list[str] = []
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Stand:
        self.session = await self._stack.enter_async_context(aiohttp.ClientSession())
        for engine, group in zip(self.engines, self.groups, strict=True):
            worker = Worker(
                app_id="stand",
                version="1",
                engine=cast(Engine, engine),
                group=group,
                clock=FrozenClock(),
                tables=lambda: TABLES,
                session=lambda: self.session,
            )
            app = web.Application(middlewares=[errors_as_json])
            for path, view in ROUTES.items():
                app.router.add_get(path, partial(view, worker))
            self.urls.append(await self.listen(app))
        given = {
            url: frozenset(engine.partitions)
            for url, engine in zip(self.urls, self.engines, strict=True)
        }
        for url, group in zip(self.urls, self.groups, strict=True):
            group.own_url, group.given = url, given
            group.partition_count = sum(map(len, given.values()))
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    async def listen(self, app: web.Application) -> str:
        """Serve an app until the end of the block; its URL."""
        server = TestServer(app)
        await server.start_server()
        self._stack.push_async_callback(server.close)
        return str(server.make_url("")).rstrip("/")

    async def get(self, path: str, worker: int = 0) -> tuple[int, Any]:
        """Status and document of a path, which is sent exactly as it stands."""
        url = URL(self.urls[worker] + path, encoded=True)
        async with self.session.get(url) as response:
            assert response.content_type == "application/json"
            return response.status, orjson.loads(await response.read())

    async def pages(self, path: str, limit: int) -> list[list[Any]]:
        """All pages of a list, one after another."""
        pages, cursor = [], ""
        while True:
            mark = "&" if "?" in path else "?"
            status, document = await self.get(f"{path}{mark}limit={limit}&cursor={cursor}")
            assert status == 200
            assert document["incomplete"] == []
            pages.append(document["rows"])
            cursor = document["cursor"]
            if cursor is None:
                return pages


def piece(text: str) -> str:
    """A text as one piece of a path."""
    return quote(text, safe="")


def at_stand(story: Callable[[Stand], Awaitable[None]], *engines: MemoryEngine) -> None:
    """Run a test's story at a stand."""

    async def run() -> None:
        async with Stand(*engines) as stand:
            await story(stand)

    asyncio.run(run())


def spread(*partitions: MemoryPartition) -> tuple[MemoryEngine, ...]:
    """Two workers; every other partition is on the first."""
    numbered = dict(enumerate(partitions))
    return tuple(
        MemoryEngine({n: p for n, p in numbered.items() if n % 2 == worker}) for worker in (0, 1)
    )
