"""Whether what happened is what must have happened, seen from outside only.

It knows what was sent, what the provider was asked and booked, and what stands on the topics
for readers of committed records. It refuses to look into a worker.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from tests.chaos.load import Order
from tests.chaos.shop import DEAD_LETTERS, PAYMENTS, Seen

# A busy provider notes a call after the worker that made it is known to be dead.
_ARRIVES_LATE_MS = 1_000
# Clocks are one machine's; a reader notices a commit only after it, so a call that began
# later than that was made although its effect was committed.
_BOOKED = {"PaymentCaptured": "charge", "PaymentRefunded": "refund", "PaymentFailed": "charge"}


def judge(
    orders: Iterable[Order],
    records: Sequence[Seen],
    ledger: Mapping[str, Mapping[str, Any]],
    calls: Sequence[Mapping[str, Any]],
    crashes_ms: Sequence[int] = (),
) -> list[str]:
    """What is wrong, one sentence each; empty when every promise was kept.

    Args:
        orders: that were sent.
        records: of payments and dead letters, with the time at which each was seen first.
        ledger: order id -> account.
        calls: of the provider, in order of arrival.
        crashes_ms: when a worker was killed: calls of messages that were not committed by
            then may come again, from the first of them on and in order.
    """
    events: dict[str, list[Seen]] = defaultdict(list)
    letters: dict[str, list[Seen]] = defaultdict(list)
    for record in sorted(records, key=lambda r: (r.topic, r.partition, r.offset)):
        where = {PAYMENTS: events, DEAD_LETTERS: letters}[record.topic]
        where[record.key or ""].append(record)
    calls_of: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for call in calls:
        calls_of[call["order_id"]].append(call)
    wrong: list[str] = []
    known = set()
    for order in orders:
        known.add(order.order_id)
        found = [
            *_wrong_money(order, ledger.get(order.order_id, {})),
            *_wrong_events(order, events[order.order_id]),
            *_wrong_letters(order, letters[order.order_id]),
            *_wrong_calls(order, calls_of[order.order_id], events[order.order_id], crashes_ms),
        ]
        wrong += [f"{order.order_id}: {text}" for text in found]
    wrong += [f"{key}: nobody sent it" for key in (events.keys() | letters.keys()) - known]
    return wrong


def is_complete(orders: Iterable[Order], records: Sequence[Seen]) -> bool:
    """Whether there are at least as many events and dead letters as there must be."""
    counts: dict[tuple[str, str], int] = defaultdict(int)
    for record in records:
        counts[record.topic, record.key or ""] += 1
    return all(
        counts[PAYMENTS, order.order_id] >= len(order.events)
        and counts[DEAD_LETTERS, order.order_id] >= len(order.letters)
        for order in orders
    )


def _wrong_money(order: Order, account: Mapping[str, Any]) -> list[str]:
    found = account.get("charges", 0), account.get("refunds", 0)
    expected = order.charges, order.refunds
    if found != expected:
        return [f"charged and refunded {found} times instead of {expected}"]
    return []


def _wrong_events(order: Order, records: Sequence[Seen]) -> list[str]:
    found = [(r.event["type"], r.headers.get("causation-id", "")) for r in records]
    if found != order.events:
        at = [(r.partition, r.offset) for r in records]
        return [f"events {found} at {at} instead of {order.events}"]
    ids = [r.headers["message-id"] for r in records]
    return [] if len(set(ids)) == len(ids) else [f"events share a message id: {ids}"]


def _wrong_letters(order: Order, records: Sequence[Seen]) -> list[str]:
    found = [
        (r.headers["message-id"], r.headers["dlt-reason"], int(r.headers["retry-attempt"]))
        for r in records
    ]
    return [] if found == order.letters else [f"dead letters {found} instead of {order.letters}"]


def _wrong_calls(
    order: Order,
    calls: Sequence[Mapping[str, Any]],
    events: Sequence[Seen],
    crashes_ms: Sequence[int],
) -> list[str]:
    wrong = []
    for before, after in pairwise(calls):
        went_back = before["operation"] == "refund" and after["operation"] == "charge"
        begin_ms = before["at_ms"] - _ARRIVES_LATE_MS
        if went_back and not any(begin_ms <= t <= after["at_ms"] for t in crashes_ms):
            shown = [(call["at_ms"], call["operation"], call["result"]) for call in calls]
            wrong.append(f"calls went back without a crash in between: {shown}")
    for call in calls:
        if call["key"] != f"{order.order_id}:{call['operation']}":
            wrong.append(f"call {call['seq']} came under the key {call['key']!r}")
    for event in events:
        operation = _BOOKED[event.event["type"]]
        late = [
            call["seq"]
            for call in calls
            if call["operation"] == operation and call["at_ms"] > event.seen_ms
        ]
        if late:
            wrong.append(f"{operation} was called again ({late}) after its effect was committed")
    return wrong
