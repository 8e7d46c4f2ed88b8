"""Passing failures: parking, back-off, immediate attempts, deadlines, and what a restart keeps."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from bookstore_streams.core.policy import Jitter
from bookstore_streams.errors import TransientError
from bookstore_streams.testing.memory import MemoryDisk, until

if TYPE_CHECKING:
    from tests.engine.conftest import World

DOWN = TransientError("provider down")


async def test_a_transient_failure_parks_the_key_and_settles_the_offset(world: World) -> None:
    world.scripts["a1"] = [DOWN]
    worker = await world.start()
    world.send("A", "a1")
    world.send("A", "a2")
    await until(lambda: world.offset() == 2)
    parked = world.parked("A")
    assert parked is not None
    assert (parked.count, parked.attempts, parked.rounds) == (2, 1, 1)
    assert parked.cause == "TransientError: provider down"
    assert parked.due_ms == world.calls[0].at_ms + 2_000
    assert world.outcome("a1") == world.outcome("a2") == "parked"
    await world.until_applied("a1", "a2")
    assert world.outcome("a1") == world.outcome("a2") == "applied"
    assert worker.engine.counters["billing:parked"] == 2
    assert worker.engine.counters["billing:unparked"] == 2
    await worker.stop()


async def test_waits_grow_by_the_factor_up_to_the_bound(world: World) -> None:
    world.scripts["a1"] = [DOWN] * 5
    consumer = world.consumer(policy={"attempts_max": 10, "backoff_ms_max": 9_000})
    worker = await world.start(consumer)
    world.send("A", "a1")
    await world.until_applied("a1")
    assert world.at("a1") == [0, 2_000, 6_000, 14_000, 23_000, 32_000]
    assert world.attempts("a1") == [1, 2, 3, 4, 5, 6]
    await worker.stop()


async def test_a_longer_retry_after_wins_over_the_backoff_and_a_shorter_one_does_not(
    world: World,
) -> None:
    world.scripts["a1"] = [TransientError("slow down", 5_000), TransientError("slow down", 1_000)]
    worker = await world.start(world.consumer(policy={"immediate_attempts": 3}))
    world.send("A", "a1")
    await world.until_applied("a1")
    # Who asks for a wait is not asked again at once, so there is no immediate attempt either.
    assert world.at("a1") == [0, 5_000, 9_000]
    await worker.stop()


async def test_a_retry_after_beyond_every_clock_does_not_stop_the_partition(world: World) -> None:
    world.scripts["a1"] = [TransientError("never again", 10**21)] * 9
    worker = await world.start()
    world.send("A", "a1")
    world.send("B", "b1")
    await world.until_applied("b1")
    await until(lambda: world.outcome("a1"))
    assert world.called("A") == ["a1"]
    await worker.stop()


async def test_a_parked_key_costs_other_keys_no_worker(world: World) -> None:
    for n in range(10):
        world.scripts[f"down-{n}"] = [DOWN]
        world.send(f"key-{n}", f"down-{n}")
    worker = await world.start(concurrency=1)
    await until(lambda: world.offset() == 10)
    world.send("other", "o1")
    await world.until_applied("o1")
    assert world.calls[-1].at_ms - world.calls[0].at_ms < 1_000
    await world.until_applied(*(f"down-{n}" for n in range(10)))
    await worker.stop()


async def test_attempts_are_spent_then_the_message_is_dead_lettered(world: World) -> None:
    world.scripts["a1"] = [DOWN] * 3
    worker = await world.start(world.consumer(policy={"attempts_max": 3}))
    world.send("A", "a1")
    world.send("A", "a2")
    await world.until_applied("a2")
    assert world.attempts("a1") == [1, 2, 3]
    assert world.reasons() == {"a1": "attempts-exhausted"}
    assert world.dead()[0].header("retry-attempt") == "3"
    assert world.called("A") == ["a1", "a1", "a1", "a2"]
    await worker.stop()


async def test_attempts_and_due_time_survive_a_kill_and_a_lost_disk(world: World) -> None:
    world.scripts["a1"] = [DOWN] * 3
    worker = await world.start()
    world.send("A", "a1")
    world.send("A", "a2")
    await until(lambda: world.parked("A"))
    for disk in (world.disk, MemoryDisk()):
        await worker.kill()
        worker = await world.start(disk=disk)
    await world.until_applied("a1", "a2")
    assert world.at("a1") == [0, 2_000, 6_000, 14_000]
    assert world.attempts("a1") == [1, 2, 3, 4]
    await worker.stop()


async def test_a_due_time_that_passed_while_nobody_ran_is_due_at_once(world: World) -> None:
    world.scripts["a1"] = [DOWN]
    worker = await world.start()
    world.send("A", "a1")
    await until(lambda: world.parked("A"))
    await worker.stop()
    await asyncio.sleep(100)
    started_ms = world.clock.now_ms()
    worker = await world.start()
    await world.until_applied("a1")
    assert world.calls[-1].at_ms - started_ms < 50
    await worker.stop()


async def test_a_key_moves_to_another_worker_with_its_attempts_and_due_time(world: World) -> None:
    """A rebalance during a back-off: nothing is lost, attempts and due time are kept."""
    world.scripts["a1"] = [DOWN, DOWN]
    first = await world.start()
    world.send("A", "a1")
    world.send("A", "a2")
    await until(lambda: world.parked("A"))
    await first.release([0])
    second = await world.start(disk=MemoryDisk())
    await world.until_applied("a1", "a2")
    assert world.at("a1") == [0, 2_000, 6_000]
    assert world.attempts("a1") == [1, 2, 3]
    assert world.called("A") == ["a1", "a1", "a1", "a2"]
    await second.stop()
    await first.stop()


async def test_due_keys_are_tried_on_time(world: World) -> None:
    waits = {"a1": 3_000, "b1": 1_500, "c1": 7_777, "d1": 1}
    worker = await world.start(world.consumer(policy={"backoff_ms_base": 1}))
    for message_id, wait_ms in waits.items():
        world.scripts[message_id] = [TransientError("wait", wait_ms)]
        world.send(message_id[0], message_id)
    await world.until_applied(*waits)
    for message_id, wait_ms in waits.items():
        assert wait_ms <= world.at(message_id)[1] <= wait_ms + 1
    await worker.stop()


async def test_a_key_due_while_the_clock_is_set_back_is_still_tried(world: World) -> None:
    world.scripts["a1"] = [DOWN]
    gate = world.gate("b1")
    worker = await world.start(concurrency=1)
    world.send("A", "a1")
    await until(lambda: world.parked("A"))
    world.send("B", "b1")
    await gate.reached.wait()
    await until(lambda: world.clock.now_ms() - world.calls[0].at_ms > 2_500)
    world.clock.shift_ms -= 1_000  # A is due, waits for the one worker, and is not due any more
    gate.open()
    await world.until_applied("a1")
    await worker.stop()


# -- immediate attempts ---------------------------------------------------------------------


async def test_immediate_attempts_come_in_the_lane_then_the_key_is_parked(world: World) -> None:
    world.scripts["a1"] = [DOWN] * 7
    consumer = world.consumer(policy={"immediate_attempts": 2, "attempts_max": 20})
    worker = await world.start(consumer)
    world.send("A", "a1")
    await world.until_applied("a1")
    # Three calls a round, 50 and 100 ms apart; each round starts afresh after its back-off.
    rounds = [0, 2_150, 6_300]
    expected = [start + wait for start in rounds for wait in (0, 50, 150)][:8]
    assert world.at("a1") == expected
    assert world.attempts("a1") == [1, 2, 3, 4, 5, 6, 7, 8]
    await worker.stop()


async def test_no_worker_is_occupied_while_a_key_waits_for_an_immediate_attempt(
    world: World,
) -> None:
    world.scripts["a1"] = [DOWN]
    worker = await world.start(world.consumer(policy={"immediate_attempts": 1}), concurrency=1)
    world.send("A", "a1")
    world.send("B", "b1")
    await world.until_applied("a1", "b1")
    assert world.called() == ["a1", "b1", "a1"]
    assert world.calls[1].at_ms == world.calls[0].at_ms
    await worker.stop()


@pytest.mark.parametrize("is_parked", [False, True], ids=["flowing", "parked"])
async def test_an_arrival_does_not_bring_an_immediate_attempt_forward(
    world: World, is_parked: bool
) -> None:
    world.scripts["a1"] = [DOWN] * (4 if is_parked else 2)
    consumer = world.consumer(
        policy={"immediate_attempts": 2, "attempts_max": 9, "backoff_ms_base": 1_000}
    )
    worker = await world.start(consumer)
    world.send("A", "a1")
    await until(lambda: len(world.calls) == (4 if is_parked else 1))
    world.send("A", "a2")
    world.send("A", "a3")
    await world.until_applied("a1", "a2", "a3")
    if is_parked:
        assert world.at("a1") == [0, 50, 150, 1_150, 1_200]
    else:
        assert world.at("a1") == [0, 50, 150]
    assert list(dict.fromkeys(world.called("A"))) == ["a1", "a2", "a3"]
    assert world.overlaps == []
    await worker.stop()


async def test_immediate_attempts_end_with_their_time(world: World) -> None:
    world.scripts["a1"] = [DOWN] * 4
    consumer = world.consumer(
        policy={"immediate_attempts": 9, "immediate_total_ms_max": 200, "attempts_max": 20}
    )
    worker = await world.start(consumer)
    world.send("A", "a1")
    await world.until_applied("a1")
    assert world.at("a1") == [0, 50, 150, 2_150, 2_200]
    await worker.stop()


async def test_immediate_attempts_count_towards_the_attempts(world: World) -> None:
    world.scripts["a1"] = [DOWN] * 9
    consumer = world.consumer(policy={"immediate_attempts": 9, "attempts_max": 3})
    worker = await world.start(consumer)
    world.send("A", "a1")
    await until(world.dead)
    assert world.at("a1") == [0, 50, 150]
    assert world.dead()[0].header("retry-attempt") == "3"
    assert world.reasons() == {"a1": "attempts-exhausted"}
    await worker.stop()


async def test_a_handler_can_read_both_counts(world: World) -> None:
    seen = []

    async def note(event: Any, context: Any) -> None:
        seen.append((context.attempt, context.attempt_in_round))
        raise DOWN

    world.scripts["a1"] = [note] * 4
    worker = await world.start(world.consumer(policy={"immediate_attempts": 1}))
    world.send("A", "a1")
    await world.until_applied("a1")
    assert seen == [(1, 1), (2, 2), (3, 1), (4, 2)]
    await worker.stop()


# -- jitter ----------------------------------------------------------------------------------


async def test_jitter_is_the_same_on_every_worker(world: World) -> None:
    due: list[int] = []
    for name in ("first", "second"):
        message_id = "a1"
        world.scripts[message_id] = [DOWN]
        consumer = world.consumer(name, policy={"jitter": Jitter.FULL})
        worker = await world.start(consumer, disk=MemoryDisk())
        world.send("A", message_id)
        await world.until_applied(message_id, consumer=consumer.name)
        calls = [call.at_ms for call in world.calls if call.consumer == consumer.name]
        due.append(calls[1] - calls[0])
        await worker.stop()
    assert due[0] == due[1] < 2_000


# -- deadlines ------------------------------------------------------------------------------


def since(event: Any) -> int | None:
    placed: int | None = event.get("placed_ms")
    return placed


async def test_no_wait_goes_past_the_deadline(world: World) -> None:
    world.scripts["a1"] = [DOWN] * 9
    consumer = world.consumer(policy={"deadline_ms": 10_000}, deadline_from=since)
    worker = await world.start(consumer)
    world.send("A", "a1", value={"placed_ms": world.clock.now_ms()})
    await until(world.dead)
    # Attempts at 0, 2 and 6 s; the next one would come at 14 s.
    assert world.at("a1") == [0, 2_000, 6_000]
    assert world.reasons() == {"a1": "deadline-passed"}
    assert world.dead()[0].header("dlt-exception-type") == "TransientError"
    assert world.dead()[0].header("retry-attempt") == "3"
    assert world.dead()[0].timestamp - world.calls[0].at_ms < 6_100
    await worker.stop()


async def test_a_retry_exactly_at_the_deadline_is_made(world: World) -> None:
    world.scripts["a1"] = [DOWN]
    consumer = world.consumer(policy={"deadline_ms": 2_005}, deadline_from=since)
    worker = await world.start(consumer)
    world.send("A", "a1", value={"placed_ms": world.clock.now_ms()})
    await world.until_applied("a1")
    assert world.at("a1") == [0, 2_000]
    await worker.stop()


async def test_no_immediate_attempt_goes_past_the_deadline(world: World) -> None:
    world.scripts["a1"] = [DOWN] * 9
    consumer = world.consumer(
        policy={"deadline_ms": 100, "immediate_attempts": 5}, deadline_from=since
    )
    worker = await world.start(consumer)
    world.send("A", "a1", value={"placed_ms": world.clock.now_ms()})
    await until(world.dead)
    assert world.at("a1") == [0, 50]
    assert world.reasons() == {"a1": "deadline-passed"}
    await worker.stop()


async def test_a_due_head_whose_deadline_has_passed_is_not_called(world: World) -> None:
    world.scripts["a1"] = [DOWN]
    consumer = world.consumer(
        policy={"deadline_ms": 10_000}, deadline_from=since, on_dead_letter=world.hook
    )
    worker = await world.start(consumer)
    world.send("A", "a1", value={"placed_ms": world.clock.now_ms()})
    world.send("A", "a2")
    await until(lambda: world.parked("A"))
    await worker.stop()
    await asyncio.sleep(60)
    worker = await world.start(consumer)
    await world.until_applied("a2")
    assert world.called("A") == ["a1", "a2"]
    assert world.reasons() == {"a1": "deadline-passed"}
    assert world.dead()[0].header("retry-attempt") == "1"
    assert world.dead()[0].header("dlt-exception-message") == "TransientError: provider down"
    assert [letter.reason for letter in world.letters] == ["deadline-passed"]
    await worker.stop()


async def test_a_deadline_that_passes_between_two_immediate_attempts_tells_every_call(
    world: World,
) -> None:
    """The second immediate attempt is due in time, but the only worker is busy until too late."""
    world.scripts["a1"] = [DOWN] * 9
    gate = world.gate("b1")
    consumer = world.consumer(
        policy={"deadline_ms": 3_000, "immediate_attempts": 1, "attempts_max": 9},
        deadline_from=since,
    )
    worker = await world.start(consumer, concurrency=1)
    world.send("A", "a1", value={"placed_ms": world.clock.now_ms()})
    await until(lambda: len(world.calls) == 3)  # 0, 50 and 2,050 ms
    world.send("B", "b1")
    await gate.reached.wait()
    await asyncio.sleep(10)
    gate.open()
    await until(world.dead)
    assert world.reasons() == {"a1": "deadline-passed"}
    assert world.dead()[0].header("retry-attempt") == str(len(world.attempts("a1"))) == "3"
    await worker.stop()


async def test_a_message_without_its_time_has_no_deadline(world: World) -> None:
    world.scripts["a1"] = [DOWN] * 4
    consumer = world.consumer(policy={"deadline_ms": 1}, deadline_from=since)
    worker = await world.start(consumer)
    world.send("A", "a1")
    await world.until_applied("a1")
    await worker.stop()


async def test_a_deadline_that_cannot_be_read_is_a_dead_letter_and_no_stopped_partition(
    world: World,
) -> None:
    def broken(event: Any) -> int | None:
        return int(event["placed_ms"])

    world.scripts["a1"] = [DOWN]
    consumer = world.consumer(policy={"deadline_ms": 10_000}, deadline_from=broken)
    worker = await world.start(consumer)
    world.send("A", "a1", value={"placed_ms": "yesterday"})
    world.send("B", "b1", value={"placed_ms": world.clock.now_ms()})
    await world.until_applied("b1")
    await until(world.dead)
    assert world.reasons() == {"a1": "permanent"}
    await worker.stop()
