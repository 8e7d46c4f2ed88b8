"""Whatever a handler does becomes an outcome: nothing it raises leaves the engine."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from bookstore_streams.errors import (
    ConnectionLostError,
    PermanentError,
    StoreError,
    TransientError,
    UnitOfWorkError,
)
from bookstore_streams.testing.memory import until

if TYPE_CHECKING:
    from tests.engine.conftest import World


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text for you")


class NotTextError(Exception):
    def __str__(self) -> str:
        return 5  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (ValueError("odd"), "ValueError", "odd"),
        (ValueError(), "ValueError", ""),
        (asyncio.CancelledError(), "CancelledError", ""),
        (SystemExit(3), "SystemExit", "3"),
        (GeneratorExit(), "GeneratorExit", ""),
        (StopIteration(), "RuntimeError", "coroutine raised StopIteration"),
        (AssertionError(), "AssertionError", ""),
        (BaseExceptionGroup("several", [ValueError(), SystemExit()]), "BaseExceptionGroup", None),
        (UnprintableError(), "UnprintableError", "(its text could not be read: RuntimeError)"),
        (NotTextError(), "NotTextError", "(its text could not be read: TypeError)"),
        (ValueError("x" * 5_000), "ValueError", "x" * 1_000),
        (ValueError("\ud800 and \x00"), "ValueError", "\\ud800 and \x00"),
        (PermanentError("card expired"), "PermanentError", "card expired"),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 20 else None,
)
async def test_an_unknown_exception_is_a_dead_letter_and_the_worker_goes_on(
    world: World, error: BaseException, kind: str, text: str | None
) -> None:
    world.scripts["a1"] = [error]
    worker = await world.start(concurrency=1)
    world.send("A", "a1")
    world.send("A", "a2")
    await world.until_applied("a2")
    (letter,) = world.dead()
    assert letter.header("dlt-reason") == "permanent"
    assert letter.header("dlt-exception-type") == kind
    if text is not None:
        assert letter.header("dlt-exception-message") == text
    assert world.called() == ["a1", "a2"]
    await worker.stop()


@pytest.mark.parametrize(
    "error",
    [
        TransientError("later"),
        TimeoutError(),
        ConnectionRefusedError(),
        ConnectionResetError("reset"),
        ConnectionLostError("broker"),
        KeyError("listed by the consumer"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_the_narrow_list_of_passing_exceptions_is_retried(
    world: World, error: Exception
) -> None:
    world.scripts["a1"] = [error]
    worker = await world.start(world.consumer(transient=(LookupError,)))
    world.send("A", "a1")
    await world.until_applied("a1")
    assert world.at("a1") == [0, 2_000]
    assert world.dead() == []
    await worker.stop()


async def test_a_handler_that_raises_before_it_can_be_awaited_is_a_dead_letter(
    world: World,
) -> None:
    calls = []

    def handle(event: Any, context: Any) -> Any:
        calls.append(context.message_id)
        raise ValueError("not even a coroutine")

    worker = await world.start(world.consumer(handle=handle))
    world.send("A", "a1")
    await until(world.dead)
    assert calls == ["a1"]
    assert world.dead()[0].header("dlt-exception-message") == "not even a coroutine"
    await worker.stop()


async def test_a_handler_that_is_no_coroutine_function_is_a_dead_letter(world: World) -> None:
    worker = await world.start(world.consumer(handle=lambda event, context: None))
    world.send("A", "a1")
    await until(world.dead)
    assert world.dead()[0].header("dlt-exception-type") == "TypeError"
    await worker.stop()


async def test_a_call_that_takes_too_long_is_cancelled_and_counts_as_a_timeout(
    world: World,
) -> None:
    gate = world.gate("a1")
    worker = await world.start(world.consumer(handler_timeout_ms=5_000), concurrency=1)
    world.send("A", "a1")
    world.send("B", "b1")
    await until(lambda: world.parked("A"))
    parked = world.parked("A")
    assert parked is not None
    assert parked.cause == "TimeoutError: the handler took longer than 5000 ms"
    assert 7_000 <= parked.due_ms - world.calls[0].at_ms <= 7_500
    assert gate.reached.is_set()
    await world.until_applied("a1", "b1")
    assert world.attempts("a1") == [1, 2]
    await worker.stop()


async def test_a_handler_that_swallows_its_cancellation_and_returns_has_succeeded(
    world: World,
) -> None:
    async def swallow(event: Any, context: Any) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    world.scripts["a1"] = [swallow]
    gate = world.gate("a2")
    worker = await world.start(world.consumer(handler_timeout_ms=1_000), concurrency=1)
    world.send("A", "a1")
    world.send("A", "a2")
    await world.until_applied("a1", "a2")
    # The one worker can be timed out again, and can be stopped.
    assert gate.reached.is_set()
    assert world.attempts("a1") == [1]
    assert world.attempts("a2") == [1, 2]
    await worker.stop()


async def test_a_handler_that_answers_its_cancellation_with_an_error_of_its_own_is_classified(
    world: World,
) -> None:
    async def translate(event: Any, context: Any) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise TransientError("cancelled by somebody") from None

    world.scripts["a1"] = [translate]
    worker = await world.start(world.consumer(handler_timeout_ms=1_000), concurrency=1)
    world.send("A", "a1")
    await world.until_applied("a1")
    assert world.attempts("a1") == [1, 2]
    await worker.stop()


async def test_a_task_that_outlives_its_handler_can_write_and_emit_nothing(world: World) -> None:
    told: list[BaseException] = []
    late = asyncio.Event()
    tasks = []

    async def outlive(context: Any) -> None:
        await late.wait()
        for write in (
            lambda: context.put("effects", b"late", b"1"),
            lambda: context.emit("events", {"late": True}),
        ):
            try:
                write()
            except UnitOfWorkError as error:
                told.append(error)

    async def start(event: Any, context: Any) -> None:
        tasks.append(asyncio.create_task(outlive(context)))

    world.scripts["a1"] = [start]
    worker = await world.start()
    world.send("A", "a1")
    await world.until_applied("a1")
    late.set()
    await asyncio.wait(tasks)
    assert len(told) == 2
    await worker.stop()
    assert world.events() == [{"done": "a1", "by": "billing"}]
    assert b"late" not in world.rows("effects")


async def test_a_row_or_event_that_is_too_large_is_permanent_and_nothing_of_it_is_staged(
    world: World,
) -> None:
    async def put(event: Any, context: Any) -> None:
        context.put("effects", b"small", b"1")
        context.put("effects", b"large", bytes(1_001))

    async def emit(event: Any, context: Any) -> None:
        context.emit("events", "x" * 1_001)

    world.scripts["a1"], world.scripts["b1"] = [put], [emit]
    worker = await world.start(message_bytes_max=1_000)
    world.send("A", "a1")
    world.send("B", "b1")
    await until(lambda: len(world.dead()) == 2)
    assert {r.header("dlt-exception-type") for r in world.dead()} == {"RecordTooLargeError"}
    assert world.rows("effects") == {}
    assert world.events() == []
    await worker.stop()


async def test_a_store_that_cannot_be_read_stops_the_partition_and_condemns_no_message(
    world: World,
) -> None:
    """A damaged disk is not the message's fault: start again, and let it be handled then."""

    async def read(event: Any, context: Any) -> None:
        context.get("effects", b"some row")

    world.scripts["a1"] = [read, read]
    worker = await world.start()
    worker.backend.faults.fail("get effects", StoreError("damaged"))
    world.send("A", "a1")
    await world.until_applied("a1")
    assert world.dead() == []
    await worker.stop()
