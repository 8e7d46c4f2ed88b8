"""The story: which orders come when, what the provider is told to do, and what must come of it.

Owns what is sent and the outcome that is expected, as values. Refuses to send anything and to
look at what happened.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, Literal

import orjson

from bookstore_streams.core.events import (
    Event,
    OrderCancelled,
    OrderLine,
    OrderPlaced,
    to_document,
)
from bookstore_streams.kafka.journal import partition_of

ORDERS: Final = "bookstore.orders"
PAYMENTS: Final = "bookstore.payments"
DEAD_LETTERS: Final = "bookstore.orders.billing.dlt"
CURRENCY: Final = "EUR"

_CUT_SHORT: Final = b'{"type": "OrderPlaced", "order_id": "malf'


@dataclass(frozen=True, slots=True)
class Message:
    """One message of an order.

    Attributes:
        after_ms: when it is sent, counted from the start of the story.
        what: an `OrderPlaced`, an `OrderCancelled`, or bytes that are no JSON.
        id: of the message; two with the same id are the same message sent twice.
    """

    after_ms: int
    what: Literal["place", "cancel", "garbage"]
    id: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What must have become of an order, no more and no less.

    Attributes:
        calls: of the provider in order of arrival, as `operation result`.
        waits_ms: the least time between each of these calls and the next; a shorter tuple
            says nothing about the later ones.
        charges: times that money was taken; the whole price each time.
        refunds: times that it was given back.
        events: types on `bookstore.payments`, in order.
        letters: dead letters in order, as (reason, attempts made).
    """

    calls: tuple[str, ...] = ()
    waits_ms: tuple[int, ...] = ()
    charges: int = 0
    refunds: int = 0
    events: tuple[str, ...] = ()
    letters: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Order:
    """An order of the story.

    Attributes:
        id: its key on every topic.
        intro: what is special about it, for the reader; empty for one that is not.
        price: of the one book in it.
        messages: in the order in which they are sent.
        steps: what the provider is told to do with the order's charges, one a call.
        forever: whether it goes on with the last step instead of being well afterwards.
        promise: what must become of it, in words.
        outcome: the same, to be compared.
    """

    id: str
    intro: str
    price: Decimal
    messages: tuple[Message, ...]
    steps: tuple[Mapping[str, Any], ...]
    forever: bool
    promise: str
    outcome: Outcome

    @property
    def is_healthy(self) -> bool:
        """Whether nothing is wrong with it."""
        return not self.intro

    def value(self, message: Message, now_ms: int) -> bytes:
        """The bytes of one of its messages, sent now."""
        event: Event
        match message.what:
            case "garbage":
                return _CUT_SHORT
            case "cancel":
                event = OrderCancelled(self.id, "changed-mind", now_ms)
            case "place":
                line = OrderLine("book-1", 1, self.price)
                event = OrderPlaced(self.id, "customer-1", CURRENCY, (line,), now_ms)
        return orjson.dumps(to_document(event))


CHARGED: Final = Outcome(calls=("charge booked",), charges=1, events=("PaymentCaptured",))

# Healthy orders arrive before, between and after the others, and the last of them well before
# the one that fails for ever is given up (7 s after its own arrival).
_HEALTHY_MS: Final = (0, 1_200, 2_400, 4_200, 5_400, 6_600, 7_800)


def orders(partitions: int, suffix: str = "") -> list[Order]:
    """The story's orders; waits and attempts are those of the profile `demo`.

    Every healthy order has a key of the same partition as the one that fails for ever, so that
    they show that a partition goes on while one of its keys waits.

    Args:
        partitions: of `bookstore.orders`.
        suffix: ends every order id, to tell the orders of one run from those of another.
    """
    hopeless = f"always-fails{suffix}"
    partition = partition_of(hopeless.encode(), partitions)
    numbered = (f"healthy-{number}{suffix}" for number in itertools.count(1))
    ids = (key for key in numbered if partition_of(key.encode(), partitions) == partition)
    healthy = [
        _order(key, "", "12.50", [(at_ms, "place")], [], "charged at once, and once", CHARGED)
        for key, at_ms in zip(ids, _HEALTHY_MS, strict=False)
    ]
    special = [
        _order(
            f"fails-twice{suffix}",
            "the provider will answer 503 twice, then all is well",
            "24.00",
            [(600, "place")],
            [{"status": 503}, {"status": 503}],
            "waits 1 s, then 2 s, and is charged once, by the third attempt",
            Outcome(
                calls=("charge failed:503", "charge failed:503", "charge booked"),
                waits_ms=(1_000, 2_000),
                charges=1,
                events=("PaymentCaptured",),
            ),
        ),
        _order(
            f"bad-card{suffix}",
            "the provider will refuse the card: no retry can mend that",
            "35.90",
            [(1_800, "place")],
            [{"status": 402, "body": "the card number is invalid"}],
            "tried once, a dead letter at once",
            Outcome(
                calls=("charge failed:402",),
                events=("PaymentFailed",),
                letters=(("permanent", 1),),
            ),
            forever=True,
        ),
        _order(
            hopeless,
            "the provider will answer 503 to it for ever",
            "18.00",
            [(3_000, "place")],
            [{"status": 503}],
            "four attempts, 1 s, 2 s and 4 s apart, then a dead letter",
            Outcome(
                calls=("charge failed:503",) * 4,
                waits_ms=(1_000, 2_000, 4_000),
                events=("PaymentFailed",),
                letters=(("attempts-exhausted", 4),),
            ),
            forever=True,
        ),
        _order(
            f"cancelled{suffix}",
            "503 twice, too, and the customer will cancel while it waits",
            "49.50",
            [(3_600, "place"), (4_000, "cancel")],
            [{"status": 503}, {"status": 503}],
            "the cancellation waits its turn: first charged, then refunded, each once",
            Outcome(
                calls=(
                    "charge failed:503",
                    "charge failed:503",
                    "charge booked",
                    "refund booked",
                ),
                waits_ms=(1_000, 2_000),
                charges=1,
                refunds=1,
                events=("PaymentCaptured", "PaymentRefunded"),
            ),
        ),
        _order(
            f"malformed{suffix}",
            "a message that breaks off in the middle of its JSON",
            "0",
            [(4_800, "garbage")],
            [],
            "never tried, a dead letter at once, and nothing stops",
            Outcome(letters=(("undecodable", 0),)),
        ),
        _order(
            f"sent-twice{suffix}",
            "its producer will send the same message twice",
            "9.99",
            [(6_000, "place"), (6_000, "place")],
            [],
            "charged once, told once",
            CHARGED,
            is_one_message=True,
        ),
    ]
    return sorted(healthy + special, key=lambda order: order.messages[0].after_ms)


def introduction(story: Sequence[Order], partitions: int) -> str:
    """What a reader has to know before it begins.

    Args:
        story: of `orders`.
        partitions: of `bookstore.orders`.
    """
    healthy = next(order.id for order in story if order.is_healthy)
    partition = partition_of(healthy.encode(), partitions)
    return (
        f"Orders arrive on the topic {ORDERS}, and the worker charges each at the payment"
        " provider, which is told beforehand to fail for some. An order whose charge fails for a"
        " passing reason waits for its next attempt, and its later messages wait behind it. All"
        f" others go on: the healthy ones here are in the same partition ({partition}) as the one"
        " that always fails."
    )


def _order(
    key: str,
    intro: str,
    price: str,
    sent: list[tuple[int, Literal["place", "cancel", "garbage"]]],
    steps: list[Mapping[str, Any]],
    promise: str,
    outcome: Outcome,
    *,
    forever: bool = False,
    is_one_message: bool = False,
) -> Order:
    one_id = str(uuid.uuid4())
    messages = tuple(
        Message(at_ms, what, one_id if is_one_message else str(uuid.uuid4()))
        for at_ms, what in sent
    )
    return Order(key, intro, Decimal(price), messages, tuple(steps), forever, promise, outcome)
