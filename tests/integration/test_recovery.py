"""Rebuilding stores from their changelogs on a real broker: one consumer for all that open."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from bookstore_streams.errors import StaleRecordError, StoreError
from bookstore_streams.kafka import recovery
from bookstore_streams.kafka.recovery import Reader, Recovery
from bookstore_streams.kafka.rocks import StoreResources
from bookstore_streams.kafka.store import LocalStore
from bookstore_streams.ports import Writes
from bookstore_streams.settings import load
from bookstore_streams.settings.area import BrokerSettings
from bookstore_streams.testing.brokers import Broker

UniqueName = Callable[[str], str]
PARTITIONS = 4
DAY_MS = 86_400_000


class Changelogs:
    """Two changelog topics and a source of an app that exists only here.

    Attributes:
        rows: partition -> table -> what the changelogs say, committed records only.
    """

    def __init__(self, broker: Broker, folder: Path, name: str) -> None:
        self.settings: BrokerSettings = load([], {"BOOKSTORE_BROKER_URL": broker.url}).broker
        self.topics = {table: f"{name}-{table}" for table in ("left", "right")}
        self.source = f"{name}-source"
        self.rows: list[dict[str, dict[bytes, bytes]]] = [
            {table: {} for table in self.topics} for _ in range(PARTITIONS)
        ]
        self.recovery = Recovery(self.settings)
        self._folder = folder
        self._servers = broker.url.removeprefix("kafka://")
        self._resources = StoreResources(8 << 20, 8 << 20)
        self._stores: list[LocalStore] = []

    async def make(self) -> None:
        """Make the topics."""
        admin = AIOKafkaAdminClient(bootstrap_servers=self._servers)
        await admin.start()
        names = (*self.topics.values(), self.source)
        await admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in names])
        await admin.close()

    async def write(self, number: int, count: int, *, is_committed: bool = True) -> None:
        """One transaction of so many rows in each table; every tenth key is deleted again."""
        producer = AIOKafkaProducer(
            bootstrap_servers=self._servers, transactional_id=f"{self.source}-{number}"
        )
        await producer.start()
        try:
            await producer.begin_transaction()
            for table, topic in self.topics.items():
                rows = dict(self.rows[number][table])
                for n in range(count):
                    key = b"%d" % (n % 997)
                    value = None if n % 10 == 9 else b"%s/%d/%d" % (table.encode(), number, n)
                    await producer.send(topic, value, key, partition=number)
                    if value is None:
                        rows.pop(key, None)
                    else:
                        rows[key] = value
                if is_committed:
                    self.rows[number][table] = rows
            await producer.flush()
            await (producer.commit_transaction() if is_committed else producer.abort_transaction())
        finally:
            await producer.stop()

    def store(self, number: int, kind: type[LocalStore] = LocalStore) -> LocalStore:
        """The store of a partition, open until the end of the test."""
        path = self._folder / f"partition-{number}"
        store = kind(path, self.topics, self._resources, expiring={}, trusted_for_ms=DAY_MS)
        self._stores.append(store)
        return store

    @asynccontextmanager
    async def reader(self) -> AsyncIterator[Reader]:
        """As a partition that opens gets it."""
        topics = self.topics.values()
        async with self.recovery.reader(topics, [self.source], PARTITIONS) as reader:
            yield reader

    async def recover(self, store: LocalStore, number: int) -> list[tuple[int, int]]:
        """Recover a partition; what it told of its progress."""
        told: list[tuple[int, int]] = []
        async with self.reader() as reader:
            first = await reader.recover(
                store, self.topics, number, [self.source], lambda *found: told.append(found)
            )
        assert first == {self.source: 0}
        return told

    def found(self, store: LocalStore) -> dict[str, dict[bytes, bytes]]:
        """All rows of a store."""
        return {table: dict(store.scan(table)) for table in self.topics}

    def close(self) -> None:
        """Close what is open."""
        for store in self._stores:
            store.close()


@pytest.fixture
def run(broker: Broker, tmp_path: Path, unique_name: UniqueName) -> Callable[[Any], None]:
    """Run a coroutine function with changelogs of its own."""

    def start(test: Callable[[Changelogs], Any]) -> None:
        async def all_of_it() -> None:
            changelogs = Changelogs(broker, tmp_path, unique_name("changelog"))
            await changelogs.make()
            try:
                await test(changelogs)
            finally:
                changelogs.close()

        asyncio.run(all_of_it())

    return start


def test_partitions_that_open_together_are_rebuilt_by_one_consumer(
    run: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[object] = []

    class Counted(AIOKafkaConsumer):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            made.append(self)

    monkeypatch.setattr(recovery, "AIOKafkaConsumer", Counted)
    monkeypatch.setattr(recovery, "ROWS_MAX", 700)

    async def test(changelogs: Changelogs) -> None:
        await asyncio.gather(*(changelogs.write(n, 2_000) for n in range(PARTITIONS)))
        await changelogs.write(2, 500, is_committed=False)
        stores = [changelogs.store(n) for n in range(PARTITIONS)]
        told = await asyncio.gather(
            *(changelogs.recover(store, n) for n, store in enumerate(stores))
        )
        assert len(made) == 1
        for number, store in enumerate(stores):
            assert changelogs.found(store) == changelogs.rows[number]
            passed = [passed for passed, _ in told[number]]
            assert passed == sorted(passed)
            assert passed[0] == 0
            assert {to_pass for _, to_pass in told[number]} == {passed[-1]}
            assert passed[-1] >= 4_000

    run(test)


def test_a_store_that_is_there_reads_only_what_it_lacks(run: Callable[[Any], None]) -> None:
    async def test(changelogs: Changelogs) -> None:
        rows: list[int] = []

        class Counted(LocalStore):
            def restore(self, writes: Writes, positions: Any) -> None:
                rows.append(sum(map(len, writes.values())))
                super().restore(writes, positions)

        await changelogs.write(1, 1_000)
        store = changelogs.store(1, Counted)
        await changelogs.recover(store, 1)
        assert sum(rows) >= 1_900
        rows.clear()
        await changelogs.write(1, 30)
        told = await changelogs.recover(store, 1)
        assert told[-1][1] < 100
        assert sum(rows) == 60
        assert changelogs.found(store) == changelogs.rows[1]
        told = await changelogs.recover(store, 1)
        assert told[-1][1] <= 2  # markers

    run(test)


def test_one_that_begins_later_disturbs_nobody(
    run: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "ROWS_MAX", 100)

    async def test(changelogs: Changelogs) -> None:
        for number in (0, 3):
            await changelogs.write(number, 3_000)
        begun = asyncio.Event()

        class Told(LocalStore):
            def restore(self, *args: Any) -> None:
                super().restore(*args)
                begun.set()

        first, second = changelogs.store(0, Told), changelogs.store(3)
        async with changelogs.reader() as reader:
            recovering = asyncio.create_task(changelogs.recover(first, 0))
            await begun.wait()
            await changelogs.recover(second, 3)
            await recovering
            assert not reader.is_broken
        assert changelogs.found(first) == changelogs.rows[0]
        assert changelogs.found(second) == changelogs.rows[3]

    run(test)


def test_a_full_disk_of_one_partition_stops_no_other(run: Callable[[Any], None]) -> None:
    class Full(LocalStore):
        def restore(self, writes: Writes, positions: Any) -> None:
            raise StoreError("no space left")

    async def test(changelogs: Changelogs) -> None:
        for number in (0, 1):
            await changelogs.write(number, 1_500)
        good, full = changelogs.store(0), changelogs.store(1, Full)
        failed, _ = await asyncio.gather(
            changelogs.recover(full, 1), changelogs.recover(good, 0), return_exceptions=True
        )
        assert isinstance(failed, StoreError)
        assert changelogs.found(good) == changelogs.rows[0]

    run(test)


def test_a_recovery_that_is_given_up_leaves_the_others_alone(run: Callable[[Any], None]) -> None:
    async def test(changelogs: Changelogs) -> None:
        for number in (0, 1):
            await changelogs.write(number, 3_000)
        kept, lost = changelogs.store(0), changelogs.store(1)
        keeping = asyncio.create_task(changelogs.recover(kept, 0))
        losing = asyncio.create_task(changelogs.recover(lost, 1))
        await asyncio.sleep(0)
        losing.cancel()
        await asyncio.wait([losing])
        lost.close()
        await keeping
        assert changelogs.found(kept) == changelogs.rows[0]

    run(test)


def test_a_store_that_is_ahead_of_its_changelog_is_refused(run: Callable[[Any], None]) -> None:
    async def test(changelogs: Changelogs) -> None:
        await changelogs.write(0, 10)
        store = changelogs.store(0)
        store.apply({}, {"left": 10_000})
        with pytest.raises(StaleRecordError, match="up to offset 10000"):
            await changelogs.recover(store, 0)

    run(test)


def test_a_long_recovery_says_how_far_it_is(
    run: Callable[[Any], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(recovery, "ROWS_MAX", 200)
    monkeypatch.setattr(recovery, "PROGRESS_S", 0.0)
    caplog.set_level(logging.INFO, recovery.__name__)

    async def test(changelogs: Changelogs) -> None:
        await changelogs.write(0, 1_000)
        await changelogs.recover(changelogs.store(0), 0)
        assert "recovering 1 partitions: " in caplog.text
        assert " of 2002 records (" in caplog.text

    run(test)


@pytest.mark.kafka
def test_a_broker_that_ends_in_the_middle_is_an_error_and_no_hang(
    start_broker: Callable[[str], Broker], tmp_path: Path
) -> None:
    broker = start_broker("kafka")

    async def test() -> None:
        changelogs = Changelogs(broker, tmp_path, "gone")
        await changelogs.make()
        await changelogs.write(0, 2_000)
        try:
            async with asyncio.timeout(60):
                async with changelogs.reader() as reader:
                    broker.kill()
                    with pytest.raises(Exception, match=r".+"):
                        await reader.recover(changelogs.store(0), changelogs.topics, 0, [], print)
        finally:
            changelogs.close()

    asyncio.run(test())
