"""A rebalance: what stays with a worker stands still while the group decides, then goes on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from bookstore_streams.errors import ConnectionLostError, LeaseLostError, TransientError
from bookstore_streams.testing.memory import MemoryDisk, until

if TYPE_CHECKING:
    from bookstore_streams.testing.memory import MemoryWorker
    from tests.engine.conftest import World


def assign(worker: MemoryWorker, *numbers: int, is_unbroken: bool = True) -> None:
    worker.engine.assign(dict.fromkeys(numbers, worker.engine.topics), is_unbroken=is_unbroken)


def opened(worker: MemoryWorker) -> list[str]:
    """Steps of opening from now on, as they are reached."""
    steps: list[str] = []
    reach = worker.backend.faults.reach

    async def tell(step: str) -> None:
        if step in ("open", "recover", "close"):
            steps.append(step)
        await reach(step)

    worker.backend.faults.reach = tell  # type: ignore[method-assign]
    return steps


async def test_a_partition_that_stays_is_neither_closed_nor_opened(world: World) -> None:
    worker = await world.start()
    world.send("A", "a1")
    await world.until_applied("a1")
    partition, steps = worker.engine.open_partition(0), opened(worker)
    await worker.engine.pause([0])
    assert worker.engine.open_partition(0) is partition
    assign(worker, 0)
    world.send("A", "a2")
    await world.until_applied("a2")
    assert worker.engine.open_partition(0) is partition
    assert steps == []
    assert world.called() == ["a1", "a2"]
    await worker.stop()


async def test_no_handler_starts_while_the_group_decides(world: World) -> None:
    worker = await world.start()
    await worker.engine.pause([0])
    for n in range(100):
        world.send(f"key-{n % 7}", f"m{n}")
    await asyncio.sleep(30)
    assert world.calls == []
    assert world.offset() is None
    assign(worker, 0)
    await world.until_applied(*(f"m{n}" for n in range(100)))
    assert len(world.calls) == 100
    assert world.overlaps == []
    for key in range(7):
        expected = [f"m{n}" for n in range(100) if n % 7 == key]
        assert world.called(f"key-{key}") == expected
    await worker.stop()


async def test_a_running_handler_ends_and_is_committed_before_the_group_is_joined(
    world: World,
) -> None:
    gate = world.gate("a1")
    worker = await world.start(concurrency=1, commit_interval_ms=20_000)
    for message_id, key in (("a1", "A"), ("a2", "A"), ("b1", "B")):
        world.send(key, message_id)
    await gate.reached.wait()
    pausing = asyncio.create_task(worker.engine.pause([0]))
    await asyncio.sleep(1)
    assert not pausing.done()
    gate.open()
    await pausing
    assert world.called() == ["a1"]
    assert world.effects() == {"a1": 1}
    assert world.offset() == 1
    assign(worker, 0)
    await until(lambda: len(world.ended) == 3)
    await worker.stop()
    assert sorted(world.called()) == ["a1", "a2", "b1"]
    assert world.effects() == {"a1": 1, "a2": 1, "b1": 1}


async def test_what_another_worker_gets_is_closed_and_repeated_nowhere(world: World) -> None:
    gate = world.gate("a1")
    first = await world.start()
    world.send("A", "a1")
    await gate.reached.wait()
    pausing = asyncio.create_task(first.engine.pause([0]))
    gate.open()
    await pausing
    world.send("A", "a2")
    second = world.worker(disk=MemoryDisk())
    second.start()  # it may be faster than the worker that had it hears of the decision
    await world.until_applied("a1", "a2")
    assign(first)
    assert first.engine.status() == []
    await until(lambda: world.offset() == 2)
    assert world.called() == ["a1", "a2"]
    assert world.effects() == {"a1": 1, "a2": 1}
    await second.stop()
    assign(first, 0)  # its store was given back
    world.send("A", "a3")
    await world.until_applied("a3")
    assert world.called() == ["a1", "a2", "a3"]
    await first.stop()


async def test_a_handler_that_does_not_end_is_cancelled_and_its_message_handled_again(
    world: World,
) -> None:
    world.gate("a1")
    worker = await world.start(shutdown_ms=10_000)
    world.send("A", "a1")
    world.send("B", "b1")
    await world.until_applied("b1")
    begun_ms = world.clock.now_ms()
    await worker.engine.pause([0])
    assert 4_000 <= world.clock.now_ms() - begun_ms <= 6_000
    assert worker.engine.open_partition(0) is None
    await asyncio.sleep(30)
    assert world.called("A") == ["a1"]
    assign(worker, 0)
    await world.until_applied("a1")
    assert world.called("A") == ["a1", "a1"]
    await worker.stop()


async def test_what_was_not_in_every_generation_is_opened_anew(world: World) -> None:
    """Another worker may have had it in between: what is in memory here may be old."""
    worker = await world.start()
    world.send("A", "a1")
    await world.until_applied("a1")
    await worker.engine.pause([0])
    between = await world.start(disk=MemoryDisk())
    world.send("A", "a2")
    await world.until_applied("a2")
    await between.stop()
    steps = opened(worker)
    assign(worker, 0, is_unbroken=False)
    world.send("A", "a3")
    await world.until_applied("a3")
    assert steps == ["close", "open", "recover"]
    assert world.called() == ["a1", "a2", "a3"]
    await worker.stop()


async def test_a_partition_given_with_other_topics_is_not_gone_on_with(world: World) -> None:
    worker = await world.start()
    await worker.engine.pause([0])
    worker.engine.assign({0: ["elsewhere"]}, is_unbroken=True)
    (status,) = worker.engine.status()
    assert not status.is_ready
    assert "elsewhere" in status.cause
    await worker.stop()


@pytest.mark.parametrize("step", ["open", "recover"])
async def test_what_is_opening_is_not_opened_before_the_group_has_decided(
    world: World, step: str
) -> None:
    worker = world.worker()
    hold = worker.backend.faults.hold(step)
    worker.start()
    await hold.reached.wait()
    steps = opened(worker)
    await worker.engine.pause([0])
    hold.let_go()
    await asyncio.sleep(30)
    assert worker.engine.open_partition(0) is None
    assert "open" not in steps
    world.send("A", "a1")
    assign(worker, 0)
    await world.until_applied("a1")
    await worker.stop()


async def test_what_breaks_meanwhile_is_not_opened_before_the_group_has_decided(
    world: World,
) -> None:
    worker = await world.start(commit_interval_ms=20_000)
    await world.let_commits_rest(worker, "a1")
    world.send("A", "a2")
    await until(lambda: len(world.ended) == 2)
    steps = opened(worker)
    worker.backend.faults.fail("commit", ConnectionLostError("no broker"))
    await worker.engine.pause([0])
    await asyncio.sleep(30)
    assert steps == ["close"]
    assert worker.engine.status()[0].cause == "ConnectionLostError: no broker"
    assign(worker, 0)
    await world.until_applied("a2")
    assert world.effects() == {"a1": 1, "a2": 1}
    await worker.stop()


async def test_what_breaks_while_it_stands_still_is_not_opened_before_the_decision(
    world: World,
) -> None:
    worker = await world.start()
    partition = worker.engine.open_partition(0)
    assert partition is not None
    await worker.engine.pause([0])
    steps = opened(worker)
    partition.deliver("a topic that it does not have", [])
    await asyncio.sleep(30)
    assert steps == ["close"]
    assert worker.engine.status()[0].cause
    world.send("A", "a1")
    assign(worker, 0)
    await world.until_applied("a1")
    assert world.called() == ["a1"]
    await worker.stop()


async def test_a_parked_key_that_comes_due_meanwhile_is_tried_as_soon_as_it_goes_on(
    world: World,
) -> None:
    world.scripts["a1"] = [TransientError("no")]
    worker = await world.start()
    for message_id in ("a1", "a2"):
        world.send("A", message_id)
    await until(lambda: (parked := world.parked("A")) is not None and parked.count == 2)
    begun_ms = world.clock.now_ms()
    await worker.engine.pause([0])
    await asyncio.sleep(10)
    assert world.called() == ["a1"]
    assign(worker, 0)
    await world.until_applied("a1", "a2")
    assert world.called() == ["a1", "a1", "a2"]
    assert world.calls[1].at_ms - begun_ms <= 10_100
    await worker.stop()


async def test_a_parked_key_keeps_its_due_time_through_a_rebalance(world: World) -> None:
    world.scripts["a1"] = [TransientError("no")]
    worker = await world.start()
    world.send("A", "a1")
    await until(lambda: world.parked("A") is not None)
    await worker.engine.pause([0])
    assign(worker, 0)
    await world.until_applied("a1")
    assert world.at("a1") == [0, 2_000]
    await worker.stop()


async def test_a_retry_within_the_lane_waits_too(world: World) -> None:
    world.scripts["a1"] = [TransientError("no")]
    consumer = world.consumer(policy={"immediate_attempts": 2, "backoff_ms_base": 500})
    worker = await world.start(consumer)
    world.send("A", "a1")
    await until(lambda: len(world.ended) == 1)
    await worker.engine.pause([0])
    await asyncio.sleep(10)
    assert world.attempts("a1") == [1]
    assign(worker, 0)
    await world.until_applied("a1")
    assert world.attempts("a1") == [1, 2]
    await worker.stop()


async def test_a_handler_that_waits_for_the_lease_starts_only_after_the_decision(
    world: World,
) -> None:
    """Heartbeats are answered while the group rebalances: the lease alone would let it go."""
    worker = await world.start()
    worker.backend.lease_ends_ms = 0
    world.send("A", "a1")
    await asyncio.sleep(1)
    await worker.engine.pause([0])
    worker.backend.lease_ends_ms = None
    await asyncio.sleep(10)
    assert world.calls == []
    assign(worker, 0)
    await world.until_applied("a1")
    assert world.called() == ["a1"]
    await worker.stop()


async def test_a_running_handler_may_make_its_call_while_it_is_waited_for(world: World) -> None:
    made: list[str] = []
    reached = asyncio.Event()

    async def call_late(event: Any, context: Any) -> None:
        reached.set()
        await asyncio.sleep(1)
        context.ensure_lease()
        made.append(context.message_id)

    world.scripts["a1"] = [call_late]
    worker = await world.start()
    world.send("A", "a1")
    await reached.wait()
    await worker.engine.pause([0])
    assert made == ["a1"]
    assert world.effects() == {"a1": 1}
    await worker.stop()


async def test_several_rebalances_in_a_row_lose_and_repeat_nothing(world: World) -> None:
    worker = await world.start()
    for n in range(300):
        world.send(f"key-{n % 5}", f"m{n}")
        if n % 30 == 29:
            await asyncio.sleep(0.01)
            await worker.engine.pause([0])
            assign(worker, 0, is_unbroken=n % 60 != 59)
    await world.until_applied(*(f"m{n}" for n in range(300)))
    assert set(world.effects().values()) == {1}
    assert sorted(world.called()) == sorted(f"m{n}" for n in range(300))
    await worker.stop()


async def test_a_stop_while_the_group_decides_closes_everything(world: World) -> None:
    worker = await world.start()
    world.send("A", "a1")
    await world.until_applied("a1")
    await worker.engine.pause([0])
    await worker.stop()
    successor = await world.start()
    world.send("A", "a2")
    await world.until_applied("a2")
    assert world.called() == ["a1", "a2"]
    await successor.stop()


async def test_what_is_given_back_while_it_is_still_being_closed_waits_for_that(
    world: World,
) -> None:
    worker = await world.start()
    hold = worker.backend.faults.hold("close")
    await worker.engine.pause([0])
    assign(worker)
    await hold.reached.wait()
    steps = opened(worker)
    assign(worker, 0)
    await asyncio.sleep(5)
    assert steps == []
    hold.let_go()
    await until(worker.engine.is_ready)
    await worker.stop()


async def test_a_wrong_claim_of_no_gap_ends_at_the_fence(world: World) -> None:
    """Who was fenced while it stood still commits nothing, whatever it was told."""
    worker = await world.start(session_timeout_ms=10_000)
    world.send("A", "a1")
    await world.until_applied("a1")
    await worker.engine.pause([0])
    world.broker.fence("app-0")
    assign(worker, 0)
    world.send("A", "a2")
    await until(lambda: worker.engine.status()[0].cause)
    assert LeaseLostError.__name__ in worker.engine.status()[0].cause
    await world.until_applied("a2")
    assert world.effects() == {"a1": 1, "a2": 1}
    await worker.stop()


async def test_a_release_waits_for_one_that_is_under_way(world: World) -> None:
    """SIGTERM while the group takes partitions away: the group must not go on before the end."""
    gate = world.gate("a1")
    worker = await world.start()
    world.send("A", "a1")
    await gate.reached.wait()
    stopping = asyncio.create_task(worker.engine.release_all())
    await asyncio.sleep(0.01)
    others = [
        asyncio.create_task(worker.engine.release([0])),
        asyncio.create_task(worker.engine.pause([0])),
    ]
    await asyncio.sleep(1)
    assert not any(task.done() for task in (stopping, *others))
    gate.open()
    await asyncio.gather(stopping, *others)
    assert world.effects() == {"a1": 1}
    assert world.offset() == 1


async def test_a_worker_that_stops_takes_nothing_any_more(world: World) -> None:
    worker = await world.start()
    stopping = asyncio.create_task(worker.engine.release_all())
    await asyncio.sleep(0)
    assign(worker, 0)
    await stopping
    assign(worker, 0)
    assert worker.engine.status() == []
    await worker.stop()
