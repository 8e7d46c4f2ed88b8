"""The watch: asks the provider, the topics and the worker's web server what there is to see.

Owns the questions and how often they are asked. Refuses to judge and to find words.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from operator import itemgetter
from typing import Any, Final

import aiohttp
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError
from aiokafka.structs import ConsumerRecord

from .check import Seen
from .stage import Stage, StageError
from .story import DEAD_LETTERS, ORDERS, PAYMENTS
from .timeline import Record, Timeline

_CALLS_S: Final = 0.05
_PARKED_S: Final = 0.1
_ROWS_MAX: Final = 100
_CLOSE_S_MAX: Final = 5.0
_ANSWER_MAX: Final = aiohttp.ClientTimeout(total=10)


class Watch:
    """Looks at everything as long as its block lasts, and remembers it.

    Attributes:
        seen: all of it.
        changed_ms: when something new was seen last, epoch ms.
    """

    def __init__(self, stage: Stage, timeline: Timeline) -> None:
        self.seen = Seen()
        self.changed_ms = now_ms()
        self._stage = stage
        self._timeline = timeline
        self._told: set[int] = set()
        self._since = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._is_worker_there = True
        count = stage.settings.topics.partitions
        topics = (ORDERS, PAYMENTS, DEAD_LETTERS)
        self._tps = [TopicPartition(topic, number) for topic in topics for number in range(count)]
        self._orders = [tp for tp in self._tps if tp.topic == ORDERS]
        servers = stage.servers
        self._reader = AIOKafkaConsumer(
            bootstrap_servers=servers,
            isolation_level="read_committed",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            fetch_max_wait_ms=50,
        )
        # A second one: only a member of the group may ask how far the group is.
        self._group = AIOKafkaConsumer(
            bootstrap_servers=servers, group_id=stage.settings.app.id, enable_auto_commit=False
        )

    @asynccontextmanager
    async def looking(self) -> AsyncIterator[None]:
        """Look until the end of the block, which calls `check` to hear of what fails."""
        try:
            await self._open()
            async with aiohttp.ClientSession(timeout=_ANSWER_MAX) as session:
                looks = {
                    "Reading the topics": self._read(),
                    "Asking the payment provider": self._ask_often(),
                    "Looking at the parking lot": self._look_at_parking(session),
                }
                self._tasks = [asyncio.create_task(look, name=what) for what, look in looks.items()]
                try:
                    yield
                finally:
                    for task in self._tasks:
                        task.cancel()
                    await asyncio.gather(*self._tasks, return_exceptions=True)
        finally:
            await close(self._reader)
            await close(self._group)

    def check(self) -> None:
        """Return while it can look.

        Raises:
            StageError: the worker, the provider or the broker has gone, or answers with errors.
        """
        if self._is_worker_there:
            self._stage.check()
        for task in self._tasks:
            if task.done():
                try:
                    task.result()
                except (KafkaError, OSError, ValueError) as error:
                    raise StageError(f"{task.get_name()} failed: {error!r}") from error

    def leave_worker(self) -> None:
        """Look no more at the worker: it is about to leave."""
        self._is_worker_there = False

    async def _open(self) -> None:
        await self._reader.start()
        self._reader.assign(self._tps)
        # From here on: on a broker that others use, what was there before is not of this story.
        await self._reader.seek_to_end()
        for tp in self._tps:
            await self._reader.position(tp)
        await self._group.start()
        self._group.assign(self._orders)

    async def lag(self) -> int:
        """Messages of `bookstore.orders` that are not committed by the worker."""
        ends = await self._group.end_offsets(self._orders)
        committed = [await self._group.committed(tp) for tp in self._orders]
        return sum(ends[tp] - (at or 0) for tp, at in zip(self._orders, committed, strict=True))

    async def to_end(self) -> None:
        """Read all that is committed by now."""
        ends = await self._reader.end_offsets(self._tps)
        while any([await self._reader.position(tp) < end for tp, end in ends.items()]):
            self.check()
            await asyncio.sleep(_CALLS_S)

    async def ask_provider(self) -> None:
        """What it was asked and what it booked, as of now."""
        control = self._stage.provider
        calls = await asyncio.to_thread(control.calls, self._since)
        self.seen.accounts = await asyncio.to_thread(control.ledger)
        for call in calls:
            is_told = call["seq"] <= self._since or call["seq"] in self._told
            if is_told or call["done_ms"] is None:
                continue
            self._told.add(call["seq"])
            self.seen.calls.append(call)
            self._timeline.called(call)
            self.changed_ms = now_ms()
        self.seen.calls.sort(key=itemgetter("seq"))
        # Asked again from the first one that has no answer yet.
        while self._since + 1 in self._told:
            self._since += 1
            self._told.remove(self._since)

    async def _ask_often(self) -> None:
        while True:
            await self.ask_provider()
            await asyncio.sleep(_CALLS_S)

    async def _read(self) -> None:
        while True:
            fetched = await self._reader.getmany(timeout_ms=100)
            for records in fetched.values():
                for raw in records:
                    record = _record(raw)
                    self.seen.records.append(record)
                    self._timeline.read(record)
                    self.changed_ms = now_ms()

    async def _look_at_parking(self, session: aiohttp.ClientSession) -> None:
        url = f"{self._stage.web_url}/parking/?limit={_ROWS_MAX}"
        while self._is_worker_there:
            rows = await _rows(session, url)
            if rows is not None:
                self.seen.parked = rows
                self._timeline.looked(rows, now_ms())
            await asyncio.sleep(_PARKED_S)


async def close(client: AIOKafkaConsumer | AIOKafkaProducer) -> None:
    """Close a client of a broker that may be gone."""
    # Then it waits for answers that will not come, or fails by the end of its own tasks.
    with suppress(KafkaError, OSError, TimeoutError, asyncio.CancelledError):
        await asyncio.wait_for(client.stop(), _CLOSE_S_MAX)


async def _rows(session: aiohttp.ClientSession, url: str) -> Sequence[dict[str, Any]] | None:
    """The parked keys; None when the worker cannot tell right now."""
    try:
        async with session.get(url) as answer:
            if answer.status != 200:
                return None
            document: dict[str, Any] = await answer.json()
    except (aiohttp.ClientError, TimeoutError):
        return None
    rows: list[dict[str, Any]] = document["rows"]
    return rows


def now_ms() -> int:
    """Epoch ms."""
    return time.time_ns() // 1_000_000


def _record(raw: ConsumerRecord[bytes | None, bytes | None]) -> Record:
    return Record(
        raw.topic,
        raw.partition,
        raw.offset,
        (raw.key or b"").decode("utf-8", "replace"),
        raw.value,
        {name: (value or b"").decode("utf-8", "replace") for name, value in raw.headers},
        raw.timestamp,
    )
