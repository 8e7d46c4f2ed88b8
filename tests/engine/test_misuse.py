"""Mistakes in the app's own code: each costs its message, and never the partition."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from bookstore_streams.errors import ConnectionLostError, LeaseLostError, TransientError
from bookstore_streams.testing.memory import until

if TYPE_CHECKING:
    from tests.engine.conftest import World


@pytest.mark.parametrize(
    "retry_after",
    [
        5_000.5,
        -1,
        float("nan"),
        True,
        "5000",
        float("inf"),
        Decimal(5_000),
        object(),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_a_wait_that_is_no_number_of_ms_stops_nothing(world: World, retry_after: Any) -> None:
    world.scripts["a1"] = [TransientError("busy", retry_after)] * 9
    worker = await world.start(world.consumer(policy={"attempts_max": 2}))
    world.send("A", "a1")
    world.send("B", "b1")
    await world.until_applied("b1")
    await until(world.dead)
    assert len(world.attempts("a1")) <= 2
    await worker.stop()


@pytest.mark.parametrize(
    "since",
    [
        1.5,
        float("nan"),
        float("inf"),
        "yesterday",
        b"",
        pytest.param(datetime(2026, 1, 1, tzinfo=UTC)),
        object(),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_a_deadline_that_counts_from_no_time_stops_nothing(world: World, since: Any) -> None:
    world.scripts["a1"] = [TransientError("busy")] * 9
    consumer = world.consumer(
        policy={"deadline_ms": 10_000, "attempts_max": 2}, deadline_from=lambda event: since
    )
    worker = await world.start(consumer)
    world.send("A", "a1")
    await until(world.dead)
    assert len(world.attempts("a1")) <= 2
    await worker.stop()


@pytest.mark.parametrize(
    "write",
    [
        pytest.param(lambda context: context.put("effects", "text", b"1")),
        pytest.param(lambda context: context.put("effects", b"key", "text")),
        pytest.param(lambda context: context.put("no such table", b"key", b"1")),
        lambda context: context.put("effects", b"key", 5),
        lambda context: context.emit("events", {"n": object()}),
        lambda context: context.emit("events", {"n": 1}, key=5),
    ],
    ids=["key", "value", "table", "number", "event", "event key"],
)
async def test_what_cannot_be_written_is_refused_where_it_is_staged(
    world: World, write: Any
) -> None:
    async def attempt(event: Any, context: Any) -> None:
        write(context)

    world.scripts["a1"] = [attempt] * 9
    worker = await world.start()
    world.send("A", "a1")
    world.send("B", "b1")
    await world.until_applied("b1")
    await until(world.dead)
    assert world.called("A") == ["a1"]
    assert world.reasons() == {"a1": "permanent"}
    await worker.stop()


async def test_a_handler_that_swallows_one_cancellation_is_cancelled_again(world: World) -> None:
    swallowed: list[int] = []

    async def stubborn(event: Any, context: Any) -> None:
        while len(swallowed) < 3:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                swallowed.append(world.clock.now_ms())
        await asyncio.Event().wait()

    world.scripts["a1"] = [stubborn]
    worker = await world.start(world.consumer(handler_timeout_ms=1_000), concurrency=1)
    world.send("A", "a1")
    world.send("B", "b1")
    await world.until_applied("a1", "b1")
    assert world.attempts("a1") == [1, 2]
    await worker.stop()


async def test_an_app_that_cannot_be_closed_cleanly_is_released_all_the_same(
    world: World,
) -> None:
    worker = await world.start()
    worker.backend.faults.fail("close", ConnectionLostError("gone"))
    world.send("A", "a1")
    await world.until_applied("a1")
    await worker.stop()
    assert world.offset() == 1
    successor = await world.start()
    await successor.stop()


async def test_a_copy_that_arrives_after_the_inbox_row_of_a_waiting_message_is_gone_is_dropped(
    world: World,
) -> None:
    """Broker and store drop old inbox rows by themselves; what waits must not run twice for it."""
    world.scripts["a1"] = [TransientError("come back later", 70_000)]
    worker = await world.start()
    world.send("A", "a1")
    await until(lambda: world.parked("A"))
    world.disk.files(0).tables["inbox"].clear()
    world.send("A", "a1")
    await until(lambda: world.offset() == 2)
    await asyncio.sleep(100)
    assert world.parked("A") is None
    assert world.effects() == {"a1": 1}
    await worker.stop()


async def test_a_handler_that_says_its_lease_is_gone_for_ever_can_be_seen(world: World) -> None:
    """The lease holds, so this is a mistake; at least it must not be a silent one."""
    world.scripts["a1"] = [LeaseLostError("mine")] * 1_000
    worker = await world.start()
    world.send("A", "a1")
    await asyncio.sleep(20)
    seen = {name: count for name, count in worker.engine.counters.items() if count}
    assert set(seen) - {"commits"} != set()
    await worker.stop()
