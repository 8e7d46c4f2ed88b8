"""Reads tables from their changelogs: the committed rows, with no worker needed."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable

from aiokafka import AIOKafkaConsumer
from aiokafka.structs import TopicPartition

from bookstore_streams.errors import BookstoreError
from bookstore_streams.settings.area import BrokerSettings

from .connection import client_options
from .lookup import SILENCE_S_MAX, no_answer, partitions_of, stopped
from .recovery import FETCH_BYTES_MAX

Rows = dict[tuple[int, bytes], bytes]


async def committed_rows(
    topics: Iterable[str],
    is_wanted: Callable[[str, bytes], bool],
    broker: BrokerSettings,
    on_progress: Callable[[int, int], None],
) -> dict[str, Rows]:
    """Read changelogs from their beginning to where they end now.

    Args:
        topics: the changelogs.
        is_wanted: whether to keep the row of (topic, row key).
        broker: where.
        on_progress: told (records passed, records to pass).

    Returns:
        Topic -> (partition, row key) -> row; those deleted since are not in it.

    Raises:
        ConnectionLostError: no broker answers.
        TransportError: a topic is missing, or the broker refuses.
    """
    numbers = await partitions_of(topics, broker)
    partitions = [TopicPartition(topic, n) for topic, all_n in numbers.items() for n in all_n]
    consumer = AIOKafkaConsumer(
        **client_options(broker),
        isolation_level="read_committed",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=FETCH_BYTES_MAX,
        fetch_max_wait_ms=100,
    )
    try:
        async with asyncio.timeout(SILENCE_S_MAX) as silence:
            await consumer.start()
            return await _read(consumer, partitions, is_wanted, on_progress, silence)
    except BookstoreError:
        raise
    except Exception as error:
        raise no_answer(error, broker) from error
    finally:
        await stopped(consumer.stop())


async def _read(
    consumer: AIOKafkaConsumer,
    partitions: list[TopicPartition],
    is_wanted: Callable[[str, bytes], bool],
    on_progress: Callable[[int, int], None],
    silence: asyncio.Timeout,
) -> dict[str, Rows]:
    rows: dict[str, Rows] = defaultdict(dict)
    consumer.assign(partitions)
    at = dict(await consumer.beginning_offsets(partitions))
    ends = await consumer.end_offsets(partitions)  # of what is committed
    for partition, first in at.items():
        consumer.seek(partition, first)
    begin = sum(at.values())
    to_pass = sum(ends.values()) - begin
    passed = 0
    left = [each for each in partitions if at[each] < ends[each]]
    while left:
        for partition, records in (await consumer.getmany(timeout_ms=200)).items():
            kept = rows[partition.topic]
            for record in records:
                # What came in after the ends were asked for belongs to a later moment.
                if record.offset >= ends[partition] or not is_wanted(partition.topic, record.key):
                    continue
                where = (record.partition, record.key)
                if record.value is None:
                    kept.pop(where, None)
                else:
                    kept[where] = record.value
        # Behind the last record stand markers of transactions, which only the position sees.
        for partition in left:
            at[partition] = min(await consumer.position(partition), ends[partition])
        left = [each for each in left if at[each] < ends[each]]
        now_passed = sum(at.values()) - begin
        if now_passed > passed:
            passed = now_passed
            silence.reschedule(asyncio.get_running_loop().time() + SILENCE_S_MAX)
        on_progress(passed, to_pass)
    return rows
