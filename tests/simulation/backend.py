"""What a simulated worker's engine runs on: every answer of the broker and the disk is a point.

At a point other processes run, time passes if the seed says so, and a fault that waits for it
comes: the worker is killed, frozen, cut off, fenced, or gets an error for its answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from bookstore_streams.engine.tables import INBOX, PARKED_KEYS, PARKED_MESSAGES
from bookstore_streams.errors import ConnectionLostError, LeaseLostError, PublishUnconfirmedError
from bookstore_streams.ports import Batch, Headers, Probe, Writes
from bookstore_streams.testing.memory import (
    MemoryBroker,
    MemoryDisk,
    MemoryRecord,
    MemoryStore,
    changelog,
)
from bookstore_streams.testing.memory.broker import _Entry
from tests.simulation.log import Fenced, Landed, Opened, Staged

if TYPE_CHECKING:
    from tests.simulation.worker import Worker

APP = "app"
EFFECTS = "effects"
TABLES = (INBOX, PARKED_KEYS, PARKED_MESSAGES, EFFECTS)
CHANGELOGS = {table: changelog(APP, table) for table in TABLES}

#: Points where a worker waits for an answer, and at which a fault can come; then those that
#: cannot wait. In the order of a partition's life.
WAITING = ("open", "fenced", "recover", "offsets")
COMMITTING = ("begin", "send", "mark", "commit", "committed")
INSTANT = ("apply", "applied")
# How long a worker waits for a broker that it cannot reach.
REQUEST_TIMEOUT_S = 0.3


async def nevermore() -> None:
    """Wait as a process that is no more."""
    await asyncio.get_running_loop().create_future()


class Broker(MemoryBroker):
    """A memory broker that remembers what each transaction holds."""

    def __init__(self, *, partitions: int, now_ms: Callable[[], int]) -> None:
        super().__init__(partitions=partitions, now_ms=now_ms)
        self._records: dict[str, list[MemoryRecord]] = {}
        self._marks: dict[str, dict[str, int]] = {}

    def _append(
        self,
        topic: str,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        transaction: Any,
    ) -> MemoryRecord:
        # Nothing here is too large: what a record takes need not be worked out.
        log = self._logs[topic, partition]
        record = MemoryRecord(topic, partition, len(log), self._now_ms(), key, value, headers)
        log.append(_Entry(record, transaction))
        if transaction is not None:
            transaction.firsts.setdefault((topic, partition), record.offset)
        return record

    def begin(self, transactional_id: str, epoch: int) -> None:
        """Begin a transaction."""
        super().begin(transactional_id, epoch)
        self._records[transactional_id] = []
        self._marks[transactional_id] = {}

    def send(
        self,
        transactional_id: str,
        epoch: int,
        topic: str,
        partition: int | None,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
    ) -> MemoryRecord:
        """Append one record to the open transaction."""
        record = super().send(transactional_id, epoch, topic, partition, key, value, headers)
        self._records[transactional_id].append(record)
        return record

    def send_offset(
        self, transactional_id: str, epoch: int, group: str, topic: str, partition: int, offset: int
    ) -> None:
        """Let a group's offset become `offset` when the transaction is committed."""
        super().send_offset(transactional_id, epoch, group, topic, partition, offset)
        self._marks[transactional_id][topic] = offset

    def contents(self, transactional_id: str) -> tuple[list[MemoryRecord], dict[str, int]]:
        """Records and marks of the transaction begun last."""
        return self._records[transactional_id], self._marks[transactional_id]


class Disk(MemoryDisk):
    """A disk of which an older picture can be put back."""

    def __init__(self) -> None:
        super().__init__()
        self._older: dict[int, Any] = {}

    def remember(self, number: int) -> None:
        """Take a picture of a partition's files."""
        self._older[number] = copy.deepcopy(self._partitions.get(number))

    def put_back(self) -> None:
        """Put the pictures back; what was never taken a picture of stays as it is."""
        for number, files in self._older.items():
            if files is not None:
                files.is_open = False
                self._partitions[number] = copy.deepcopy(files)


class _StorePoints:
    """Points of the disk; what `MemoryStore` asks as `Faults`."""

    __slots__ = ("_worker",)

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    @property
    def is_dead(self) -> bool:
        return self._worker.process.is_dead

    def check(self, step: str) -> None:
        """Pass a step of the disk."""
        worker = self._worker
        if step == "apply":
            worker.reach(step)
        if worker.errors and (error := worker.errors.pop(step, None)) is not None:
            raise error
        if worker.process.is_dead:
            raise ConnectionLostError("This process is no more.", "simulation")


class Store(MemoryStore):
    """Rows of one partition; a crash can come before and after each write."""

    def __init__(self, worker: Worker, number: int) -> None:
        super().__init__(worker.disk.files(number), TABLES, _StorePoints(worker))  # type: ignore[arg-type]
        self._worker = worker
        self._number = number

    def apply(self, writes: Writes, positions: Any) -> None:
        """Write rows and positions, all or nothing."""
        super().apply(writes, positions)
        self._worker.wrote(self._number)
        self._worker.reach("applied")


class Journal:
    """Commits of one partition; see `ports.Journal`."""

    def __init__(self, worker: Worker, number: int, epoch: int, store: Store) -> None:
        self.store = store
        self._worker = worker
        self._broker = worker.world.broker
        self._number = number
        self._id = f"{APP}-{number}"
        self._epoch = epoch

    async def commit(self, batch: Batch, probe: Probe) -> dict[str, int]:
        """Publish everything in `batch` in one transaction."""
        try:
            async with asyncio.timeout(self._worker.world.commit_timeout_s):
                return await self._commit(batch, probe)
        except TimeoutError as error:
            raise PublishUnconfirmedError("No answer to a commit.", "simulation") from error

    async def _commit(self, batch: Batch, probe: Probe) -> dict[str, int]:
        worker, broker, me = self._worker, self._broker, (self._id, self._epoch)
        await worker.point("begin")
        broker.begin(*me)
        # Whether every record is a point, or only the first of each kind.
        each = worker.world.shape.has_fine_sends
        if batch.emissions:
            await worker.point("send")
        for topic, key, value, headers in batch.emissions:
            if each:
                await worker.point("send")
            broker.send(*me, topic, None, key, value, headers)
        positions: dict[str, int] = {}
        for table, rows in list(batch.writes.items()):
            for row_key, row in rows.items():
                if each or not positions:
                    await worker.point("send")
                sent = broker.send(*me, CHANGELOGS[table], self._number, row_key, row, ())
                positions[table] = sent.offset + 1
                worker.tell(Staged(worker.now_ms(), worker.name, table, row_key, row))
        for topic, mark in batch.marks.items():
            await worker.point("mark")
            broker.send_offset(*me, APP, topic, self._number, mark)
        probe("after-sends")
        await worker.point("commit")
        if worker.late_s is not None:
            await self._commit_late(worker.late_s)
        self._land()
        await worker.point("committed")
        return positions

    async def _commit_late(self, late_s: float) -> None:
        """The request is on its way for longer than anybody waits; it may still arrive."""
        self._worker.late_s = None
        world = self._worker.world
        world.loop.call_later(late_s, self._arrive, context=world.loop.world.context.copy())
        await nevermore()

    def _arrive(self) -> None:
        # Another owner may have been here first, or it was given up.
        with contextlib.suppress(LeaseLostError, KeyError):
            self._land()

    def _land(self) -> None:
        worker, broker = self._worker, self._broker
        records, marks = broker.contents(self._id)
        broker.commit(self._id, self._epoch)
        now_ms = worker.now_ms()
        worker.world.log.add(Landed(now_ms, worker.name, self._number, self._epoch, records, marks))

    async def close(self) -> None:
        """Give the store back. An open transaction is left to be aborted, as on Kafka."""
        try:
            await self._worker.point("close")
        finally:
            self.store.close()


class Backend:
    """What a worker's engine asks for; see `ports.Backend`."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def has_lease(self) -> bool:
        """Whether the group still counts this worker as alive."""
        return self._worker.has_lease()

    async def open(
        self, number: int, topics: Iterable[str], on_progress: Callable[[int, int], None]
    ) -> tuple[Journal, dict[str, int]]:
        """Fence the former owner, recover, and say where each topic goes on."""
        worker = self._worker
        broker = worker.world.broker
        await worker.point("open")
        epoch = broker.fence(f"{APP}-{number}")
        worker.tell(Fenced(worker.now_ms(), worker.name, number, epoch))
        store = Store(worker, number)
        try:
            await worker.point("fenced")
            for table in TABLES:
                await self._recover(store, table, number)
            await worker.point("offsets")
        except BaseException:
            store.close()
            raise
        offsets = {topic: broker.committed(APP, topic, number) or 0 for topic in sorted(topics)}
        worker.tell(Opened(worker.now_ms(), worker.name, number, epoch, dict(offsets)))
        worker.news.set()  # fetching begins once the partition is there
        return Journal(worker, number, epoch, store), offsets

    async def _recover(self, store: Store, table: str, number: int) -> None:
        broker, topic = self._worker.world.broker, CHANGELOGS[table]
        position, end = store.position(table), broker.end(topic, number)
        if position == end:
            return
        await self._worker.point("recover")
        records = broker.read(topic, number, position)
        store.apply({table: {r.key or b"": r.value for r in records}}, {table: end})
