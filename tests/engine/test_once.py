"""G2: what a message does happens once per consumer and message id, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from bookstore_streams.core.envelope import emitted_id
from bookstore_streams.errors import TransientError
from bookstore_streams.testing.memory import MemoryDisk, until

if TYPE_CHECKING:
    from tests.engine.conftest import World


async def test_the_same_id_twice_in_one_batch_is_handled_once(world: World) -> None:
    for _ in range(2):
        world.send("A", "a1")
    worker = await world.start()
    await until(lambda: world.offset() == 2)
    assert world.called() == ["a1"]
    assert world.effects() == {"a1": 1}
    assert worker.engine.counters["billing:duplicates"] == 1
    await worker.stop()


async def test_the_same_id_after_a_restart_is_handled_once(world: World) -> None:
    worker = await world.start()
    world.send("A", "a1")
    await world.until_applied("a1")
    await worker.stop()
    world.send("A", "a1")
    for disk in (world.disk, MemoryDisk()):  # its own disk, then a wiped one
        worker = await world.start(disk=disk)
        world.send("A", "a1")
        world.send("A", f"last-{id(disk)}")
        await world.until_applied(f"last-{id(disk)}")
        await worker.stop()
    assert world.called().count("a1") == 1
    assert world.effects()["a1"] == 1


async def test_two_keys_with_the_same_id_in_flight_at_once_take_effect_once(world: World) -> None:
    gate = world.gate("x")
    worker = await world.start()
    world.send("A", "x")
    await gate.reached.wait()
    world.send("B", "x")
    world.send("B", "b1")
    world.send("C", "c1")
    await world.until_applied("c1")  # B has been looked at, and waits for what becomes of A's
    assert world.called() == ["x", "c1"]
    gate.open()
    await world.until_applied("x", "b1")
    assert world.called() == ["x", "c1", "b1"]
    assert world.effects() == {"x": 1, "b1": 1, "c1": 1}
    await worker.stop()
    assert world.offset() == 4


async def test_the_copy_under_another_key_of_an_id_that_gets_parked_is_a_duplicate(
    world: World,
) -> None:
    world.scripts["x"] = [TransientError("not yet")]
    for key in ("A", "B", "C"):
        world.send(key, "x")
    worker = await world.start()
    await world.until_applied("x")
    assert [call.key for call in world.calls] == ["A", "A"]
    assert worker.engine.counters["billing:duplicates"] == 2
    await worker.stop()


async def test_the_copy_of_a_message_in_flight_that_arrives_under_a_parked_key_is_dropped(
    world: World,
) -> None:
    world.scripts["b1"] = [TransientError("not yet")]
    worker = await world.start()
    world.send("B", "b1")
    await until(lambda: world.parked("B"))
    gate = world.gate("x")
    world.send("A", "x")
    await gate.reached.wait()
    world.send("B", "x")
    world.send("C", "c1")
    await world.until_applied("c1")
    gate.open()
    await world.until_applied("x", "b1")
    await until(lambda: world.parked("B") is None)
    assert [call.key for call in world.calls if call.message_id == "x"] == ["A"]
    assert world.effects()["x"] == 1
    await worker.stop()


async def test_a_copy_of_a_parked_message_is_a_duplicate_before_and_after_a_restart(
    world: World,
) -> None:
    world.scripts["a1"] = [TransientError("not yet")]
    worker = await world.start()
    world.send("A", "a1")
    await until(lambda: world.parked("A"))
    world.send("A", "a1")
    await until(lambda: world.offset() == 2)
    await worker.kill()
    world.send("A", "a1")
    worker = await world.start()
    await world.until_applied("a1")
    assert world.effects() == {"a1": 1}
    assert world.called() == ["a1", "a1"]
    assert worker.engine.counters["billing:duplicates"] == 1
    await worker.stop()


async def test_each_of_two_consumers_handles_a_message_once(world: World) -> None:
    consumers = [world.consumer("billing"), world.consumer("shipping")]
    worker = await world.start(*consumers)
    for _ in range(2):
        world.send("A", "a1")
    await until(lambda: world.offset() == 2)
    assert sorted(call.consumer for call in world.calls) == ["billing", "shipping"]
    assert world.effects("billing") == world.effects("shipping") == {"a1": 1}
    await worker.stop()


async def test_an_inbox_row_that_has_expired_lets_its_id_in_again(world: World) -> None:
    worker = await world.start(inbox_retention_ms=60_000)
    world.send("A", "a1")
    await world.until_applied("a1")
    world.clock.shift_ms += 59_000
    world.send("A", "a1")
    await until(lambda: world.offset() == 2)
    assert world.effects() == {"a1": 1}
    world.clock.shift_ms += 2_000
    world.send("A", "a1")
    await until(lambda: world.offset() == 3)
    assert world.effects() == {"a1": 2}
    await worker.stop()


async def test_the_copy_of_a_message_that_waits_longer_than_the_inbox_keeps_rows_is_handled_once(
    world: World,
) -> None:
    world.scripts["a1"] = [TransientError("come back later", retry_after_ms=70_000)]
    worker = await world.start(inbox_retention_ms=60_000)
    world.send("A", "a1")
    await until(lambda: world.parked("A"))
    world.clock.shift_ms += 60_001
    world.send("A", "a1")
    await until(lambda: world.offset() == 2)
    await asyncio.sleep(1)  # a clock that is set forward is noticed within a minute
    await world.until_applied("a1")
    await until(lambda: world.parked("A") is None)
    assert world.effects() == {"a1": 1}
    await worker.stop()


async def test_a_second_run_of_a_message_emits_the_same_ids_and_publishes_each_once(
    world: World,
) -> None:
    """Kill the worker after the sends of a commit, and let the next one run the message again."""
    worker = world.worker()
    hold = worker.backend.faults.hold("commit")
    worker.start()
    world.send("A", "a1")
    await hold.reached.wait()
    assert world.events() == []
    await worker.kill()
    worker = await world.start()
    await world.until_applied("a1")
    (event,) = world.broker.records("events")
    assert event.header("message-id") == emitted_id("billing", "a1", 0)
    assert event.header("causation-id") == "a1"
    assert world.called() == ["a1", "a1"]
    assert world.effects() == {"a1": 1}
    await worker.stop()


async def test_what_a_failed_attempt_wrote_and_emitted_is_not_there_for_the_next_one(
    world: World,
) -> None:
    async def write_and_fail(event: object, context: object) -> None:
        context.put("effects", b"left-over", b"1")  # type: ignore[attr-defined]
        context.emit("events", {"left": "over"})  # type: ignore[attr-defined]
        raise TransientError("after writing")

    async def look(event: object, context: object) -> None:
        assert context.get("effects", b"left-over") is None  # type: ignore[attr-defined]

    world.scripts["a1"] = [write_and_fail, look]
    worker = await world.start(world.consumer(policy={"immediate_attempts": 1}))
    world.send("A", "a1")
    await world.until_applied("a1")
    assert b"left-over" not in world.rows("effects")
    assert world.events() == [{"done": "a1", "by": "billing"}]
    await worker.stop()


async def test_a_handler_sees_what_finished_messages_wrote_before_that_is_committed(
    world: World,
) -> None:
    seen = []

    async def look(event: object, context: object) -> None:
        seen.append(context.get("effects", b"billing/a1"))  # type: ignore[attr-defined]

    world.scripts["a2"] = [look]
    worker = world.worker()
    hold = worker.backend.faults.hold("commit")  # the first commit is under way, a1 in it
    worker.start()
    world.send("A", "a1")
    await hold.reached.wait()
    world.send("A", "a2")
    await until(lambda: seen)
    assert seen == [b"1"]
    assert world.effects() == {}
    hold.let_go()
    await world.until_applied("a1", "a2")
    await worker.stop()
