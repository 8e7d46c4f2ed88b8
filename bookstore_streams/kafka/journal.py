"""The broker's side of one partition: one transaction per commit, under an id only its owner has.

The transactional id belongs to the partition, not to the worker: whoever starts a producer
with it fences every earlier one, so that a worker which lost the partition without
noticing can write nothing any more (KIP-98).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.partitioner import murmur2
from aiokafka.structs import OffsetAndMetadata, TopicPartition

from bookstore_streams.errors import (
    BookstoreError,
    PublishUnconfirmedError,
    RecordTooLargeError,
)
from bookstore_streams.ports import Batch, Emission, Probe
from bookstore_streams.settings import Settings

from .connection import client_options, translated
from .store import LocalStore

# A batch of Kafka records of this many bytes fits every broker's default message limit
# (1,048,588); a single larger record gets a batch of its own.
BATCH_BYTES_MAX = 900_000
# How long giving the producer back may take.
STOP_S_MAX = 2.0
_NO_HEADERS: list[tuple[str, bytes | None]] = []
# Longer keys are rare, and the cache would keep them.
_CACHED_KEY_BYTES_MAX = 256


class KafkaJournal:
    """Commits of one partition.

    Attributes:
        store: the local copy of what is committed here.
    """

    def __init__(self, settings: Settings, number: int, changelogs: dict[str, str]) -> None:
        """Make the journal; nobody is fenced before it starts.

        Args:
            settings: of the app.
            number: of the partition.
            changelogs: table -> changelog topic.
        """
        self.store: LocalStore
        self._number = number
        self._group = settings.app.id
        self._commit_timeout_s = settings.commit.timeout_ms / 1000
        self._start_timeout_s = settings.broker.request_timeout_ms / 1000
        self._changelogs = changelogs
        self._partition_counts: dict[str, int] = {}
        self._producer = AIOKafkaProducer(
            **client_options(settings.broker),
            transactional_id=f"{settings.app.id}-{number}",
            transaction_timeout_ms=settings.commit.timeout_ms,
            max_batch_size=BATCH_BYTES_MAX,
            retry_backoff_ms=10,
        )

    async def start(self) -> None:
        """Fence the former owner: it can commit nothing afterwards, and what it had not is gone.

        Raises:
            TransportError: the broker cannot be reached or refuses.
        """
        try:
            async with asyncio.timeout(self._start_timeout_s):
                await self._producer.start()
        except Exception as error:
            raise translated(error, f"taking over partition {self._number}") from error

    async def commit(self, batch: Batch, probe: Probe) -> dict[str, int]:
        """Publish rows, events and offsets in one transaction; see `ports.Journal`."""
        try:
            # aiokafka would go on for ever with a transaction that a restarted broker has
            # forgotten; the broker itself gives one up after the same time.
            async with asyncio.timeout(self._commit_timeout_s):
                return await self._commit(batch, probe)
        except BookstoreError:
            raise
        except TimeoutError as error:
            raise PublishUnconfirmedError(
                f"committing partition {self._number}: no answer within "
                f"{self._commit_timeout_s:g} s"
            ) from error
        except Exception as error:
            raise translated(error, f"committing partition {self._number}") from error

    async def _commit(self, batch: Batch, probe: Probe) -> dict[str, int]:
        producer, number = self._producer, self._number
        await self._learn_partition_counts(batch.emissions)
        packed = Packed(producer)
        counts = self._partition_counts
        for topic, key, value, headers in batch.emissions:
            packed.add(topic, partition_of(key, counts[topic]), key, value, headers)
        table_of = {}
        for table, rows in batch.writes.items():
            changelog = self._changelogs[table]
            table_of[changelog, number] = table
            packed.add_rows(changelog, number, rows)
        await producer.begin_transaction()
        batches = packed.batches
        sending: list[Any] = [self._send(where, builders) for where, builders in batches.items()]
        if batch.marks:
            offsets = {
                TopicPartition(topic, number): OffsetAndMetadata(mark, "")
                for topic, mark in batch.marks.items()
            }
            sending.append(producer.send_offsets_to_transaction(offsets, self._group))
        # commit_transaction() would succeed although a batch has failed: look at each first.
        ends = await asyncio.gather(*sending)
        probe("after-sends")
        await producer.commit_transaction()
        return {
            table_of[where]: end
            for where, end in zip(batches, ends, strict=False)
            if where in table_of
        }

    async def _learn_partition_counts(self, emissions: list[Emission]) -> None:
        counts = self._partition_counts
        for topic in {emission[0] for emission in emissions}:
            if topic not in counts:
                counts[topic] = len(await self._producer.partitions_for(topic))

    async def _send(self, where: tuple[str, int], builders: list[Any]) -> int:
        """Send batches one after another; the offset after the last record."""
        topic, number = where
        end = 0
        for builder in builders:
            builder.close()
            sent = await self._producer.send_batch(builder, topic, partition=number)
            end = (await sent).offset + builder.record_count()
        return end

    async def close(self) -> None:
        """Give the connection and the store back. An open transaction is left to be aborted."""
        try:
            # A fenced producer, or one with a forgotten transaction, can hang in its stop().
            stopping = asyncio.create_task(self._producer.stop())
            await asyncio.wait([stopping], timeout=STOP_S_MAX)
            stopping.cancel()
        finally:
            if hasattr(self, "store"):
                self.store.close()


class Packed:
    """Records, already bytes, in batches: no future and no second encoding for each.

    Attributes:
        batches: topic and partition -> batches in the order in which they are to be sent.
    """

    def __init__(self, producer: AIOKafkaProducer) -> None:
        self.batches: dict[tuple[str, int], list[Any]] = {}
        self._appends: dict[tuple[str, int], Callable[..., Any]] = {}
        self._producer = producer
        self._now_ms = time.time_ns() // 1_000_000

    def add(
        self,
        topic: str,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, bytes | None]],
    ) -> None:
        """Put one record behind those of its partition."""
        where = topic, partition
        append = self._appends.get(where)
        if append is None or (
            append(timestamp=self._now_ms, key=key, value=value, headers=headers) is None
        ):
            self._begin(where, key, value, headers)

    def add_rows(self, topic: str, partition: int, rows: Mapping[bytes, bytes | None]) -> None:
        """Put rows behind what is there of their partition."""
        where, now_ms = (topic, partition), self._now_ms
        append = self._appends.get(where)
        for key, value in rows.items():
            if append is None or (
                append(timestamp=now_ms, key=key, value=value, headers=_NO_HEADERS) is None
            ):
                append = self._begin(where, key, value, _NO_HEADERS)

    def _begin(
        self,
        where: tuple[str, int],
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, bytes | None]],
    ) -> Callable[..., Any]:
        """Begin a batch with one record; how to put more behind it."""
        builder = self._producer.create_batch()
        self.batches.setdefault(where, []).append(builder)
        append: Callable[..., Any] = builder.append
        if append(timestamp=self._now_ms, key=key, value=value, headers=headers) is None:
            raise RecordTooLargeError(
                f"A record of {len(value or b'')} bytes for {where[0]} fits no batch."
            )
        self._appends[where] = append
        return append


def partition_of(key: bytes | None, count: int) -> int:
    """The partition that Kafka's default partitioner gives a key; 0 for none."""
    if key is None:
        return 0
    if len(key) <= _CACHED_KEY_BYTES_MAX:
        return _cached_partition_of(key, count)
    return int(murmur2(key) & 0x7FFFFFFF) % count


@lru_cache(65_536)
def _cached_partition_of(key: bytes, count: int) -> int:
    # murmur2 of aiokafka is pure Python, and keys come again.
    return int(murmur2(key) & 0x7FFFFFFF) % count
