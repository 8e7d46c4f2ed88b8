"""The demo's judgement notices what went wrong, and its timeline says what was seen."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from rich.console import Console

from bookstore_streams.kafka.journal import partition_of
from bookstore_streams.testing.demo.check import Finding, Seen, findings
from bookstore_streams.testing.demo.story import (
    DEAD_LETTERS,
    ORDERS,
    PAYMENTS,
    Order,
    orders,
)
from bookstore_streams.testing.demo.timeline import HOLD_MS, Record, Timeline
from bookstore_streams.testing.demo.view import PlainView, TerminalView, View

START_MS = 1_000_000
PARTITIONS = 4
WHY = "TransientError: payment provider answered 503 to POST /charges for order fails-twice"


def call_of(order: Order, operation: str, result: str, at_ms: int) -> dict[str, Any]:
    return {
        "order_id": order.id,
        "operation": operation,
        "result": result,
        "amount": str(order.price),
        "currency": "EUR",
        "at_ms": at_ms,
        "done_ms": at_ms + 5,
        "booked": result == "booked",
    }


def record_of(
    topic: str, key: str, value: object = None, headers: dict[str, str] | None = None
) -> Record:
    raw = value if isinstance(value, bytes) else orjson.dumps(value)
    return Record(topic, 0, 0, key, raw, headers or {}, START_MS)


def seen_as_expected(story: list[Order]) -> Seen:
    """What a worker without fault leaves behind."""
    seen = Seen()
    accounts: dict[str, dict[str, Any]] = {}
    for order in story:
        expected = order.outcome
        at_ms = START_MS + order.messages[0].after_ms
        for number, text in enumerate(expected.calls):
            operation, _, result = text.partition(" ")
            seen.calls.append(call_of(order, operation, result, at_ms))
            at_ms += expected.waits_ms[number] if number < len(expected.waits_ms) else 0
        for kind in expected.events:
            seen.records.append(record_of(PAYMENTS, order.id, {"type": kind}))
        for reason, attempts in expected.letters:
            headers = {"dlt-reason": reason, "retry-attempt": str(attempts)}
            seen.records.append(record_of(DEAD_LETTERS, order.id, b"{", headers))
        accounts[order.id] = {
            "charges": expected.charges,
            "charged": str(order.price * expected.charges),
            "refunds": expected.refunds,
            "refunded": str(order.price * expected.refunds),
        }
    seen.accounts = accounts
    return seen


def broken(story: list[Order], seen: Seen) -> list[Finding]:
    return [finding for finding in findings(story, seen, is_alone=True) if not finding.is_kept]


def of(seen: Seen, order_id: str) -> dict[str, Any]:
    account: Any = seen.accounts[order_id]
    return dict(account)


def charge_twice(seen: Seen) -> None:
    seen.accounts = {
        **seen.accounts,
        "sent-twice": {**of(seen, "sent-twice"), "charges": 2, "charged": "19.98"},
    }


def lose_an_event(seen: Seen) -> None:
    seen.records = [r for r in seen.records if (r.topic, r.key) != (PAYMENTS, "fails-twice")]


def try_again_too_soon(seen: Seen) -> None:
    seen.calls_of("fails-twice")[1]["at_ms"] -= 1  # type: ignore[index]


def give_up_too_soon(seen: Seen) -> None:
    seen.calls.remove(seen.calls_of("always-fails")[-1])


def refund_before_the_charge(seen: Seen) -> None:
    charge, refund = seen.calls_of("cancelled")[-2:]
    charge["operation"], refund["operation"] = "refund", "charge"  # type: ignore[index]


def dead_letter_twice(seen: Seen) -> None:
    seen.records.append(*seen.records_of(DEAD_LETTERS, "malformed"))


def give_another_reason(seen: Seen) -> None:
    (letter,) = seen.records_of(DEAD_LETTERS, "bad-card")
    seen.records.remove(letter)
    headers = {**letter.headers, "dlt-reason": "attempts-exhausted"}
    seen.records.append(record_of(DEAD_LETTERS, "bad-card", b"{", headers))


def hold_up_another_key(seen: Seen) -> None:
    last = [call for call in seen.calls if call["order_id"].startswith("healthy")][-1]
    last["done_ms"] += 10_000  # type: ignore[index]


def leave_one_waiting(seen: Seen) -> None:
    seen.parked = [{"key": "cancelled", "cause": WHY}]


def charge_a_stranger(seen: Seen) -> None:
    seen.accounts = {**seen.accounts, "nobody": {"charges": 1, "charged": "1"}}


FAULTS = [
    charge_twice,
    lose_an_event,
    try_again_too_soon,
    give_up_too_soon,
    refund_before_the_charge,
    dead_letter_twice,
    give_another_reason,
    hold_up_another_key,
    leave_one_waiting,
    charge_a_stranger,
]


def test_an_outcome_as_the_story_wants_it_passes() -> None:
    story = orders(PARTITIONS)

    assert broken(story, seen_as_expected(story)) == []


def test_nothing_seen_is_no_success() -> None:
    story = orders(PARTITIONS)

    assert len(broken(story, Seen())) >= len([o for o in story if not o.is_healthy])


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_every_fault_is_noticed(fault: Callable[[Seen], None]) -> None:
    story = orders(PARTITIONS)
    seen = seen_as_expected(story)

    fault(seen)

    assert broken(story, seen)


def test_on_a_shared_broker_the_orders_of_others_are_no_fault() -> None:
    story = orders(PARTITIONS)
    seen = seen_as_expected(story)
    seen.records.append(record_of(ORDERS, "somebody-else", {"type": "OrderPlaced"}))
    seen.parked = [{"key": "somebody-else", "cause": WHY}]

    assert all(finding.is_kept for finding in findings(story, seen, is_alone=False))


def test_ids_of_a_run_end_alike_and_healthy_ones_share_the_partition_of_the_hopeless() -> None:
    for partitions in (1, 4, 32):
        story = orders(partitions, "-r1")

        assert all(order.id.endswith("-r1") for order in story)
        assert len({order.id for order in story}) == len(story)
        shared = [o for o in story if o.is_healthy or o.id == "always-fails-r1"]
        assert len(shared) > 5
        assert len({partition_of(o.id.encode(), partitions) for o in shared}) == 1


def parked(due_ms: int, attempts: int, count: int = 1) -> dict[str, Any]:
    return {
        "consumer": "billing",
        "key": "fails-twice",
        "due_ms": due_ms,
        "attempts": attempts,
        "count": count,
        "cause": WHY,
        "state": "waiting",
    }


def told_timeline() -> Timeline:
    timeline = Timeline(START_MS, attempts_max=4, order_columns=12)
    order = next(order for order in orders(PARTITIONS) if order.id == "fails-twice")
    charge = call_of(order, "charge", "failed:503", START_MS + 40)
    timeline.looked([parked(START_MS + 1_040, attempts=1)], START_MS + 100)
    timeline.looked([parked(START_MS + 1_040, attempts=1)], START_MS + 200)
    timeline.looked([parked(START_MS + 1_040, attempts=1, count=3)], START_MS + 300)
    timeline.called(charge)
    timeline.read(record_of(ORDERS, order.id, {"type": "OrderPlaced"}, {"message-id": "1"}))
    timeline.read(record_of(ORDERS, order.id, {"type": "OrderPlaced"}, {"message-id": "1"}))
    timeline.order_begins(order, START_MS)
    return timeline


def test_moments_come_in_order_of_time_however_late_they_were_heard_of() -> None:
    timeline = told_timeline()

    assert timeline.until(START_MS + HOLD_MS - 1) == []
    first = timeline.until(START_MS + HOLD_MS)
    rest = timeline.until(None)

    assert [moment.kind for moment in first] == ["told", "sent", "sent"]
    assert [moment.text for moment in first] == [
        "(the provider will answer 503 twice, then all is well)",
        "OrderPlaced arrives (partition 0)",
        "the same OrderPlaced again, with the same message-id (partition 0)",
    ]
    assert [moment.text for moment in rest] == [
        "charge, attempt 1: the provider answers 503 Service Unavailable",
        f"waits until 1.04 s for attempt 2 of 4, because of {WHY}",
        "2 messages wait behind it, in order",
    ]
    assert timeline.until(None) == []


def test_a_terminal_shows_the_timeline_and_what_waits_at_its_foot() -> None:
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=True, width=80, height=24)
    view: View = TerminalView(console)
    timeline = told_timeline()

    view.waiting("starting")
    view.step("worker", "is up")
    view.begin(timeline)
    row = parked(START_MS + 1_040, attempts=1, count=3) | {"key": "fails-twice\x1b[2J"}
    view.show(timeline.until(None), [row], START_MS + 540)
    view.end()
    view.finding(Finding("as promised", ("not so",)))

    text = shown.getvalue()
    assert "fails-twice" in text
    assert "attempt 2 of 4 in 0.5 s, 2 messages" in text
    assert "waiting 1" in text
    assert "FAIL" in text
    assert "\x1b[2J" not in text, "a key must not steer the terminal"


def test_plain_lines_hold_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    view: View = PlainView()
    timeline = Timeline(START_MS, attempts_max=4, order_columns=12)
    timeline.read(record_of(PAYMENTS, "a\x1b[2Jb", {"type": "Payment\nCaptured"}))

    view.begin(timeline)
    view.show(timeline.until(None), [], START_MS)

    (line,) = capsys.readouterr().out.splitlines()
    assert line.isprintable()
    assert line.startswith("  0.00 s  a")
