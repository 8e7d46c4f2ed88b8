"""G4: who may no longer be the owner makes no call, and can write nothing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from bookstore_streams.errors import LeaseLostError, PermanentError, TransientError
from bookstore_streams.testing.memory import MemoryDisk, until

if TYPE_CHECKING:
    from tests.engine.conftest import World


async def test_without_a_lease_no_call_is_made_until_it_is_back(world: World) -> None:
    worker = await world.start()
    worker.backend.lease_ends_ms = world.clock.now_ms()
    world.send("A", "a1")
    world.send("B", "b1")
    await asyncio.sleep(5)
    assert world.calls == []
    worker.backend.lease_ends_ms = None
    await world.until_applied("a1", "b1")
    assert world.attempts("a1") == world.attempts("b1") == [1]
    await worker.stop()


async def test_without_a_lease_no_dead_letter_hook_is_called_until_it_is_back(
    world: World,
) -> None:
    gate = world.gate("unused")

    async def fail_later(event: Any, context: Any) -> None:
        await gate(event, context)
        raise PermanentError("never")

    world.scripts["a1"] = [fail_later]
    worker = await world.start(world.consumer(on_dead_letter=world.hook))
    world.send("A", "a1")
    await gate.reached.wait()
    worker.backend.lease_ends_ms = world.clock.now_ms()
    gate.open()
    await until(lambda: world.ended)
    await asyncio.sleep(5)
    assert world.letters == []
    worker.backend.lease_ends_ms = None
    await until(world.dead)
    assert len(world.letters) == 1
    assert world.called() == ["a1"]
    await worker.stop()


async def test_a_lease_that_ends_before_an_outside_call_repeats_the_attempt_and_counts_none(
    world: World,
) -> None:
    outside = []
    gate = world.gate("unused")

    async def call(event: Any, context: Any) -> None:
        await gate(event, context)
        context.ensure_lease()
        outside.append(context.attempt)

    world.scripts["a1"] = [call, call]
    worker = await world.start()
    world.send("A", "a1")
    world.send("A", "a2")
    await gate.reached.wait()
    worker.backend.lease_ends_ms = world.clock.now_ms()
    gate.open()
    await until(lambda: world.ended)
    await asyncio.sleep(5)
    assert outside == []
    assert world.called() == ["a1"]
    worker.backend.lease_ends_ms = None
    await world.until_applied("a1", "a2")
    assert outside == [1]
    assert world.called() == ["a1", "a1", "a2"]
    assert world.attempts("a1") == [1, 1]
    assert world.dead() == []
    await worker.stop()


async def test_an_attempt_that_is_repeated_is_given_the_event_as_it_arrived(
    world: World,
) -> None:
    seen = []

    async def change(event: Any, context: Any) -> None:
        seen.append(event.pop("amount", None))
        raise LeaseLostError("gone for a moment")

    async def look(event: Any, context: Any) -> None:
        seen.append(event.pop("amount", None))

    world.scripts["a1"] = [change, look]
    worker = await world.start()
    world.send("A", "a1", value={"amount": 5})
    await world.until_applied("a1")
    assert seen == [5, 5]
    await worker.stop()


async def test_a_lease_that_ends_while_a_key_waits_holds_its_retry_back(world: World) -> None:
    world.scripts["a1"] = [TransientError("no")]
    worker = await world.start()
    world.send("A", "a1")
    await until(lambda: world.parked("A"))
    worker.backend.lease_ends_ms = world.clock.now_ms() + 1_000
    await asyncio.sleep(10)
    assert world.called() == ["a1"]
    worker.backend.lease_ends_ms = None
    await world.until_applied("a1")
    assert world.attempts("a1") == [1, 2]
    await worker.stop()


async def test_a_worker_that_lost_its_partition_without_noticing_can_commit_nothing(
    world: World,
) -> None:
    """A paused process: another worker takes over, then the first one wakes up and goes on."""
    zombie = await world.start(disk=MemoryDisk(), session_timeout_ms=60_000)
    gate = world.gate("a1")
    world.send("A", "a1")
    world.send("B", "b1")
    await gate.reached.wait()
    await world.until_applied("b1")
    rightful = await world.start(disk=MemoryDisk())
    await world.until_applied("a1")
    gate.open()  # the zombie's handler ends, and it tries to commit
    world.send("C", "c1")
    await world.until_applied("c1")
    await until(lambda: zombie.engine.counters["fences"])
    assert world.effects() == {"a1": 1, "b1": 1, "c1": 1}
    assert [event["done"] for event in world.events()] == ["b1", "a1", "c1"]
    assert not zombie.engine.is_ready()  # and it does not fence the rightful owner in turn
    world.send("A", "a2")
    await world.until_applied("a2")
    assert rightful.engine.counters["fences"] == 0
    await zombie.stop()
    await rightful.stop()


async def test_a_fenced_worker_in_the_middle_of_a_commit_leaves_nothing_of_it(
    world: World,
) -> None:
    zombie = await world.start(disk=MemoryDisk(), session_timeout_ms=60_000)
    hold = zombie.backend.faults.hold("commit")  # everything is sent
    world.send("A", "a1")
    await hold.reached.wait()
    rightful = await world.start(disk=MemoryDisk())
    hold.let_go()
    await world.until_applied("a1")
    await until(lambda: zombie.engine.counters["fences"])
    assert world.called() == ["a1", "a1"]
    assert world.effects() == {"a1": 1}
    assert world.events() == [{"done": "a1", "by": "billing"}]
    assert world.offset() == 1
    await zombie.stop()
    await rightful.stop()


async def test_a_fenced_worker_comes_back_by_itself_after_a_session_timeout(
    world: World,
) -> None:
    """When nobody takes the partition away from it, it is the owner again."""
    worker = await world.start(session_timeout_ms=10_000)
    world.broker.fence("app-0")
    world.send("A", "a1")
    await until(lambda: worker.engine.counters["fences"])
    fenced_ms = world.clock.now_ms()
    await until(worker.engine.is_ready)
    assert 9_990 <= world.clock.now_ms() - fenced_ms < 10_100
    await world.until_applied("a1")
    assert world.effects() == {"a1": 1}
    await worker.stop()


async def test_release_without_a_lease_does_not_wait_for_calls_that_will_not_be_made(
    world: World,
) -> None:
    worker = await world.start(shutdown_ms=10_000)
    worker.backend.lease_ends_ms = world.clock.now_ms()
    world.send("A", "a1")
    await asyncio.sleep(1)
    begun_ms = world.clock.now_ms()
    await worker.stop()
    assert world.clock.now_ms() - begun_ms < 1_000
    assert world.calls == []


async def test_a_lease_that_comes_back_while_the_partition_is_released_starts_no_call(
    world: World,
) -> None:
    worker = await world.start(shutdown_ms=10_000)
    worker.backend.lease_ends_ms = world.clock.now_ms()
    world.send("A", "a1")
    await asyncio.sleep(1)
    stopping = asyncio.create_task(worker.stop())
    await asyncio.sleep(0.1)
    worker.backend.lease_ends_ms = None
    await stopping
    assert world.calls == []


async def test_release_right_after_a_lost_lease_neither_waits_nor_calls_again(
    world: World,
) -> None:
    """Between the attempt that was given up and the wait for the lease."""
    worker = await world.start(shutdown_ms=10_000)

    async def lose(event: Any, context: Any) -> None:
        worker.backend.lease_ends_ms = world.clock.now_ms()
        context.ensure_lease()

    world.scripts["a1"] = [lose]
    world.send("A", "a1")
    await until(lambda: world.ended)
    begun_ms = world.clock.now_ms()
    await worker.stop()
    assert world.clock.now_ms() - begun_ms < 1_000
    assert world.called() == ["a1"]
