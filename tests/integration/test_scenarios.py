"""The seed articles' Kafka scenarios, with the timelines they must show."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from bookstore_streams.testing.brokers import Broker
from tests.chaos.shop import DEAD_LETTERS, ORDERS, PAYMENTS, Shop, Tail, cancelled, placed

TOLERANCE_MS = 300
POLICY = {
    "BOOKSTORE_BILLING_BACKOFF_MS_BASE": "2000",
    "BOOKSTORE_BILLING_BACKOFF_FACTOR": "2",
    "BOOKSTORE_BILLING_JITTER": "none",
    "BOOKSTORE_BILLING_ATTEMPTS_MAX": "3",
}
DOWN = {"status": 503, "body": "maintenance"}


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def assert_timeline(times_ms: list[int], begin_ms: int, expected_s: list[float]) -> None:
    found_s = [(time_ms - begin_ms) / 1000 for time_ms in times_ms]
    assert len(found_s) == len(expected_s), found_s
    for found, expected in zip(found_s, expected_s, strict=True):
        assert abs(found - expected) * 1000 <= TOLERANCE_MS, (found_s, expected_s)


def test_scenario_6_a_failing_order_is_retried_and_given_up_while_its_partition_goes_on(
    broker: Broker, tmp_path: Path
) -> None:
    """Goal: A is charged at 0 s; B fails at 0, 2, 6 s and becomes a dead letter at 6 s.

    Method: more orders of B's own partition arrive all the while; none of them waits.
    """
    asyncio.run(_scenario_6(broker, tmp_path))


async def _scenario_6(broker: Broker, folder: Path) -> None:
    async with Shop(broker, folder, POLICY) as shop, Tail(shop, [PAYMENTS, DEAD_LETTERS]) as tail:
        worker = shop.worker()
        worker.start()
        await shop.warm_up(worker)
        a, b = shop.key_in(2, "A"), shop.key_in(2, "B")
        shop.provider.control.script(b, DOWN, forever=True)

        begin_ms = now_ms()
        value = placed(b)
        await shop.send(a, placed(a), f"{a}/1")
        at = await shop.send(b, value, f"{b}/1", [("shop", b"north"), ("retry-attempt", b"77")])
        others = []
        while now_ms() < begin_ms + 6_500:
            others.append(shop.key_in(2, "other"))
            sent_ms = now_ms()
            await shop.send(others[-1], placed(others[-1]), f"{others[-1]}/1")
            (event,) = await tail.until(PAYMENTS, 1, 5, others[-1])
            assert event.seen_ms - sent_ms <= 500, "another key of the partition had to wait"

        assert_timeline([c["at_ms"] for c in await shop.calls(a)], begin_ms, [0])
        assert_timeline([c["at_ms"] for c in await shop.calls(b)], begin_ms, [0, 2, 6])
        (letter,) = await tail.until(DEAD_LETTERS, 1, 5, b)
        assert_timeline([letter.seen_ms], begin_ms, [6])
        assert (letter.key, letter.event) == (b, value)
        assert letter.headers == {
            "shop": "north",
            "message-id": f"{b}/1",
            "retry-attempt": "3",
            "original-topic-partition-offset": f"{ORDERS} [[2]] @{at.offset}",
            "dlt-exception-type": "TransientError",
            "dlt-exception-message": letter.headers["dlt-exception-message"],
            "dlt-reason": "attempts-exhausted",
        }
        assert "503" in letter.headers["dlt-exception-message"]
        assert len(letter.all_headers) == len(letter.headers), "a header was appended"
        assert len(others) > 10
        (failed,) = await tail.until(PAYMENTS, 1, 5, b)
        assert failed.event["type"] == "PaymentFailed"
        assert await worker.stop() == 0


def test_scenario_7_a_cancellation_waits_behind_its_parked_order(
    broker: Broker, tmp_path: Path
) -> None:
    """Goal: placed (fails), placed (charged), cancelled; another key is handled meanwhile."""
    asyncio.run(_scenario_7(broker, tmp_path))


async def _scenario_7(broker: Broker, folder: Path) -> None:
    async with Shop(broker, folder, POLICY) as shop, Tail(shop, [PAYMENTS, DEAD_LETTERS]) as tail:
        worker = shop.worker()
        worker.start()
        await shop.warm_up(worker)
        order, other = shop.key_in(5, "order"), shop.key_in(5, "other")
        shop.provider.control.script(order, DOWN)

        begin_ms = now_ms()
        await shop.send(order, placed(order), f"{order}/1")
        await shop.send(other, placed(other), f"{other}/1")
        await shop.send(order, cancelled(order), f"{order}/2")
        captured, refunded = await tail.until(PAYMENTS, 2, 10, order)

        calls = await shop.calls(order)
        assert [(c["operation"], c["result"]) for c in calls] == [
            ("charge", "failed:503"),
            ("charge", "booked"),
            ("refund", "booked"),
        ]
        assert_timeline([c["at_ms"] for c in calls], begin_ms, [0, 2, 2])
        assert [captured.event["type"], refunded.event["type"]] == [
            "PaymentCaptured",
            "PaymentRefunded",
        ]
        assert captured.headers["causation-id"] == f"{order}/1"
        assert refunded.headers["causation-id"] == f"{order}/2"
        assert_timeline([c["at_ms"] for c in await shop.calls(other)], begin_ms, [0])
        assert not tail.of(DEAD_LETTERS, order, other)
        assert await worker.stop() == 0
