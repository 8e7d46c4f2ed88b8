"""Letting go: commits what is finished, waits for running handlers, and not for ever."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from bookstore_streams.errors import ConnectionLostError, TransientError
from bookstore_streams.testing.memory import MemoryDisk, until

if TYPE_CHECKING:
    from tests.engine.conftest import World


async def test_what_is_finished_is_committed_before_a_partition_is_given_away(
    world: World,
) -> None:
    worker = await world.start(commit_interval_ms=20_000)
    await world.let_commits_rest(worker, "a1")
    world.send("A", "a2")
    await until(lambda: len(world.ended) == 2)
    assert world.effects() == {"a1": 1}
    await worker.stop()
    assert world.effects() == {"a1": 1, "a2": 1}
    assert world.offset() == 2


async def test_a_running_handler_is_waited_for_and_its_message_committed(world: World) -> None:
    gate = world.gate("a1")
    worker = await world.start(concurrency=1)
    world.send("A", "a1")
    world.send("A", "a2")
    world.send("B", "b1")
    await gate.reached.wait()
    stopping = asyncio.create_task(worker.stop())
    await asyncio.sleep(1)
    assert not stopping.done()
    gate.open()
    await stopping
    assert world.called() == ["a1"]  # nothing new is started
    assert world.effects() == {"a1": 1}
    assert world.offset() == 1


async def test_a_handler_that_does_not_end_is_cancelled_well_before_the_time_is_over(
    world: World,
) -> None:
    world.gate("a1")
    worker = await world.start(shutdown_ms=10_000)
    world.send("A", "a1")
    world.send("B", "b1")
    await world.until_applied("b1")
    begun_ms = world.clock.now_ms()
    await worker.stop()
    assert 3_000 <= world.clock.now_ms() - begun_ms <= 6_000
    assert world.effects() == {"b1": 1}
    assert world.offset() is None
    successor = await world.start()
    await world.until_applied("a1")
    await until(lambda: world.offset() == 2)
    await successor.stop()


async def test_release_is_bounded_although_a_handler_ignores_everything(world: World) -> None:
    async def stubborn(event: Any, context: Any) -> None:
        for _ in range(1_000):
            try:
                await asyncio.sleep(3_600)
            except asyncio.CancelledError:
                continue

    world.scripts["a1"] = [stubborn]
    worker = await world.start(shutdown_ms=10_000)
    worker.backend.faults.hold("commit")
    world.send("B", "b1")
    world.send("A", "a1")
    await until(lambda: len(world.calls) == 2)
    begun_ms = world.clock.now_ms()
    await worker.stop()
    assert world.clock.now_ms() - begun_ms <= 10_000
    assert world.offset() is None


async def test_release_waits_for_the_commit_under_way_and_commits_the_rest(world: World) -> None:
    worker = world.worker()
    hold = worker.backend.faults.hold("commit")
    worker.start()
    world.send("A", "a1")
    await hold.reached.wait()
    world.send("B", "b1")
    await until(lambda: len(world.ended) == 2)
    stopping = asyncio.create_task(worker.stop())
    await asyncio.sleep(0.5)
    hold.let_go()
    await stopping
    assert world.effects() == {"a1": 1, "b1": 1}
    assert world.offset() == 2


async def test_a_running_handler_is_waited_for_although_a_commit_is_under_way(
    world: World,
) -> None:
    worker = world.worker()
    hold = worker.backend.faults.hold("commit")
    gate = world.gate("b1")
    worker.start()
    world.send("A", "a1")
    await hold.reached.wait()
    world.send("B", "b1")
    await gate.reached.wait()
    stopping = asyncio.create_task(worker.stop())
    await asyncio.sleep(0.5)
    hold.let_go()
    gate.open()
    await stopping
    assert world.effects() == {"a1": 1, "b1": 1}
    assert world.offset() == 2


async def test_nothing_is_committed_on_release_after_a_commit_has_failed(world: World) -> None:
    worker = world.worker()
    hold = worker.backend.faults.hold("commit")
    worker.backend.faults.fail("commit", ConnectionLostError("gone"))
    worker.start()
    world.send("A", "a1")
    await hold.reached.wait()
    world.send("B", "b1")
    await until(lambda: len(world.ended) == 2)
    stopping = asyncio.create_task(worker.stop())
    await asyncio.sleep(0.1)
    hold.let_go()
    await stopping
    assert world.effects() == {}
    assert world.offset() is None
    successor = await world.start()
    await world.until_applied("a1", "b1")
    await successor.stop()


async def test_a_key_that_waits_for_an_immediate_attempt_is_left_to_the_next_owner(
    world: World,
) -> None:
    world.scripts["a1"] = [TransientError("no")]
    worker = await world.start(world.consumer(policy={"immediate_attempts": 3}))
    world.send("A", "a1")
    await until(lambda: world.ended)
    await worker.stop()
    await asyncio.sleep(1)
    assert world.called() == ["a1"]
    assert world.offset() is None
    successor = await world.start()
    await world.until_applied("a1")
    await successor.stop()


async def test_a_partition_is_released_while_it_opens(world: World) -> None:
    worker = world.worker()
    hold = worker.backend.faults.hold("recover")
    worker.start()
    await hold.reached.wait()
    await worker.stop()
    successor = await world.start()  # the store was given back
    await successor.stop()


async def test_a_partition_is_released_while_it_waits_to_start_again(world: World) -> None:
    worker = world.worker()
    worker.backend.faults.fail("open", ConnectionLostError("gone"), 100)
    worker.start()
    await until(lambda: worker.engine.status()[0].cause)
    await worker.stop()
    await asyncio.sleep(60)
    assert worker.engine.status() == []


async def test_partitions_are_given_from_worker_to_worker_with_nothing_lost_or_doubled(
    world: World,
) -> None:
    """Scale from one worker to two and back in the middle of a stream, politely."""
    world = type(world)(partitions=4)
    for n in range(40):
        world.scripts[f"m{n}"] = [TransientError("no")] if n % 7 == 0 else []
    first = await world.start(disk=MemoryDisk(), concurrency=2)
    second = world.worker(disk=MemoryDisk(), concurrency=2)
    for n in range(200):
        world.send(f"key-{n % 20}", f"m{n}")
        if n % 50 == 10:
            await first.release([1, 3])
            second.start([1, 3])
        if n % 50 == 35:
            await second.release([1, 3])
            first.start([1, 3])
        await asyncio.sleep(0.01)
    await world.until_applied(*(f"m{n}" for n in range(200)))
    await first.stop()
    await second.stop()
    assert world.effects() == {f"m{n}": 1 for n in range(200)}
    assert sum(world.offset("orders", p) or 0 for p in range(4)) == 200
    assert world.overlaps == []
    for key in range(20):
        order = [f"m{n}" for n in range(key, 200, 20)]
        assert list(dict.fromkeys(world.called(f"key-{key}"))) == order
