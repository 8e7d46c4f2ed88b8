"""The judgement: what was seen from outside, compared with what the story says must be.

Owns the comparison alone; it asks nobody and knows nothing of how the worker does it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import pairwise
from typing import Any

from bookstore_streams.core.envelope import DLT_REASON, RETRY_ATTEMPT

from .story import DEAD_LETTERS, PAYMENTS, Order, Outcome
from .timeline import Record


@dataclass(slots=True)
class Seen:
    """All that was seen so far.

    Attributes:
        calls: of the provider in order of arrival, as it tells them, finished ones only.
        accounts: order id -> what the provider booked for it.
        records: committed records, those of one partition in their order.
        parked: rows of the parking lot when it was last looked at.
    """

    calls: list[Mapping[str, Any]] = field(default_factory=list)
    accounts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)
    parked: Sequence[Mapping[str, Any]] = ()

    def calls_of(self, order_id: str) -> list[Mapping[str, Any]]:
        """The calls about one order."""
        return [call for call in self.calls if call["order_id"] == order_id]

    def records_of(self, topic: str, order_id: str) -> list[Record]:
        """The records about one order."""
        return [r for r in self.records if r.topic == topic and r.key == order_id]


@dataclass(frozen=True, slots=True)
class Finding:
    """One promise, and whether it was kept.

    Attributes:
        title: what was promised.
        differences: what was found instead; none where it was kept.
    """

    title: str
    differences: tuple[str, ...] = ()

    @property
    def is_kept(self) -> bool:
        """Whether nothing differs."""
        return not self.differences


def findings(orders: Sequence[Order], seen: Seen, *, is_alone: bool) -> list[Finding]:
    """One for the healthy orders, one for each other order, and those about all of them.

    Args:
        orders: of the story.
        seen: what became of them.
        is_alone: whether nobody else sends orders, so that there must be no others.
    """
    healthy = [order for order in orders if order.is_healthy]
    differing = [text for order in healthy for text in _differences(order, seen)]
    found = [
        Finding(f"{len(healthy)} healthy orders: each charged at once, and once", tuple(differing))
    ]
    for order in orders:
        if not order.is_healthy:
            title = f"{order.id}: {order.promise}"
            found.append(Finding(title, tuple(_differences(order, seen))))
    hopeless = max(orders, key=lambda order: len(order.outcome.waits_ms))
    found.append(
        Finding(
            f"orders of the same partition were charged while {hopeless.id} waited",
            tuple(_held_up(orders, hopeless, seen)),
        )
    )
    mine = {order.id for order in orders}
    if is_alone:
        others = {
            *(
                f"{key}: unknown to the story, but the provider knows it"
                for key in seen.accounts
                if key not in mine
            ),
            *(
                f"{r.key}: unknown to the story, but on {r.topic}"
                for r in seen.records
                if r.key not in mine
            ),
        }
        found.append(Finding("no other order was charged, told or given up", tuple(sorted(others))))
    waiting = [row for row in seen.parked if row["key"] in mine]
    found.append(
        Finding(
            "nothing waits any more",
            tuple(f"{row['key']} waits: {row['cause']}" for row in waiting),
        )
    )
    return found


def _differences(order: Order, seen: Seen) -> Iterable[str]:
    """Where what was seen of an order is not its outcome."""
    expected = order.outcome
    calls = seen.calls_of(order.id)
    letters = seen.records_of(DEAD_LETTERS, order.id)
    compared: list[tuple[str, object, object]] = [
        (
            "calls of the provider",
            expected.calls,
            tuple(f"{call['operation']} {call['result']}" for call in calls),
        ),
        (
            "events",
            expected.events,
            tuple(r.document.get("type") for r in seen.records_of(PAYMENTS, order.id)),
        ),
        (
            "dead letters (reason, attempts)",
            expected.letters,
            tuple(
                (r.headers.get(DLT_REASON), int(r.headers.get(RETRY_ATTEMPT, "-1")))
                for r in letters
            ),
        ),
        ("the provider's ledger", *_accounts(order, expected, seen)),
    ]
    for what, wanted, found in compared:
        if wanted != found:
            yield f"{order.id}: {what}: expected {_shown(wanted)}, found {_shown(found)}"
    times = [call["at_ms"] for call in calls]
    for number, (least_ms, (before, after)) in enumerate(
        zip(expected.waits_ms, pairwise(times), strict=False), start=2
    ):
        if after - before < least_ms:
            yield (
                f"{order.id}: attempt {number} came {after - before} ms after the one before,"
                f" expected at least {least_ms} ms"
            )


def _accounts(order: Order, expected: Outcome, seen: Seen) -> tuple[str, str]:
    account = seen.accounts.get(order.id, {})
    wanted = _account(
        expected.charges,
        order.price * expected.charges,
        expected.refunds,
        order.price * expected.refunds,
    )
    found = _account(
        account.get("charges", 0),
        Decimal(account.get("charged", "0")),
        account.get("refunds", 0),
        Decimal(account.get("refunded", "0")),
    )
    return wanted, found


def _account(charges: int, charged: Decimal, refunds: int, refunded: Decimal) -> str:
    taken, given = f"{charged.normalize():f}", f"{refunded.normalize():f}"
    return f"charges {charges} ({taken} in all), refunds {refunds} ({given} in all)"


def _held_up(orders: Sequence[Order], hopeless: Order, seen: Seen) -> Iterable[str]:
    """Healthy orders that came while the hopeless one waited, and were not charged meanwhile."""
    tries = [call["at_ms"] for call in seen.calls_of(hopeless.id)]
    if len(tries) < 2:
        yield f"{hopeless.id} never waited"
        return
    for order in orders:
        if order.is_healthy and order.messages[0].after_ms > hopeless.messages[0].after_ms:
            done = [call["done_ms"] for call in seen.calls_of(order.id) if call["booked"]]
            if not done or done[0] > tries[-1]:
                yield f"{order.id} was not charged before the last attempt of {hopeless.id}"


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    return str(value)
