"""Contestants: the same work in a plain loop over aiokafka and rocksdict, one transaction a batch.

It sets the ceiling: no lanes, no retries, no rebalance, no recovery. A message's rows are
staged, the batch's changelog records, events and offsets are committed in one Kafka
transaction, then one RocksDB batch holds the rows. `batches` hands whole record batches to
the producer; `futures` sends record by record, as most programs do.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from functools import lru_cache

import orjson
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.partitioner import murmur2
from rocksdict import Options, Rdict, WriteBatch

from benchmarks.engine.changelogs import changelog, create_changelogs
from benchmarks.engine.contest import MESSAGE_ID, Contest, deposit, from_command_line

VARIANTS = ("batches", "futures")
TABLES = ("rows", "inbox")
# One transaction takes as much: large enough that its round trips (some 5 ms) cost little.
MESSAGES_PER_TRANSACTION_MAX = 2_000
BATCH_BYTES = 900_000

Outbound = dict[tuple[str, int], list[tuple[bytes, bytes]]]
Send = Callable[[AIOKafkaProducer, Outbound], Awaitable[None]]


class Store:
    """Both tables in one RocksDB, changed by whole batches only."""

    def __init__(self, path: str) -> None:
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.create_missing_column_families(True)
        self._db = Rdict(
            path, options, column_families={name: Options(raw_mode=True) for name in TABLES}
        )
        self._families = {name: self._db.get_column_family(name) for name in TABLES}
        self._handles = {name: self._db.get_column_family_handle(name) for name in TABLES}
        self._staged: dict[str, dict[bytes, bytes]] = {name: {} for name in TABLES}

    def get(self, table: str, key: bytes) -> bytes | None:
        staged = self._staged[table].get(key)
        return self._families[table].get(key) if staged is None else staged

    def put(self, table: str, key: bytes, value: bytes) -> None:
        self._staged[table][key] = value

    def write(self) -> None:
        """Carry over what is staged, all or nothing."""
        batch = WriteBatch(raw_mode=True)
        for table, rows in self._staged.items():
            for key, value in rows.items():
                batch.put(key, value, self._handles[table])
            rows.clear()
        self._db.write(batch)

    def close(self) -> None:
        self._families.clear()
        self._handles.clear()
        self._db.close()


async def send_batches(producer: AIOKafkaProducer, outbound: Outbound) -> None:
    """No future and no second look at each record."""
    now_ms = int(time.time() * 1000)
    sent = []
    for (topic, partition), records in outbound.items():
        builder = producer.create_batch()
        for key, value in records:
            if builder.append(timestamp=now_ms, key=key, value=value, headers=[]) is None:
                sent.append(await producer.send_batch(builder, topic, partition=partition))
                builder = producer.create_batch()
                builder.append(timestamp=now_ms, key=key, value=value, headers=[])
        builder.close()
        sent.append(await producer.send_batch(builder, topic, partition=partition))
    await asyncio.gather(*sent)


async def send_futures(producer: AIOKafkaProducer, outbound: Outbound) -> None:
    await asyncio.gather(
        *[
            await producer.send(topic, value, key=key, partition=partition)
            for (topic, partition), records in outbound.items()
            for key, value in records
        ]
    )


def stage(store: Store, contest: Contest, partition: int, records: Iterable) -> Outbound:  # type: ignore[type-arg]
    """Handle one partition's records; returns the records that have to leave for them."""
    rows: dict[bytes, bytes] = {}
    inbox: dict[bytes, bytes] = {}
    events: Outbound = defaultdict(list)
    for record in records:
        message_id = next(value for name, value in record.headers if name == MESSAGE_ID)
        if store.get("inbox", message_id) is not None:
            continue
        message = orjson.loads(record.value)
        key = message["account"].encode()
        raw = store.get("rows", key)
        row, told = deposit(orjson.loads(raw) if raw else None, message, message_id.decode())
        rows[key] = orjson.dumps(row)
        store.put("rows", key, rows[key])
        inbox[message_id] = b"%d" % record.offset
        store.put("inbox", message_id, inbox[message_id])
        events[contest.output, partition_of(key, contest.partitions)].append(
            (key, orjson.dumps(told))
        )
    for table, changed in (("rows", rows), ("inbox", inbox)):
        if changed:
            events[changelog(contest, table), partition] = list(changed.items())
    return events


@lru_cache(65_536)
def partition_of(key: bytes, partitions: int) -> int:
    """Kafka's default partitioner; aiokafka's is pure Python, hence the cache."""
    return int(murmur2(key) & 0x7FFFFFFF) % partitions


async def work(contest: Contest, send: Send, stopped: asyncio.Event) -> None:
    """Take, stage, commit, write; until told to stop."""
    await create_changelogs(contest, TABLES)
    store = Store(str(contest.data_dir / "store"))
    consumer = AIOKafkaConsumer(
        contest.source,
        bootstrap_servers=contest.servers,
        group_id=contest.group,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    )
    producer = AIOKafkaProducer(
        bootstrap_servers=contest.servers,
        transactional_id=contest.group,
        max_batch_size=BATCH_BYTES,
        retry_backoff_ms=10,
    )
    await producer.start()
    await consumer.start()
    try:
        while not stopped.is_set():
            taken = await consumer.getmany(timeout_ms=200, max_records=MESSAGES_PER_TRANSACTION_MAX)
            if taken:
                await commit(contest, send, store, producer, taken)
    finally:
        await consumer.stop()
        await producer.stop()
        store.close()


async def commit(
    contest: Contest,
    send: Send,
    store: Store,
    producer: AIOKafkaProducer,
    taken: dict[TopicPartition, list],  # type: ignore[type-arg]
) -> None:
    outbound: Outbound = defaultdict(list)
    for tp, records in taken.items():
        for where, leaving in stage(store, contest, tp.partition, records).items():
            outbound[where] += leaving
    offsets = {tp: records[-1].offset + 1 for tp, records in taken.items()}
    async with producer.transaction():
        await send(producer, outbound)
        await producer.send_offsets_to_transaction(offsets, contest.group)
    store.write()


async def run(contest: Contest) -> None:
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    await work(contest, send_batches if contest.variant == "batches" else send_futures, stopped)


def main() -> None:
    # The largest single gain that faces a loop with many short-lived objects.
    gc.set_threshold(100_000, 50, 100)
    asyncio.run(run(from_command_line(VARIANTS)))


if __name__ == "__main__":
    main()
