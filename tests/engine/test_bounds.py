"""What happens at each bound: stated, safe, and seen."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from bookstore_streams.errors import PermanentError, TransientError
from bookstore_streams.testing.memory import until

if TYPE_CHECKING:
    from tests.engine.conftest import World

LARGE = b'"' + b"x" * 9_000 + b'"'


async def test_a_message_too_large_to_park_is_a_dead_letter_and_its_key_goes_on(
    world: World,
) -> None:
    world.scripts["a1"] = [TransientError("no")]
    worker = await world.start(world.consumer(on_dead_letter=world.hook), row_bytes_max=8_000)
    world.send("A", "a1", value=LARGE)
    world.send("A", "a2")
    await world.until_applied("a2")
    (letter,) = world.dead()
    assert letter.header("dlt-reason") == "permanent"
    assert letter.header("dlt-exception-type") == "RecordTooLargeError"
    assert "TransientError: no" in (letter.header("dlt-exception-message") or "")
    assert letter.header("retry-attempt") == "1"
    assert letter.header("dlt-value-bytes") == str(len(LARGE))
    assert LARGE.startswith(letter.value or b"-")
    assert world.outcome("a1") == "dead-lettered"
    assert world.rows("hooks") == {b"a1": b"permanent"}
    await worker.stop()
    assert world.offset() == 2


async def test_a_follower_too_large_to_park_is_a_dead_letter_with_its_hook_and_the_rest_waits(
    world: World,
) -> None:
    world.scripts["a1"] = [TransientError("no")]
    worker = await world.start(world.consumer(on_dead_letter=world.hook), row_bytes_max=8_000)
    world.send("A", "a1")
    world.send("A", "a2", value=LARGE)
    world.send("A", "a3")
    await world.until_applied("a1", "a3")
    assert world.reasons() == {"a2": "permanent"}
    assert world.dead()[0].header("retry-attempt") == "0"
    assert world.called() == ["a1", "a1", "a3"]
    assert world.rows("hooks") == {b"a2": b"permanent"}
    await worker.stop()
    assert world.rows("parked_messages") == {}


async def test_a_message_too_large_to_park_is_a_dead_letter_although_its_hook_fails(
    world: World,
) -> None:
    """It cannot wait for the hook, so the dead letter goes without."""
    world.scripts["a1"] = [PermanentError("never")]
    world.hook_scripts["a1"] = [ValueError("hook broke")] * 9
    worker = await world.start(world.consumer(on_dead_letter=world.hook), row_bytes_max=8_000)
    world.send("A", "a1", value=LARGE)
    world.send("A", "a2")
    await world.until_applied("a2")
    assert len(world.dead()) == 1
    assert world.outcome("a1") == "dead-lettered"
    assert world.rows("hooks") == {}
    await worker.stop()


async def test_a_dead_letter_too_large_for_its_topic_keeps_the_beginning_of_its_value(
    world: World,
) -> None:
    world.scripts["a1"] = [PermanentError("never")]
    worker = await world.start(row_bytes_max=8_000)
    world.send("A", "a1", value=LARGE, headers=[("content-type", b"json")])
    await until(world.dead)
    (letter,) = world.dead()
    assert letter.header("dlt-value-bytes") == "9002"
    assert letter.header("original-topic-partition-offset") == "orders [[0]] @0"
    assert letter.header("content-type") == "json"
    assert letter.value is not None
    assert LARGE.startswith(letter.value)
    assert len(letter.value) > 7_000
    await worker.stop()


async def test_headers_too_large_for_a_dead_letter_are_left_out_and_ours_kept(
    world: World,
) -> None:
    world.scripts["a1"] = [PermanentError("never")]
    worker = await world.start(row_bytes_max=8_000)
    world.send("A", "a1", headers=[("huge", bytes(9_000))])
    world.send("A", "a2")
    await world.until_applied("a2")
    (letter,) = world.dead()
    assert letter.header("huge") is None
    assert letter.header("dlt-reason") == "permanent"
    await worker.stop()


async def test_a_record_just_small_enough_is_parked_and_one_byte_more_is_not(
    world: World,
) -> None:
    from bookstore_streams.core.parking import message_key
    from bookstore_streams.core.record import pack
    from bookstore_streams.engine.carry_out import ROW_OVERHEAD_BYTES

    headers = [("message-id", b"a1")]
    empty = len(pack("orders", 0, 0, 0, b"A", b'""', headers)) + len(message_key("billing", "A", 0))
    room = 8_000 - ROW_OVERHEAD_BYTES - empty
    worker = await world.start(row_bytes_max=8_000)
    for message_id, key, extra in (("a1", "A", 0), ("b1", "B", 1)):
        world.scripts[message_id] = [TransientError("no")]
        world.send(key, message_id, value=b'"' + b"x" * (room + extra) + b'"')
    await until(lambda: world.offset() == 2)
    assert world.outcome("a1") == "parked"
    assert world.outcome("b1") == "dead-lettered"
    await worker.stop()


async def test_the_backlog_bound_stops_reading_until_there_is_room(world: World) -> None:
    """One slow message at the front: what finishes behind it is in memory until it is passed."""
    gate = world.gate("m0")
    worker = await world.start(backlog_max=5, records_max=1)
    for n in range(8):
        world.send(f"key-{n}", f"m{n}")
    partition = worker.engine.open_partition(0)
    assert partition is not None
    await until(lambda: len(world.calls) == 5)
    await asyncio.sleep(10)
    assert len(world.calls) == 5
    assert partition.backlog == 5
    assert not worker.engine.accepts(0)
    gate.open()
    await world.until_applied(*(f"m{n}" for n in range(8)))
    await until(lambda: world.offset() == 8)
    assert partition.backlog == 0
    assert worker.engine.accepts(0)
    await worker.stop()


async def test_what_finishes_while_a_commit_hangs_is_bounded(world: World) -> None:
    worker = world.worker(commit_messages_max=5, concurrency=2)
    hold = worker.backend.faults.hold("commit")
    for n in range(100):
        world.send(f"key-{n}", f"m{n}")
    worker.start()
    await hold.reached.wait()
    await asyncio.sleep(10)
    assert len(world.ended) < 25
    hold.let_go()
    await world.until_applied(*(f"m{n}" for n in range(100)))
    await worker.stop()


async def test_parked_messages_do_not_count_as_backlog(world: World) -> None:
    for n in range(20):
        world.scripts[f"m{n}"] = [TransientError("no")]
        world.send(f"key-{n}", f"m{n}")
        world.send(f"key-{n}", f"follower-{n}")
    worker = await world.start(backlog_max=5, records_max=2)
    await until(lambda: world.offset() == 40)
    partition = worker.engine.open_partition(0)
    assert partition is not None
    assert partition.backlog == 0
    await world.until_applied(*(f"follower-{n}" for n in range(20)))
    await worker.stop()


async def test_lanes_and_bookkeeping_are_gone_when_everything_is_done(world: World) -> None:
    """Memory is bounded by what is under way, not by the keys ever seen."""
    for n in range(50):
        world.scripts[f"m{n}"] = [TransientError("no")] if n % 2 else [PermanentError("never")]
        world.send(f"key-{n}", f"m{n}")
        world.send(f"key-{n}", f"m{n}")
    worker = await world.start()
    await until(lambda: world.offset() == 100)
    await world.until_applied(*(f"m{n}" for n in range(1, 50, 2)))
    partition: Any = worker.engine.open_partition(0)
    assert partition.backlog == 0
    assert partition._turns._lanes == {"billing": {}}
    assert not any(partition._lot.holds("billing", f"key-{n}") for n in range(50))
    assert len(partition._lot) == 0
    assert partition._turns._in_flight == {}
    assert not partition._busy
    assert not partition._calls._overdue_at
    assert not partition._calls._timed_out
    await worker.stop()


async def test_a_broken_record_too_large_to_wait_behind_a_parked_key_says_that_it_is_broken(
    world: World,
) -> None:
    world.scripts["a1"] = [TransientError("no")]
    worker = await world.start(row_bytes_max=8_000)
    world.send("A", "a1")
    await until(lambda: world.parked("A"))
    world.send("A", "a2", value=b"no json " * 1_000)
    await until(world.dead)
    assert world.reasons() == {"a2": "undecodable"}
    await world.until_applied("a1")
    await worker.stop()


async def test_of_many_keys_due_at_once_only_a_bounded_number_is_in_memory(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an outage every parked key can be due; each that has a lane costs memory."""
    monkeypatch.setattr("bookstore_streams.engine.turns.LANES_MAX", 5)
    monkeypatch.setattr("bookstore_streams.engine.parking_lot.HANDED_OVER_MAX", 2)
    lanes: list[int] = []

    async def look(event: Any, context: Any) -> None:
        await asyncio.sleep(0.05)
        lanes.append(len(partition._turns._lanes["billing"]))

    for n in range(30):
        world.scripts[f"m{n}"] = [TransientError("down"), look]
        world.send(f"key-{n}", f"m{n}")
    worker = await world.start(concurrency=1)
    partition: Any = worker.engine.open_partition(0)
    await world.until_applied(*(f"m{n}" for n in range(30)))
    assert max(lanes) <= 6  # one below the bound, and what is handed over in one go
    assert len(lanes) == 30
    await worker.stop()
