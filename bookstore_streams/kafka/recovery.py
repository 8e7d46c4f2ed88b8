"""Brings opening partitions up to the end of their changelogs, committed records only.

One consumer serves all partitions that open at the same time: a worker that takes over 64 of
them makes one client more, not 64, and what it holds in memory is bounded once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from aiokafka import AIOKafkaConsumer
from aiokafka.structs import TopicPartition

from bookstore_streams.errors import StaleRecordError
from bookstore_streams.ports import Writes
from bookstore_streams.settings.area import BrokerSettings

from .connection import client_options
from .lineage import lineage
from .store import LocalStore

log = logging.getLogger(__name__)

# A changelog record may be as large as topics.row_bytes_max; more per fetch is faster.
FETCH_BYTES_MAX = 8 << 20
# Of one answer over all changelogs. aiokafka asks for the next one when it is used up, so this
# is about what a recovery holds, however many partitions open.
ANSWER_BYTES_MAX = 32 << 20
# Rows written in one go: some 20 ms, in which nothing else of the worker runs.
ROWS_MAX = 5_000
# How long to wait for records before looking who else opens, and for the broker to hold back
# an empty answer: behind it waits the question of the next partition.
WAIT_MS = 50
# Between two lines of progress; a shorter recovery says nothing but its result.
PROGRESS_S = 5.0
# A client that lost its broker may hang in its own stop.
STOP_S_MAX = 2.0


class Recovery:
    """The recoveries of one worker; its consumer runs only while some partition opens."""

    def __init__(self, broker: BrokerSettings) -> None:
        """Make it; it connects to nothing yet.

        Args:
            broker: where.
        """
        self._broker = broker
        self._starting = asyncio.Lock()
        self._reader: Reader | None = None

    @asynccontextmanager
    async def reader(
        self, changelogs: Iterable[str], sources: Iterable[str], count: int
    ) -> AsyncIterator[Reader]:
        """The reader that everybody shares who opens a partition now.

        Args:
            changelogs: topics.
            sources: topics.
            count: of partitions that each of them has.
        """
        async with self._starting:
            if self._reader is None or self._reader.is_broken:
                self._reader = await Reader.start(self._broker, changelogs, sources, count)
            reader = self._reader
            reader.users += 1
        try:
            yield reader
        finally:
            reader.users -= 1
            if not reader.users:
                if self._reader is reader:
                    self._reader = None
                await reader.stop()


@dataclass(slots=True, eq=False)
class _Job:
    """One partition that recovers.

    Attributes:
        store: of it.
        tables: changelog partition -> table.
        at: changelog partition -> offset of the next record.
        ends: changelog partition -> where its recovery ends.
        on_progress: told (offsets passed, offsets to pass).
        done: set when every changelog is at its end.
    """

    store: LocalStore
    tables: Mapping[TopicPartition, str]
    at: dict[TopicPartition, int]
    ends: Mapping[TopicPartition, int]
    on_progress: Callable[[int, int], None]
    done: asyncio.Future[None]
    begin: int = 0

    def __post_init__(self) -> None:
        self.begin = sum(self.at.values())

    @property
    def left(self) -> list[TopicPartition]:
        """Changelog partitions that are not at their end."""
        return [tp for tp in self.tables if self.at[tp] < self.ends[tp]]

    @property
    def to_pass(self) -> int:
        """Offsets of the whole recovery."""
        return sum(self.ends.values()) - self.begin

    @property
    def passed(self) -> int:
        """Offsets behind it."""
        return min(sum(self.at.values()) - self.begin, self.to_pass)


class Reader:
    """Reads changelogs for every partition that opens, side by side, with one consumer.

    Attributes:
        is_broken: whether its consumer has failed: who opens next needs another one.
        users: how many partitions that open have it.
        ids: changelog topic -> its id; empty where the broker gives none.
    """

    def __init__(self, consumer: AIOKafkaConsumer, ids: Mapping[str, str]) -> None:
        self.is_broken = False
        self.users = 0
        self.ids = ids
        self._consumer = consumer
        self._jobs: set[_Job] = set()
        self._pumping: asyncio.Task[None] | None = None
        self._progress = _Progress()

    @classmethod
    async def start(
        cls,
        broker: BrokerSettings,
        changelogs: Iterable[str],
        sources: Iterable[str],
        count: int,
    ) -> Reader:
        """Connect, and learn where the topics are; see `Recovery.reader`."""
        consumer = AIOKafkaConsumer(
            **client_options(broker),
            isolation_level="read_committed",
            enable_auto_commit=False,
            # A reset to the end could win over a seek, and skip everything.
            auto_offset_reset="earliest",
            max_partition_fetch_bytes=FETCH_BYTES_MAX,
            fetch_max_bytes=ANSWER_BYTES_MAX,
            fetch_max_wait_ms=WAIT_MS,
        )
        topics = list(changelogs)
        asking = asyncio.create_task(lineage(topics, broker))
        try:
            await consumer.start()
            # All at once, and held back: assigning anew would throw away what was fetched.
            partitions = [TopicPartition(topic, n) for topic in topics for n in range(count)]
            consumer.assign(partitions)
            consumer.pause(*partitions)
            await consumer._client.set_topics([*topics, *sources])
            return cls(consumer, (await asking).topics)
        except BaseException:
            asking.cancel()
            await _stopped(consumer)
            raise

    async def stop(self) -> None:
        """Give the connections back; whoever still recovers is told so by an error."""
        if self._pumping is not None:
            self._pumping.cancel()
            with suppress(asyncio.CancelledError):
                await self._pumping
        await _stopped(self._consumer)

    async def recover(
        self,
        store: LocalStore,
        changelogs: Mapping[str, str],
        number: int,
        sources: Iterable[str],
        on_progress: Callable[[int, int], None],
    ) -> dict[str, int]:
        """Read every changelog from the store's position to its last stable offset.

        The former owner must have been fenced before: then nothing can be added behind the
        end that is read here.

        Args:
            store: of the partition; its rows and positions move together.
            changelogs: table -> changelog topic.
            number: of the partition.
            sources: source topics.
            on_progress: told (offsets passed, offsets to pass).

        Returns:
            Source topic -> first offset that retention has left. It is asked for here because
            the group's consumer would have to wait for its own long fetch first.

        Raises:
            StaleRecordError: the store is ahead of a changelog, so it was another one once.
        """
        tables = {TopicPartition(topic, number): table for table, topic in changelogs.items()}
        source_partitions = [TopicPartition(topic, number) for topic in sources]
        first, ends = await asyncio.gather(
            self._consumer.beginning_offsets([*tables, *source_partitions]),
            self._consumer.end_offsets(list(tables)),
        )
        at: dict[TopicPartition, int] = {}
        for partition, table in tables.items():
            stored = store.position(table)
            if stored > ends[partition]:
                raise StaleRecordError(
                    f"{store.path} has {partition.topic} up to offset {stored}, but that topic "
                    f"ends at {ends[partition]}: it was deleted and made anew."
                )
            at[partition] = max(stored, first[partition])
        done = asyncio.get_running_loop().create_future()
        job = _Job(store, tables, at, ends, on_progress, done)
        on_progress(0, job.to_pass)
        if job.left:
            await self._run(job)
        return {partition.topic: first[partition] for partition in source_partitions}

    async def _run(self, job: _Job) -> None:
        partitions = job.left
        job.store.begin_restore(job.to_pass)
        for partition in partitions:
            self._consumer.seek(partition, job.at[partition])
        self._consumer.resume(*partitions)
        self._jobs.add(job)
        self._progress.began()
        if self._pumping is None or self._pumping.done():
            self._pumping = asyncio.create_task(self._pump())
        try:
            await job.done
        finally:
            self._jobs.discard(job)
            self._progress.ended(job)
            self._consumer.pause(*partitions)
        ending = asyncio.ensure_future(asyncio.to_thread(job.store.end_restore))
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError:
            await asyncio.wait([ending])  # nobody may close the store under it
            raise

    async def _pump(self) -> None:
        """Read for whoever recovers, until nobody does."""
        try:
            while self._jobs:
                fetched = await self._consumer.getmany(timeout_ms=WAIT_MS, max_records=ROWS_MAX)
                for job in list(self._jobs):
                    try:
                        if job in self._jobs:
                            await self._advance(job, fetched)
                    except Exception as error:  # of its store: the others go on
                        _fail(job, error)
                self._progress.tell(self._jobs)
                await asyncio.sleep(0)  # what is fetched already comes without any wait
        except BaseException as error:
            self.is_broken = True
            for job in self._jobs:
                _fail(job, error if isinstance(error, Exception) else ConnectionError("stopped"))
            if not isinstance(error, Exception):
                raise

    async def _advance(self, job: _Job, fetched: Mapping[TopicPartition, list[Any]]) -> None:
        writes: Writes = {}
        positions: dict[str, int] = {}
        for partition, table in job.tables.items():
            records = fetched.get(partition)
            if records:
                writes[table] = {record.key: record.value for record in records}
                positions[table] = records[-1].offset + 1
        if positions:
            job.store.restore(writes, positions)
        # Behind the last record stand markers of transactions, which only the position sees.
        for partition in job.left:
            job.at[partition] = await self._consumer.position(partition)
            if job.at[partition] >= job.ends[partition]:
                self._consumer.pause(partition)
        job.on_progress(job.passed, job.to_pass)
        if not job.left and not job.done.done():
            job.done.set_result(None)


class _Progress:
    """Says every few seconds how far a long recovery is, over all partitions that open."""

    def __init__(self) -> None:
        self._told_s = 0.0
        self._told = 0
        self._ended = 0

    def began(self) -> None:
        """Another partition recovers."""
        self._told_s = self._told_s or time.monotonic()

    def ended(self, job: _Job) -> None:
        """It does not any more."""
        self._ended += job.passed

    def tell(self, jobs: Iterable[_Job]) -> None:
        """Write a line when it is time for one."""
        now_s = time.monotonic()
        if now_s - self._told_s < PROGRESS_S:
            return
        running = [(job.passed, job.to_pass) for job in jobs]
        done = self._ended + sum(passed for passed, _ in running)
        left = sum(to_pass - passed for passed, to_pass in running)
        rate = (done - self._told) / (now_s - self._told_s)
        log.info(
            "recovering %s partitions: %s of %s records (%.0f %%), %.0f a second, %.0f s to go",
            len(running),
            done,
            done + left,
            100 * done / max(1, done + left),
            rate,
            left / max(rate, 1.0),
        )
        self._told_s, self._told = now_s, done


def _fail(job: _Job, error: Exception) -> None:
    if not job.done.done():
        job.done.set_exception(error)


async def _stopped(consumer: AIOKafkaConsumer) -> None:
    stopping = asyncio.ensure_future(consumer.stop())
    await asyncio.wait([stopping], timeout=STOP_S_MAX)
    if not stopping.done():
        stopping.cancel()
    elif not stopping.cancelled():
        stopping.exception()
