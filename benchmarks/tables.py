"""Changelogs of our engine, looked at and filled from outside.

A table of a worker is what its changelog says. So the judge counts rows there, and a
benchmark that needs a million rows writes them there and lets the worker recover.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.producer.message_accumulator import BatchBuilder

from benchmarks.engine.changelogs import changelog
from benchmarks.engine.contest import Contest
from benchmarks.load import BATCH_BYTES
from benchmarks.subject import Behaviour, build
from bookstore_streams.kafka.topics import ensure_topics

Row = tuple[int, bytes, bytes]  # partition, key, value
Change = tuple[int, bytes, bytes | None]
# Batches on their way at once: enough for the broker, little for the memory.
IN_FLIGHT_MAX = 16


async def make_topics(contest: Contest) -> None:
    """Make the changelogs as our app itself would."""
    app = build(Behaviour(contest, {}))
    await ensure_topics(app.topic_specs(), app.settings.broker)


async def changes(contest: Contest, table: str) -> list[Change]:
    """Every committed record of a table's changelog, partition by partition in order."""
    topic = changelog(contest, table)
    tps = [TopicPartition(topic, number) for number in range(contest.partitions)]
    reader = AIOKafkaConsumer(
        bootstrap_servers=contest.servers,
        isolation_level="read_committed",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    )
    found: list[Change] = []
    await reader.start()
    try:
        reader.assign(tps)
        await reader.seek_to_beginning(*tps)
        ends = await reader.end_offsets(tps)
        while any([await reader.position(tp) < ends[tp] for tp in tps]):
            for records in (await reader.getmany(timeout_ms=200)).values():
                found += [(record.partition, record.key, record.value) for record in records]
    finally:
        await reader.stop()
    return found


async def count_rows(contest: Contest, *tables: str) -> dict[str, int]:
    """Table -> rows it has, by its changelog."""
    counts = {}
    for table in tables:
        rows: dict[tuple[int, bytes], bool] = {}
        for partition, key, value in await changes(contest, table):
            rows[partition, key] = value is not None
        counts[table] = sum(rows.values())
    return counts


class Writer:
    """Fills changelogs with whole batches, no future per record."""

    def __init__(self, servers: str) -> None:
        self._producer = AIOKafkaProducer(
            bootstrap_servers=servers, enable_idempotence=False, max_batch_size=BATCH_BYTES
        )

    async def __aenter__(self) -> Writer:
        await self._producer.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._producer.stop()

    async def write(self, topic: str, rows: Iterable[Row]) -> int:
        """Write all rows in order; returns how many once the broker has them."""
        opened: dict[int, BatchBuilder] = {}
        sending: dict[int, list] = defaultdict(list)  # type: ignore[type-arg]
        count = 0
        for partition, key, value in rows:
            count += 1
            builder = opened.get(partition)
            if builder is not None and builder.append(
                timestamp=None, key=key, value=value, headers=[]
            ):
                continue
            if builder is not None:
                await self._send(builder, topic, partition, sending[partition])
            builder = opened[partition] = self._producer.create_batch()
            builder.append(timestamp=None, key=key, value=value, headers=[])
        for partition, builder in opened.items():
            await self._send(builder, topic, partition, sending[partition])
        for futures in sending.values():
            for future in futures:
                await future
        return count

    async def _send(self, builder: BatchBuilder, topic: str, partition: int, sending: list) -> None:  # type: ignore[type-arg]
        builder.close()
        sending.append(await self._producer.send_batch(builder, topic, partition=partition))
        while len(sending) > IN_FLIGHT_MAX:
            await sending.pop(0)
