"""Billing over a real worker: charges, refunds, retries, dead letters, each exactly once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

from bookstore_streams.testing.brokers import Broker
from tests.chaos.shop import (
    DEAD_LETTERS,
    PAYMENTS,
    Seen,
    Shop,
    Tail,
    WorkerProcess,
    cancelled,
    placed,
    until,
)

POLICY = {
    "BOOKSTORE_BILLING_BACKOFF_MS_BASE": "500",
    "BOOKSTORE_BILLING_BACKOFF_FACTOR": "2",
    "BOOKSTORE_BILLING_JITTER": "none",
    "BOOKSTORE_BILLING_ATTEMPTS_MAX": "3",
    "BOOKSTORE_PAYMENT_TIMEOUT_MS": "1000",
}
DOWN = {"status": 503}
INVALID_CARD = {"status": 402, "body": "invalid card"}


class Counter:
    """A running shop with one worker that is ready, and what it has published."""

    def __init__(self, shop: Shop, tail: Tail, worker: WorkerProcess) -> None:
        self.shop = shop
        self.tail = tail
        self.worker = worker
        self.control = shop.provider.control

    def order(self) -> str:
        """The id of a new order, all of them in one partition."""
        return self.shop.key_in(3, "order")

    async def events(self, order_id: str, count: int) -> list[Seen]:
        return await self.tail.until(PAYMENTS, count, 15, order_id)

    async def letters(self, order_id: str, count: int) -> list[Seen]:
        return await self.tail.until(DEAD_LETTERS, count, 15, order_id)

    async def settled(self) -> None:
        """Return once everything sent is committed, so that what is missing will not come."""
        await until(self._has_no_lag, 15, self.worker.tail)
        await self.tail.to_end()

    async def _has_no_lag(self) -> bool:
        return not await self.shop.lag()


@asynccontextmanager
async def counter(
    broker: Broker, folder: Path, settings: dict[str, str] | None = None, **start: Any
) -> AsyncIterator[Counter]:
    async with (
        Shop(broker, folder, {**POLICY, **(settings or {})}) as shop,
        Tail(shop, [PAYMENTS, DEAD_LETTERS]) as tail,
    ):
        worker = shop.worker()
        worker.start(**start)
        await shop.warm_up(worker)
        yield Counter(shop, tail, worker)
        if worker.is_running():
            assert await worker.stop() == 0


def described(records: list[Seen]) -> list[str]:
    return [r.event["type"] for r in records]


def emitted_id(message_id: str, ordinal: int) -> str:
    name = f"billing\0{message_id}\0{ordinal}".encode()
    return blake2b(name, digest_size=16).hexdigest()


Story = Callable[[Counter], Awaitable[None]]


async def a_captured_payment_tells_the_exact_amount(at: Counter) -> None:
    order = at.order()
    value = placed(order)
    value["lines"] = [
        {"sku": "a", "quantity": 3, "unit_price": "0.1"},
        {"sku": "b", "quantity": 2, "unit_price": "19.99"},
    ]
    await at.shop.send(order, value, f"{order}/1", [("traceparent", TRACE)])
    (event,) = await at.events(order, 1)
    assert at.control.account(order)["charged"] == "40.28"
    (call,) = await at.shop.calls(order)
    assert (call["key"], call["amount"], call["currency"]) == (f"{order}:charge", "40.28", "EUR")
    body = event.event
    assert datetime.fromisoformat(body.pop("occurred_at")).utcoffset() == timedelta(0)
    assert body == {
        "type": "PaymentCaptured",
        "order_id": order,
        "amount": "40.28",
        "currency": "EUR",
    }
    assert event.headers == {
        "message-id": emitted_id(f"{order}/1", 0),
        "causation-id": f"{order}/1",
        "traceparent": TRACE.decode(),
    }


async def a_message_sent_twice_is_handled_once(at: Counter) -> None:
    order = at.order()
    for _ in range(3):
        await at.shop.send(order, placed(order), f"{order}/1")
    await at.events(order, 1)
    await at.shop.send(order, placed(order), f"{order}/1")
    await at.settled()
    assert described(at.tail.of(PAYMENTS, order)) == ["PaymentCaptured"]
    assert not at.tail.of(DEAD_LETTERS, order)
    assert len(await at.shop.calls(order)) == 1


async def a_copy_of_a_dead_letter_is_dropped(at: Counter) -> None:
    order = at.order()
    at.control.script(order, INVALID_CARD, forever=True)
    for _ in range(2):
        await at.shop.send(order, placed(order), f"{order}/1")
    (letter,) = await at.letters(order, 1)
    assert (letter.headers["dlt-reason"], letter.headers["retry-attempt"]) == ("permanent", "1")
    assert "invalid card" in letter.headers["dlt-exception-message"]
    await at.settled()
    (failed,) = at.tail.of(PAYMENTS, order)
    assert (failed.event["type"], failed.event["reason"]) == ("PaymentFailed", "permanent")
    assert len(at.tail.of(DEAD_LETTERS, order)) == 1
    assert len(await at.shop.calls(order)) == 1


async def a_second_placement_of_a_known_order_changes_nothing(at: Counter) -> None:
    order = at.order()
    await at.shop.send(order, placed(order), f"{order}/1")
    await at.shop.send(order, placed(order, price="99.00"), f"{order}/2")
    (letter,) = await at.letters(order, 1)
    assert letter.message_id == f"{order}/2"
    assert letter.headers["dlt-reason"] == "permanent"
    await at.settled()
    assert described(at.tail.of(PAYMENTS, order)) == ["PaymentCaptured"]
    assert at.control.account(order)["charged"] == "12.50"


async def a_second_placement_of_a_failed_order_changes_nothing(at: Counter) -> None:
    order = at.order()
    at.control.script(order, INVALID_CARD)
    await at.shop.send(order, placed(order), f"{order}/1")
    await at.shop.send(order, placed(order), f"{order}/2")
    first, second = await at.letters(order, 2)
    assert [first.message_id, second.message_id] == [f"{order}/1", f"{order}/2"]
    await at.settled()
    assert described(at.tail.of(PAYMENTS, order)) == ["PaymentFailed"]
    assert at.control.account(order)["charges"] == 0


async def a_cancelled_order_is_refunded_once(at: Counter) -> None:
    order = at.order()
    at.control.script(order, DOWN, operation="refund")
    await at.shop.send(order, placed(order), f"{order}/1")
    await at.shop.send(order, cancelled(order), f"{order}/2")
    await at.shop.send(order, cancelled(order), f"{order}/3")
    _, refunded = await at.events(order, 2)
    assert (refunded.event["type"], refunded.event["amount"]) == ("PaymentRefunded", "12.50")
    assert refunded.message_id == emitted_id(f"{order}/2", 0)
    await at.settled()
    assert described(at.tail.of(PAYMENTS, order)) == ["PaymentCaptured", "PaymentRefunded"]
    account = at.control.account(order)
    assert (account["refunds"], account["refunded"]) == (1, "12.50")
    keys = [call["key"] for call in await at.shop.calls(order)]
    assert keys == [f"{order}:charge", f"{order}:refund", f"{order}:refund"]


async def a_cancel_of_an_order_never_charged_emits_nothing(at: Counter) -> None:
    unknown, failed = at.order(), at.order()
    at.control.script(failed, INVALID_CARD, forever=True)
    await at.shop.send(unknown, cancelled(unknown), f"{unknown}/1")
    await at.shop.send(failed, placed(failed), f"{failed}/1")
    await at.shop.send(failed, cancelled(failed), f"{failed}/2")
    await at.events(failed, 1)
    await at.settled()
    assert described(at.tail.of(PAYMENTS, unknown, failed)) == ["PaymentFailed"]
    assert len(at.tail.of(DEAD_LETTERS, unknown, failed)) == 1
    assert not await at.shop.calls(unknown)


async def spent_attempts_end_in_a_dead_letter_and_the_next_message_goes_on(at: Counter) -> None:
    order = at.order()
    at.control.script(order, DOWN, forever=True, operation="charge")
    await at.shop.send(order, placed(order), f"{order}/1")
    await at.shop.send(order, cancelled(order), f"{order}/2")
    (letter,) = await at.letters(order, 1)
    reason, attempts = letter.headers["dlt-reason"], letter.headers["retry-attempt"]
    assert (reason, attempts) == ("attempts-exhausted", "3")
    (failed,) = await at.events(order, 1)
    assert failed.event["reason"] == "attempts-exhausted"
    assert failed.message_id == emitted_id(f"{order}/1", -1)
    await at.settled()
    assert len(await at.shop.calls(order)) == 3


async def a_provider_that_asks_for_a_wait_gets_it(at: Counter) -> None:
    order = at.order()
    at.control.script(order, {"status": 429, "retry_after": 2})
    await at.shop.send(order, placed(order), f"{order}/1")
    await at.events(order, 1)
    first, second = await at.shop.calls(order)
    assert 2_000 <= second["at_ms"] - first["at_ms"] <= 2_300


async def a_shorter_wait_than_the_back_off_changes_nothing(at: Counter) -> None:
    order = at.order()
    at.control.script(order, DOWN, {"status": 503, "retry_after": 0})
    await at.shop.send(order, placed(order), f"{order}/1")
    await at.events(order, 1)
    first, second, third = await at.shop.calls(order)
    assert 500 <= second["at_ms"] - first["at_ms"] <= 800
    assert 1_000 <= third["at_ms"] - second["at_ms"] <= 1_300


async def a_charge_whose_answer_was_lost_is_repeated_and_booked_once(at: Counter) -> None:
    lost, late = at.order(), at.order()
    at.control.script(lost, {"charge_then_reset": True})
    at.control.script(late, {"charge_then_timeout": True})
    for order in (lost, late):
        await at.shop.send(order, placed(order), f"{order}/1")
        await at.events(order, 1)
        assert [c["result"] for c in await at.shop.calls(order)][1:] == ["replayed"]
        assert at.control.account(order)["charges"] == 1
    await at.settled()
    assert described(at.tail.of(PAYMENTS, lost, late)) == ["PaymentCaptured"] * 2


async def no_back_off_is_scheduled_past_the_deadline(at: Counter) -> None:
    order = at.order()
    at.control.script(order, DOWN, forever=True)
    # The deadline is 5 s after the placement; 4.2 s of them are gone, the back-off is 0.5 s.
    old = (datetime.now(UTC) - timedelta(seconds=4.2)).isoformat()
    await at.shop.send(order, placed(order, placed_at=old), f"{order}/1")
    (letter,) = await at.letters(order, 1)
    reason, attempts = letter.headers["dlt-reason"], letter.headers["retry-attempt"]
    assert (reason, attempts) == ("deadline-passed", "2")
    first, last = await at.shop.calls(order)
    assert 500 <= last["at_ms"] - first["at_ms"] <= 800
    assert letter.timestamp - last["at_ms"] <= 500, "the dead letter must come at once"
    (failed,) = await at.events(order, 1)
    assert failed.event["reason"] == "deadline-passed"


TRACE = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
STORIES: list[Story] = [
    a_captured_payment_tells_the_exact_amount,
    a_message_sent_twice_is_handled_once,
    a_copy_of_a_dead_letter_is_dropped,
    a_second_placement_of_a_known_order_changes_nothing,
    a_second_placement_of_a_failed_order_changes_nothing,
    a_cancelled_order_is_refunded_once,
    a_cancel_of_an_order_never_charged_emits_nothing,
    spent_attempts_end_in_a_dead_letter_and_the_next_message_goes_on,
    a_provider_that_asks_for_a_wait_gets_it,
    a_shorter_wait_than_the_back_off_changes_nothing,
    a_charge_whose_answer_was_lost_is_repeated_and_booked_once,
    no_back_off_is_scheduled_past_the_deadline,
]


def test_every_story_of_an_order_ends_as_the_contract_says(broker: Broker, tmp_path: Path) -> None:
    """Goal: what billing does with each kind of order. Method: one worker, all stories at once.

    The stories share a partition, so they also show that none of them holds up another.
    """
    asyncio.run(_tell_all(broker, tmp_path))


async def _tell_all(broker: Broker, folder: Path) -> None:
    async with counter(broker, folder, {"BOOKSTORE_BILLING_DEADLINE_MS": "5000"}) as at:
        told = await asyncio.gather(*(story(at) for story in STORIES), return_exceptions=True)
        failed = {
            story.__name__: result
            for story, result in zip(STORIES, told, strict=True)
            if result is not None
        }
        assert not failed, "\n".join(f"{name}: {result!r}" for name, result in failed.items())


def test_scenario_9_a_message_sent_again_after_a_restart_is_dropped(
    broker: Broker, tmp_path: Path
) -> None:
    asyncio.run(_again_after_restart(broker, tmp_path))


async def _again_after_restart(broker: Broker, folder: Path) -> None:
    async with counter(broker, folder) as at:
        applied, parked, dead = at.order(), at.order(), at.order()
        at.control.script(parked, {"status": 429, "retry_after": 6})
        at.control.script(dead, INVALID_CARD)
        sent = (applied, parked, dead)
        for order in sent:
            await at.shop.send(order, placed(order), f"{order}/1")
        await at.events(applied, 1)
        await at.letters(dead, 1)
        await at.settled()
        for is_wiped in (False, True):
            assert await at.worker.stop() == 0
            if is_wiped:
                at.worker.wipe()
            for order in sent:
                await at.shop.send(order, placed(order), f"{order}/1")
            at.worker.start()
            await at.shop.warm_up(at.worker)
        await at.events(parked, 1)
        await at.settled()
        types = [described(at.tail.of(PAYMENTS, order)) for order in sent]
        assert types == [["PaymentCaptured"], ["PaymentCaptured"], ["PaymentFailed"]]
        assert len(at.tail.of(DEAD_LETTERS, *sent)) == 1
        assert [len(await at.shop.calls(order)) for order in sent] == [1, 2, 1]


@pytest.mark.parametrize("step", ["before-transaction", "after-sends", "after-commit"])
@pytest.mark.parametrize("kind", ["embedded", pytest.param("kafka", marks=pytest.mark.kafka)])
def test_scenario_9_a_crash_between_effect_and_commit_charges_once(
    start_broker: Callable[[str], Broker], tmp_path: Path, kind: str, step: str
) -> None:
    """Goal: booked by the provider, then killed around the commit: once all the same.

    The embedded broker keeps a killed member in its group for as long as it runs, so there the
    broker is restarted before the worker is.
    """
    asyncio.run(_crash_around_commit(start_broker(kind), tmp_path, step))


async def _crash_around_commit(broker: Broker, folder: Path, step: str) -> None:
    async with (
        Shop(broker, folder, POLICY) as shop,
        Tail(shop, [PAYMENTS, DEAD_LETTERS]) as tail,
    ):
        worker, order = shop.worker(), shop.key_in(3, "order")
        worker.start(at=(step, 1))
        await shop.send(order, placed(order), f"{order}/1")
        assert await worker.ended(30) == -9
        assert shop.provider.control.account(order)["charges"] == 1
        if broker.kind == "embedded":
            broker.restart()
        started = time.monotonic()
        worker.start()
        (event,) = await tail.until(PAYMENTS, 1, 30, order)
        await shop.send(order, placed(order), f"{order}/1")
        await until(_has_no_lag(shop), 15, worker.tail)
        await tail.to_end()
        assert described(tail.of(PAYMENTS, order)) == ["PaymentCaptured"]
        assert event.message_id == emitted_id(f"{order}/1", 0)
        expected = ["booked"] if step == "after-commit" else ["booked", "replayed"]
        assert [c["result"] for c in await shop.calls(order)] == expected
        assert shop.provider.control.account(order)["charges"] == 1
        assert time.monotonic() - started < 30
        assert await worker.stop() == 0


def _has_no_lag(shop: Shop) -> Callable[[], Awaitable[bool]]:
    async def has_no_lag() -> bool:
        return not await shop.lag()

    return has_no_lag
