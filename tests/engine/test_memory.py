"""The memory broker keeps what the engine relies on with the real one."""

from __future__ import annotations

import asyncio

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from bookstore_streams.errors import InvariantError, LeaseLostError, StoreError, TransportError
from bookstore_streams.testing.memory import (
    Faults,
    MemoryBackend,
    MemoryBroker,
    MemoryDisk,
    MemoryStore,
    changelog,
)
from bookstore_streams.testing.virtual_time import VirtualClock

HEADERS = [("message-id", b"m1"), ("null", None)]


def values(broker: MemoryBroker, topic: str) -> list[bytes | None]:
    return [record.value for record in broker.read(topic, 0, 0)]


def test_records_get_the_offsets_of_their_partition_in_order() -> None:
    broker = MemoryBroker(partitions=2, now_ms=lambda: 7)
    for number in (0, 1, 0):
        broker.produce("t", b"k", b"v", HEADERS, number)
    assert [record.offset for record in broker.read("t", 0, 0)] == [0, 1]
    (record,) = broker.read("t", 1, 0)
    assert (record.key, record.value, record.timestamp) == (b"k", b"v", 7)
    assert list(record.headers) == HEADERS
    assert [record.offset for record in broker.read("t", 0, 1)] == [1]
    assert len(broker.read("t", 0, 0, records_max=1)) == 1
    assert broker.read("elsewhere", 0, 0) == []


def test_a_key_goes_where_its_hash_says_every_time() -> None:
    broker = MemoryBroker(partitions=8)
    numbers = {broker.produce("t", b"order-1", None).partition for _ in range(5)}
    assert len(numbers) == 1
    assert {broker.produce("t", b"%d" % n, None).partition for n in range(100)} == set(range(8))


def test_an_open_transaction_is_invisible_and_holds_back_what_comes_after_it() -> None:
    broker = MemoryBroker()
    epoch = broker.fence("p")
    broker.produce("t", None, b"before")
    broker.begin("p", epoch)
    broker.send("p", epoch, "t", 0, None, b"inside", [])
    broker.send_offset("p", epoch, "g", "source", 0, 5)
    broker.produce("t", None, b"after")
    assert values(broker, "t") == [b"before"]
    assert broker.end("t", 0) == 1
    assert broker.committed("g", "source", 0) is None
    broker.commit("p", epoch)
    assert values(broker, "t") == [b"before", b"inside", b"after"]
    assert broker.end("t", 0) == 4  # the end of the transaction takes an offset
    assert broker.committed("g", "source", 0) == 5


def test_a_new_producer_aborts_what_the_old_one_has_open_and_refuses_it_from_then_on() -> None:
    broker = MemoryBroker()
    old = broker.fence("p")
    broker.begin("p", old)
    broker.send("p", old, "t", 0, None, b"lost", [])
    broker.send_offset("p", old, "g", "source", 0, 5)
    new = broker.fence("p")
    assert values(broker, "t") == []
    assert broker.end("t", 0) == 2
    assert broker.committed("g", "source", 0) is None
    for call in (
        lambda: broker.begin("p", old),
        lambda: broker.send("p", old, "t", 0, None, b"late", []),
        lambda: broker.send_offset("p", old, "g", "source", 0, 6),
        lambda: broker.commit("p", old),
    ):
        with pytest.raises(LeaseLostError):
            call()
    broker.begin("p", new)
    with pytest.raises(InvariantError):
        broker.begin("p", new)
    broker.commit("p", new)


def test_transactions_of_two_producers_do_not_disturb_each_other() -> None:
    broker = MemoryBroker()
    one, two = broker.fence("one"), broker.fence("two")
    broker.begin("one", one)
    broker.begin("two", two)
    broker.send("one", one, "t", 0, None, b"1", [])
    broker.send("two", two, "t", 0, None, b"2", [])
    broker.commit("two", two)
    assert values(broker, "t") == []  # the first is still open
    broker.fence("one")
    assert values(broker, "t") == [b"2"]


def test_a_topic_takes_records_up_to_its_limit_as_the_client_would_send_them() -> None:
    broker = MemoryBroker()
    builder = DefaultRecordBatchBuilder(
        magic=2, compression_type=0, is_transactional=0, producer_id=-1, producer_epoch=-1,
        base_sequence=-1, batch_size=1,
    )  # fmt: skip
    value = bytes(100_000)
    builder.append(0, 0, b"key", value, HEADERS)
    size = len(builder.build())
    broker.limit("t", size)
    broker.produce("t", b"key", value, HEADERS)
    broker.limit("t", size - 1)
    with pytest.raises(TransportError, match=f"{size} bytes"):
        broker.produce("t", b"key", value, HEADERS)
    assert len(broker.records("t")) == 1


def test_a_store_outlives_its_worker_and_is_open_once() -> None:
    disk, faults = MemoryDisk(), Faults()
    store = MemoryStore(disk.files(0), ["t"], faults)
    store.apply({"t": {b"b": b"1", b"a": b"1", b"ab": b"1"}}, {"t": 3})
    with pytest.raises(StoreError, match="open already"):
        MemoryStore(disk.files(0), ["t"], faults)
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.get("t", b"a")
    again = MemoryStore(disk.files(0), ["t"], faults)
    assert again.position("t") == 3
    assert [key for key, _ in again.scan("t")] == [b"a", b"ab", b"b"]
    assert [key for key, _ in again.scan("t", b"a")] == [b"a", b"ab"]
    assert [key for key, _ in again.scan("t", b"", b"ab")] == [b"ab", b"b"]
    again.apply({"t": {b"a": None}}, {})
    assert again.get("t", b"a") is None
    with pytest.raises(StoreError, match="not declared"):
        again.get("u", b"a")
    again.close()
    disk.wipe(0)
    assert MemoryStore(disk.files(0), ["t"], faults).position("t") == 0


def test_a_write_that_fails_writes_nothing() -> None:
    faults = Faults()
    store = MemoryStore(MemoryDisk().files(0), ["t"], faults)
    faults.fail("apply", StoreError("full"), times=2)
    for _ in range(2):
        with pytest.raises(StoreError, match="full"):
            store.apply({"t": {b"a": b"1"}}, {"t": 1})
    assert store.get("t", b"a") is None
    assert store.position("t") == 0
    store.apply({"t": {b"a": b"1"}}, {"t": 1})


async def test_opening_recovers_committed_rows_only_and_from_where_the_disk_is() -> None:
    clock, broker = VirtualClock(), MemoryBroker()
    epoch = broker.fence("app-0")
    topic = changelog("app", "t")
    broker.begin("app-0", epoch)
    broker.send("app-0", epoch, topic, 0, b"a", b"1", [])
    broker.send("app-0", epoch, topic, 0, b"b", b"1", [])
    broker.commit("app-0", epoch)
    broker.begin("app-0", epoch)
    broker.send("app-0", epoch, topic, 0, b"a", b"never", [])
    progress: list[tuple[int, int]] = []
    backend = MemoryBackend(broker, clock, tables=["t"])
    journal, offsets = await backend.open(0, ["orders"], lambda *each: progress.append(each))
    assert offsets == {"orders": 0}
    assert [journal.store.get("t", key) for key in (b"a", b"b")] == [b"1", b"1"]
    assert progress[-1] == (5, 5)  # two records, an end, a record, an end
    await journal.close()
    progress.clear()
    await backend.open(0, ["orders"], lambda *each: progress.append(each))
    assert progress[-1] == (0, 0)


async def test_a_step_can_be_held_and_fails_as_often_as_it_was_told() -> None:
    faults = Faults()
    hold = faults.hold("commit")
    waiting = asyncio.create_task(faults.reach("commit"))
    await hold.reached.wait()
    await asyncio.sleep(5)
    assert not waiting.done()
    hold.let_go()
    await waiting
    await faults.reach("commit")
    faults.fail("commit", StoreError("once"))
    with pytest.raises(StoreError):
        await faults.reach("commit")
    await faults.reach("commit")
