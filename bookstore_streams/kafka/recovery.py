"""Brings a partition's store up to the end of its changelogs, committed records only."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from aiokafka import AIOKafkaConsumer
from aiokafka.structs import TopicPartition

from bookstore_streams.errors import StaleRecordError
from bookstore_streams.settings.area import BrokerSettings

from .connection import client_options
from .store import LocalStore

# A changelog record may be as large as topics.row_bytes_max; more per fetch is faster.
FETCH_BYTES_MAX = 8 << 20


async def recover(
    store: LocalStore,
    changelogs: dict[str, str],
    number: int,
    sources: Iterable[str],
    broker: BrokerSettings,
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
        broker: where.
        on_progress: told (offsets passed, offsets to pass).

    Returns:
        Source topic -> first offset that retention has left. It is asked for here because
        the group's consumer would have to wait for its own long fetch first.

    Raises:
        StaleRecordError: the store is ahead of a changelog, so it was another changelog once.
    """
    tables = {TopicPartition(topic, number): table for table, topic in changelogs.items()}
    consumer = AIOKafkaConsumer(
        **client_options(broker),
        isolation_level="read_committed",
        enable_auto_commit=False,
        # A reset to the end could win over the seek below, and skip everything.
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=FETCH_BYTES_MAX,
        fetch_max_wait_ms=100,
    )
    await consumer.start()
    try:
        consumer.assign(list(tables))
        source_partitions = [TopicPartition(topic, number) for topic in sources]
        first = await consumer.beginning_offsets([*tables, *source_partitions])
        ends = await consumer.end_offsets(list(tables))
        at: dict[TopicPartition, int] = {}
        for partition, table in tables.items():
            stored = store.position(table)
            if stored > ends[partition]:
                raise StaleRecordError(
                    f"{store.path} has {partition.topic} up to offset {stored}, but that topic "
                    f"ends at {ends[partition]}: it was deleted and made anew."
                )
            at[partition] = max(stored, first[partition])
            consumer.seek(partition, at[partition])
        begin = sum(at.values())
        to_pass = sum(ends[p] for p in tables) - begin
        open_partitions = [p for p in tables if at[p] < ends[p]]
        while open_partitions:
            fetched = await consumer.getmany(timeout_ms=200)
            for partition, records in fetched.items():
                rows: dict[bytes, bytes | None] = {r.key: r.value for r in records}
                table = tables[partition]
                store.apply({table: rows}, {table: records[-1].offset + 1})
            # Behind the last record stand markers of transactions, which only the position sees.
            for partition in open_partitions:
                at[partition] = await consumer.position(partition)
            open_partitions = [p for p in open_partitions if at[p] < ends[p]]
            on_progress(min(sum(at.values()) - begin, to_pass), to_pass)
        return {partition.topic: first[partition] for partition in source_partitions}
    finally:
        await consumer.stop()
