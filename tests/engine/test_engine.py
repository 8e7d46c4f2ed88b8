"""Opening, breaking and opening again: a partition comes back by itself, whatever stopped it."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from bookstore_streams.errors import ConnectionLostError, StoreError, TransientError
from bookstore_streams.testing.memory import MemoryDisk, until

if TYPE_CHECKING:
    from tests.engine.conftest import World


async def test_a_worker_without_partitions_is_ready(world: World) -> None:
    worker = world.worker()
    worker.start([])
    assert worker.engine.is_ready()
    assert worker.engine.status() == []
    await worker.stop()


async def test_a_partition_takes_records_only_while_it_is_open(world: World) -> None:
    worker = world.worker()
    hold = worker.backend.faults.hold("recover")
    worker.start()
    world.send("A", "a1")
    await hold.reached.wait()
    assert not worker.engine.accepts(0)
    assert not worker.engine.is_ready()
    assert worker.engine.open_partition(0) is None
    hold.let_go()
    await world.until_applied("a1")
    assert worker.engine.accepts(0)
    assert not worker.engine.accepts(1)
    await worker.stop()
    assert not worker.engine.accepts(0)


async def test_progress_of_a_recovery_and_the_cause_of_a_failure_can_be_seen(
    world: World,
) -> None:
    worker = await world.start()
    for n in range(10):
        world.send(f"key-{n}", f"m{n}")
    await world.until_applied(*(f"m{n}" for n in range(10)))
    await worker.stop()
    worker = world.worker(disk=MemoryDisk())
    worker.backend.faults.fail("open", ConnectionLostError("no broker"))
    worker.start()
    await until(lambda: worker.engine.status()[0].cause)
    assert worker.engine.status()[0].cause == "ConnectionLostError: no broker"
    await until(worker.engine.is_ready)
    (status,) = worker.engine.status()
    assert status.cause == ""
    assert status.restored == status.to_restore > 20
    assert worker.engine.get("effects", b"billing/m3") == b"1"
    assert len(list(worker.engine.scan("effects", b"billing/"))) == 10
    assert [key for key, _ in worker.engine.scan("effects", b"", b"billing/m7")] == [
        b"billing/m7", b"billing/m8", b"billing/m9",
    ]  # fmt: skip
    await worker.stop()


async def test_a_recovered_store_knows_what_was_done_and_what_waits(world: World) -> None:
    world.scripts["a1"] = [TransientError("no")]
    worker = await world.start()
    for message_id in ("a1", "a2"):
        world.send("A", message_id)
    world.send("B", "b1")
    await world.until_applied("b1")
    await until(lambda: world.offset() == 3)
    await worker.kill()
    worker = await world.start(disk=MemoryDisk())
    for message_id, key in (("a1", "A"), ("b1", "B"), ("a3", "A")):
        world.send(key, message_id)
    await world.until_applied("a1", "a2", "a3")
    assert world.called("A") == ["a1", "a1", "a2", "a3"]
    assert world.called("B") == ["b1"]
    await worker.stop()


async def test_opening_again_waits_longer_each_time_up_to_a_bound(world: World) -> None:
    tries = []
    worker = world.worker()
    faults = worker.backend.faults

    async def count(step: str) -> None:
        if step == "open":
            tries.append(asyncio.get_running_loop().time())
            raise ConnectionLostError("no broker")

    faults.reach = count  # type: ignore[method-assign]
    worker.start()
    await until(lambda: len(tries) == 9)
    waits = [round(b - a, 3) for a, b in pairwise(tries)]
    assert waits == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]
    await worker.stop()


async def test_a_broker_that_is_away_for_hours_is_found_again(world: World) -> None:
    failures = 1_100  # an hour and a half at 5 s each
    worker = world.worker()
    worker.backend.faults.fail("open", ConnectionLostError("no broker"), failures)
    worker.engine.assign({0: ["orders"]})
    await asyncio.sleep(5.0 * failures)
    assert worker.engine.is_ready()
    worker.start()
    world.send("A", "a1")
    await world.until_applied("a1")
    await worker.stop()


async def test_a_store_that_cannot_be_scanned_at_the_start_is_tried_again(world: World) -> None:
    worker = world.worker()
    worker.backend.faults.fail("scan parked_keys", StoreError("damaged"))
    worker.start()
    world.send("A", "a1")
    await world.until_applied("a1")
    await worker.stop()


@pytest.mark.parametrize(
    "table",
    [
        "inbox",
        "parked_messages",
        "parked_keys",
    ],
)
async def test_a_store_that_cannot_be_read_stops_nothing_for_good(world: World, table: str) -> None:
    """One failed read of an engine table, at the moment at which a parked key comes due."""
    world.scripts["a1"] = [TransientError("no")]
    worker = await world.start()
    world.send("A", "a1")
    world.send("A", "a2")
    await until(lambda: world.offset() == 2)
    worker.backend.faults.fail(f"get {table}", StoreError("damaged"))
    if table == "inbox":
        world.send("B", "b1")
        await world.until_applied("b1")
    await world.until_applied("a1", "a2")
    assert world.called("A") == ["a1", "a1", "a2"]
    await worker.stop()


async def test_a_store_that_cannot_be_read_when_a_record_arrives_starts_the_partition_again(
    world: World,
) -> None:
    """The fetcher hands a batch over and must not be told: it would stop the whole worker."""
    world.scripts["a1"] = [TransientError("no")]
    worker = await world.start()
    world.send("A", "a1")
    await until(lambda: world.parked("A"))
    partition = worker.engine.open_partition(0)
    assert partition is not None
    await worker._stop_feeding()
    worker.backend.faults.fail("get parked_keys", StoreError("damaged"))
    world.send("B", "b1")
    world.send("A", "a2")
    partition.deliver("orders", world.broker.read("orders", 0, 1))
    worker.start([])
    await world.until_applied("a1", "a2", "b1")
    assert world.effects() == {"a1": 1, "a2": 1, "b1": 1}
    await worker.stop()


async def test_rows_of_every_partition_of_this_worker_can_be_read(world: World) -> None:
    world = type(world)(partitions=3)
    worker = await world.start()
    for number in range(3):
        world.send(f"key-{number}", f"m{number}", partition=number)
    await world.until_applied("m0", "m1", "m2")
    assert worker.engine.get("effects", b"billing/m2") == b"1"
    assert worker.engine.get("effects", b"billing/m9") is None
    assert [key for key, _ in worker.engine.scan("effects")] == [
        b"billing/m0", b"billing/m1", b"billing/m2",
    ]  # fmt: skip
    await worker.stop()


async def test_whether_a_parked_key_is_being_tried_can_be_seen(world: World) -> None:
    gate = world.gate("unused")
    world.scripts["a1"] = [TransientError("no"), gate]
    worker = await world.start()
    world.send("A", "a1")
    await until(lambda: world.parked("A"))
    assert not worker.engine.is_running("billing", "A")
    await gate.reached.wait()
    assert worker.engine.is_running("billing", "A")
    assert not worker.engine.is_running("billing", "B")
    assert not worker.engine.is_running("unknown", "A")
    gate.open()
    await world.until_applied("a1")
    assert not worker.engine.is_running("billing", "A")
    await worker.stop()


async def test_declaring_a_consumer_again_replaces_it(world: World) -> None:
    worker = world.worker(world.consumer(), world.consumer(topics=("orders", "payments")))
    assert list(worker.engine.consumers) == ["billing"]
    assert worker.engine.topics == {"orders", "payments"}
    worker.start([])
    await worker.stop()
